"""Runs many seeds on all cores: worker processes that live for the whole run, each doing one seed after the other.

Nothing here decides what happens in a seed: a `Job` run in any process, in any order, gives the same `Result` but for
`took_s`. A worker that dies or hangs costs its seed, which is then a failure of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.ground.trace import Trace
from raftlog.chaos.sim.runs.ranges import ranges_text
from raftlog.chaos.sim.seed.run import run_seed
from raftlog.chaos.sim.world.world import MACHINE, Fault
from raftlog.raft.consensus.invariants import InvariantBroken
from raftlog.raft.options import Options

SECONDS: Final = 60
"""Simulated seconds of trouble per seed, unless said otherwise."""

HUNG_S: Final = 900
"""A seed takes about a second; on a loaded machine some. After this it hangs: a loop that no virtual clock ends."""

START_S: Final = 120
"""How long a worker may take to begin; its first seed counts from when it says so."""

HERE: Final = f"{os.sep}chaos{os.sep}sim{os.sep}"


@dataclass(frozen=True, slots=True)
class Job:
    """One seed and all that decides what happens in it. `skip` are the numbers of faults that are left out."""

    seed: int
    seconds: int = SECONDS
    skip: frozenset[int] = frozenset()
    mutant: str | None = None
    machine: str = MACHINE

    @property
    def command(self) -> str:
        """What repeats it, as typed into a shell."""
        words = ["raftlog sim --replay", str(self.seed)]
        if self.seconds != SECONDS:
            words += ["--seconds", str(self.seconds)]
        if self.mutant is not None:
            words += ["--mutant", self.mutant]
        if self.machine != MACHINE:
            words += ["--state-machine", self.machine]
        if self.skip:
            words += ["--skip", ranges_text(self.skip)]
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class SeedFailure:
    """How a seed failed. `is_internal`: the simulator itself raised, which says nothing about raftlog."""

    property: str
    detail: str
    at_us: int = 0
    faults: tuple[tuple[int, str], ...] = ()  # number, words
    atlas: tuple[str, ...] = ()
    world: tuple[str, ...] = ()
    history: bytes = b""  # the answers that clients got about keys, as raftlog.chaos.judge.history writes it
    traceback: str = ""
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a job: its numbers and the digest of its trace, or how it broke."""

    job: Job
    took_s: float
    digest: str = ""
    stats: dict[str, int] = field(default_factory=dict)
    broken: SeedFailure | None = None


Work = Callable[[Job], Result]


def run_job(job: Job, trace: Trace | None = None) -> Result:
    """Run it here. Never raises what the seed raises; the job's mutant must already be planted."""
    began = time.perf_counter()
    try:
        outcome = run_seed(job.seed, job.seconds, trace=trace, skip=job.skip, machine=job.machine)
    except Exception as error:
        world = error.world if isinstance(error, Failure) else None
        digest = world.trace.digest() if world is not None else ""
        return Result(job, time.perf_counter() - began, digest, broken=broken_by(error))
    return Result(job, time.perf_counter() - began, outcome.digest, outcome.stats)


def broken_by(error: Exception) -> SeedFailure:
    """An error of `run_seed` as a value that travels between processes."""
    text = "".join(traceback.format_exception(error)).rstrip()
    if not isinstance(error, Failure):
        return SeedFailure(type(error).__name__, str(error), traceback=text, is_internal=True)
    world = error.world
    return SeedFailure(
        property=error.property,
        detail=str(error.detail),
        at_us=world.now_us if world is not None else 0,
        faults=tuple((fault.number, fault_text(fault)) for fault in world.faults) if world is not None else (),
        atlas=tuple(world.atlas.describe()) if world is not None else (),
        world=tuple(world_text(world.swarm)) if world is not None else (),
        history=b"".join(world.history.lines()) if world is not None and world.history is not None else b"",
        traceback=text,
        is_internal=_is_ours(error),
    )


def fault_text(fault: Fault) -> str:
    """One fault in columns: when, its number, what, whom."""
    whom = ",".join(map(str, fault.nodes)) or "all"
    return f"{fault.now_us / 1e6:10.6f}  {fault.number:>4}  {fault.kind:<16} {whom:<10} {fault.detail}".rstrip()


def world_text(swarm: Any) -> Iterator[str]:
    """The faults of a world, and its options that are not the default: `name value` each."""
    default = Options()
    for each in fields(swarm):
        value = getattr(swarm, each.name)
        if isinstance(value, Options):
            for option in fields(value):
                if (chosen := getattr(value, option.name)) != getattr(default, option.name):
                    yield f"{option.name} {chosen}"
        elif each.name == "faults":
            yield "faults " + (", ".join(f"{kind} every {us / 1e6:.1f} s" for kind, us in value) or "none")
        elif is_dataclass(value):
            yield from world_text(value)
        elif value:
            yield f"{each.name} {value}"


