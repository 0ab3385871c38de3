"""Helpers that every test may use: free ports, and waiting for a condition instead of sleeping.

The only file of the tests that sleeps: a test that sleeps a fixed time is either slow or wrong on a busy machine.
"""

import asyncio
import inspect
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.context import ForkServerContext
from pathlib import Path
from random import Random, SystemRandom
from typing import Protocol, TypeVar, overload

import pytest

from raftlog.cluster.node.ports import free_ports as free_ports, is_claimed
from raftlog.cluster.security.tls import TlsFiles

T = TypeVar("T")


def port_for_up() -> int:
    """A free `--port` for `raftlog up --nodes 1`, whose peers' port is free too."""
    from raftlog.cluster.cli.nodes import PEER_PORT_OFFSET  # here: most tests need no command line

    while True:
        port = free_port()
        if is_claimed(port + PEER_PORT_OFFSET):
            return port


def free_port() -> int:
    """One free TCP port of 127.0.0.1."""
    return free_ports(1)[0]


SEED_VARIABLE = "RAFTLOG_SEED"


def seed_of_run() -> int:
    """The seed that every random choice of this run of the tests comes from; the environment variable repeats one."""
    return int(os.environ.setdefault(SEED_VARIABLE, str(SystemRandom().randrange(1 << 32))))


def fresh_seed(name: str) -> int:
    """A seed of this run for the test of that name, so that the test alone draws the same again."""
    return Random(f"{seed_of_run()} {name}").randrange(1 << 32)


_TURNS_TO_HAND_OVER = 3  # turns: accepted; transport made; protocol called