def _is_ours(error: Failure) -> bool:
    """Whether the simulator's own code stumbled: some other error than a broken rule, raised in chaos/sim."""
    cause = error.__cause__
    if cause is None or isinstance(cause, AssertionError | InvariantBroken):
        return False
    frames = traceback.extract_tb(cause.__traceback__)
    return bool(frames) and HERE in frames[-1].filename


@contextlib.contextmanager
def planted(mutant: str | None) -> Iterator[None]:
    """With that bug planted in this process; nothing without a name."""
    if mutant is None:
        yield
        return
    from raftlog.chaos.sim.mutants import plant

    with plant(mutant):
        yield


def _work(pipe: connection.Connection, mutant: str | None, work: Work | None) -> None:
    """A worker process: jobs in, results out, until the other end closes. Ctrl-C is for the parent alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with planted(mutant), contextlib.suppress(EOFError, BrokenPipeError):
        pipe.send(None)  # begins now
        while True:
            pipe.send((work or run_job)(pipe.recv()))


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, and a seed that never ends would keep a core for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@dataclass(slots=True)
class _Worker:
    """A process, our end of its pipe, and what it is at."""

    process: SpawnProcess
    pipe: connection.Connection
    job: Job | None = None
    began: float = 0.0


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(
    jobs: Iterable[Job], workers: int, *, mutant: str | None = None, hung_s: float = HUNG_S, work: Work | None = None
) -> Iterator[Result]:
    """Results as they come, not in the order of the jobs, which are drawn one by one as workers get free.

    Closing the generator ends the workers at once. One worker means this very process. `work` takes the place of
    `run_job`.
    """
    if workers <= 1:
        with planted(mutant):
            for job in jobs:
                yield (work or run_job)(job)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy whatever threads the caller has

    def start(job: Job) -> _Worker:
        return _start(context, mutant, work, job)

    waiting = iter(jobs)
    pool: list[_Worker] = []
    try:
        for _ in range(workers):
            if (first := next(waiting, None)) is None:
                break
            pool.append(start(first))
        while pool:
            yield from _wait(pool, waiting, start, hung_s)
    finally:
        for worker in pool:
            _end(worker)


def _start(context: Any, mutant: str | None, work: Work | None, job: Job) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, mutant, work), daemon=True, name="raftlog sim worker")
    with _interrupts_wait():
        process.start()
    theirs.close()
    worker = _Worker(process, ours)
    _give(worker, job)
    worker.began += START_S
    return worker


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Holds Ctrl-C back in processes started here, until they ignore it: the parent decides when workers end."""
    resource_tracker.ensure_running()  # multiprocessing starts it with the first worker, and lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _give(worker: _Worker, job: Job) -> None:
    worker.job, worker.began = job, time.perf_counter()
    worker.pipe.send(job)


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.terminate()
    worker.process.join(5)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def _wait(
    pool: list[_Worker], waiting: Iterator[Job], start: Callable[[Job], _Worker], hung_s: float
) -> Iterator[Result]:
    """The results that are ready within a moment. Workers that are done get the next job, or leave the pool."""
    ready = set(connection.wait([worker.pipe for worker in pool], timeout=0.5))
    for worker in list(pool):
        result = _result(worker, worker.pipe in ready, hung_s)
        if result is None:
            continue
        job = next(waiting, None)
        if worker.job is None and job is not None:
            _give(worker, job)
        else:  # nothing left to do, or this one is gone
            pool.remove(worker)
            _end(worker)
            if job is not None:
                pool.append(start(job))
        yield result


def _result(worker: _Worker, is_ready: bool, hung_s: float) -> Result | None:
    """What that worker has to say; its `job` stays set if it is of no more use."""
    assert worker.job is not None
    took_s = time.perf_counter() - worker.began
    if is_ready:
        try:
            result: Result | None = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(5)
            detail = f"the worker process ended with {worker.process.exitcode}"
            return Result(worker.job, took_s, broken=SeedFailure("worker lives", detail, is_internal=True))
        if result is None:
            worker.began = time.perf_counter()
        else:
            worker.job = None
        return result
    if took_s > hung_s:
        detail = f"no end after {took_s:.0f} s of real time"
        return Result(worker.job, took_s, broken=SeedFailure("seed ends", detail))
    return None


def may_import_from_here() -> None:
    """Let `--state-machine module:Class` name a module in the folder one is in; worker processes inherit it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