async def stop_serving(server: asyncio.Server) -> None:
    """Closes a listening server, once the newest accepted connection has its protocol.

    asyncio forgets a connection whose transport it makes after `close` (an assertion fails in `Server._attach`), and
    no code would close it.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(_TURNS_TO_HAND_OVER):
        await asyncio.sleep(0)
    server.close()


StreamHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def streams_served(handler: StreamHandler, port: int = 0) -> AsyncIterator[int]:
    """A server that does with each connection what the handler does; its port. When this ends every handler has ended
    and every connection is closed: one that outlives its loop fails whichever test runs when it is collected."""
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks[asyncio.create_task(handle(reader, writer))] = writer

    server = await asyncio.start_server(begin, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_serving(server)
        for task, writer in tasks.items():
            task.cancel()
            writer.close()  # a task that has not begun ends without a step
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        for writer in tasks.values():
            with suppress(ConnectionError):
                await writer.wait_closed()


_STRETCH_MAX = 10.0  # a condition that never comes true ends the test, however busy the machine is


def stretch() -> float:
    """How many times longer than alone something takes now, because other work shares the machine: runnable threads by
    core; 1.0 on a machine with a core for each."""
    try:
        runnable = int(Path("/proc/loadavg").read_text("ascii").split()[3].partition("/")[0])
    except OSError:  # not Linux
        runnable = round(os.getloadavg()[0])
    return min(max(1.0, runnable / (os.cpu_count() or 1)), _STRETCH_MAX)


HANG_S = 300.0
"""Bound of one wait for a process, a socket or a coroutine. It only ends what hangs, in half the time that pytest gives
a test. How quick the product is, a test asks with `Patience`, which follows the machine."""
HANG_PLANTED_S = 10.0
"""The same for a coroutine while a mutant is planted, which makes many a one hang."""


class Patience:
    """A deadline in seconds of this machine as it is alone: while other work takes half of it, a second counts half.

    Time in which this process did not come to look counts as little as one look: then its own machine stood still.
    """

    share = 1.0
    """Part of each deadline that counts; less where a condition is expected to stay false (tests/planted.py)."""

    def __init__(self, seconds: float, *, every_s: float) -> None:
        self._left_s = seconds * self.share
        self._look_s_max = 10 * every_s
        self._looked = time.monotonic()

    def is_over(self) -> bool:
        """Whether the time is up; asked again and again."""
        before, self._looked = self._looked, time.monotonic()
        self._left_s -= min(self._looked - before, self._look_s_max) / stretch()
        return self._left_s <= 0


def hang_s() -> float:
    """The bound of one wait for a coroutine, in seconds: see `HANG_S`."""
    return HANG_S if Patience.share == 1.0 else HANG_PLANTED_S


class TooSlow(AssertionError):
    """A condition did not come true within its deadline."""


def wait_until(condition: Callable[[], T], deadline_s: float = 10.0, *, what: str = "", every_s: float = 0.01) -> T:
    """Calls `condition` until it answers something true, and returns that.

    Raises TooSlow after `deadline_s` (see `Patience`), with `what` was waited for and the last answer. What the
    condition raises goes through: catch in it what may happen meanwhile.
    """
    patience = Patience(deadline_s, every_s=every_s)
    while not (answer := condition()):
        if patience.is_over():
            raise TooSlow(_too_late(condition, deadline_s, what, answer))
        time.sleep(every_s)
    return answer


@overload
async def wait_until_async(
    condition: Callable[[], Awaitable[T]], deadline_s: float = ..., *, what: str = ..., every_s: float = ...
) -> T: ...
@overload
async def wait_until_async(
    condition: Callable[[], T], deadline_s: float = ..., *, what: str = ..., every_s: float = ...
) -> T: ...
async def wait_until_async(
    condition: Callable[[], object], deadline_s: float = 10.0, *, what: str = "", every_s: float = 0.01
) -> object:
    """As wait_until, for a plain or a coroutine function, and the event loop goes on meanwhile."""
    patience = Patience(deadline_s, every_s=every_s)
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if patience.is_over():
            raise TooSlow(_too_late(condition, deadline_s, what, answer))
        await asyncio.sleep(every_s)


_READ_BEFORE_A_FORK = ["__main__"]


def forking(*modules: str) -> ForkServerContext:
    """Makes processes by a fork of one that has no threads and has read these modules. All files of tests share it: it
    has read the modules of all that were collected, and no child reads them again."""
    _READ_BEFORE_A_FORK.extend(modules)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_READ_BEFORE_A_FORK)
    return context


async def pace(seconds: float) -> None:
    """Lets time pass between two requests of a load, as a client does; never to wait for something to have happened."""
    await asyncio.sleep(seconds)


def _too_late(condition: Callable[[], object], deadline_s: float, what: str, answer: object) -> str:
    waited_for = what or getattr(condition, "__qualname__", repr(condition))
    return f"waited {deadline_s:g} s for: {waited_for}; the last answer was {answer!r}"


class Server(Protocol):
    """A program of the machine that a test runs."""

    def start(self) -> None:
        """Starts it, and waits until it answers."""

    def stop(self) -> None:
        """Ends it and deletes its folder."""


class KilledServer(Protocol):
    """One that a test kills."""

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""

    def start(self) -> None:
        """Starts it on the files that are there, and waits until it answers."""


def restarted(server: KilledServer) -> None:
    """Kills a server, and starts it again."""
    server.kill()
    server.start()


S = TypeVar("S", bound=Server)

RAFTLOG = (sys.executable, "-m", "raftlog.cluster.cli.main")


def raftlog(
    *words: object,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = HANG_S,
) -> "subprocess.CompletedProcess[str]":
    """A command in a process of its own, to its end, with these variables more."""
    return subprocess.run(
        [*RAFTLOG, *map(str, words)],
        cwd=cwd,
        env=os.environ | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def variables_of(files: TlsFiles) -> dict[str, str]:
    """The variables by which a command uses these files."""
    return {"RAFTLOG_CA": files.ca, "RAFTLOG_CERTIFICATE": files.certificate, "RAFTLOG_KEY": files.key}


@contextmanager
def http_served(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server of `http.server` in a thread of its own; its URL, without a path."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(HANG_S)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A file system of its own on a folder, which holds that much ("256k"). Skips where none can be mounted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs needs root: a full and a read-only disk are not tried")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)  # lazily: a failed test may hold files open


@contextmanager
def served(make: Callable[[], S], missing: type[Exception]) -> Iterator[S]:
    """A server that runs; skips, with its reason, where `make` raises `missing`."""
    try:
        server = make()
    except missing as error:
        pytest.skip(str(error))
    try:
        server.start()
        yield server
    finally:
        server.stop()
