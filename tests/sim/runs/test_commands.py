"""`raftlog sim` as a person uses it: exit codes, output, the report of a failure, and how a failure is repeated."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from raftlog.chaos.judge.history import read_history
from raftlog.chaos.sim.runs import runner
from raftlog.chaos.sim.runs.commands import register
from raftlog.chaos.sim.runs.ending import Exit
from raftlog.chaos.sim.runs.ranges import NUMBER_MAX, SEEDS_MAX, numbers, ranges_text, seed_range
from raftlog.chaos.sim.runs.runner import Job, Result, SeedFailure, run_jobs
from raftlog.chaos.sim.runs.summary import FLOORS_SEEDS
from raftlog.raft.consensus import election
from raftlog.raft.consensus.state import State
from tests.support import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent.parent
MUTANT = "older_term_committed_by_counting"


def run(*words: str) -> tuple[int, str]:
    """The command in this process: exit code and all that it printed."""
    app = Typer()
    register(app)
    app.command("other")(lambda: None)  # so that `sim` is a word of the command line
    told = CliRunner().invoke(app, ["sim", *words], catch_exceptions=False)
    return told.exit_code, told.output


@pytest.fixture
def broken_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every election ends in an error of the core."""

    def fail(state: State, reason: str, *, link_closed: bool) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(election, "pre_campaign", fail)


def test_a_clean_run_tells_what_it_did() -> None:
    """Counts, speed, medians with floors, states never reached, one digest; exit code 0."""
    code, told = run("--seeds", "0:2", "--seconds", "1", "--jobs", "1")
    assert code == Exit.OK, told
    assert "2 seeds of 1 s, 0 failed" in told
    assert "simulated seconds per second" in told
    assert "client operations" in told
    assert "(floor 200)" in told
    assert "digest of all traces: " in told


def test_a_replay_tells_the_numbers() -> None:
    """One seed: its statistics and the digest of its trace, which --trace does not change."""
    code, told = run("--replay", "4", "--seconds", "1")
    assert code == Exit.OK
    assert "seed 4: every property held" in told
    code, shown = run("--replay", "4", "--seconds", "1", "--trace")
    assert code == Exit.OK
    assert told.splitlines()[-1] == shown.splitlines()[-1]
    assert len(shown.splitlines()) > len(told.splitlines()) + 100


def test_a_replay_that_held_can_be_looked_at(tmp_path: Path) -> None:
    """With --report story and trace are written for a seed in which nothing broke."""
    code, told = run("--replay", "4", "--seconds", "1", "--report", str(tmp_path))
    assert code == Exit.OK
    assert "every property held" in (tmp_path / "seed-4" / "failure.txt").read_text()
    assert str(tmp_path / "seed-4" / "trace.txt") in told


@pytest.mark.usefixtures("broken_ticks")
def test_a_failure_is_told_and_written(tmp_path: Path) -> None:
    """Seed, property, faults and the one command that repeats it; story and trace; exit code 1."""
    code, told = run("--seeds", "5:6", "--seconds", "1", "--jobs", "1", "--report", str(tmp_path))
    assert code == Exit.BROKEN, told
    assert "seed 5: BROKEN: AssertionError" in told
    assert "planted" in told
    assert "repeat: raftlog sim --replay 5 --seconds 1" in told
    folder = tmp_path / "seed-5"
    assert "planted" in (folder / "failure.txt").read_text()
    assert "BROKEN  AssertionError: planted" in (folder / "trace.txt").read_text().splitlines()[-1]
    assert len(read_history(folder / "history.jsonl").operations()) > 0


def test_the_printed_command_repeats_a_planted_bug(tmp_path: Path) -> None:
    """What a found mutant prints is typed in as it stands, and breaks the same property at the same moment."""
    reports = ("--report", str(tmp_path))
    code, told = run("--mutant", MUTANT, "--seeds", "0:60", "--seconds", "10", "--jobs", "1", *reports)
    assert code == Exit.BROKEN, told
    assert f"mutant {MUTANT}: found, after " in told
    command = told.partition("  repeat: ")[2].splitlines()[0]
    code, again = run(*shlex.split(command)[2:], *reports)
    assert code == Exit.BROKEN
    assert broken_in(again) == broken_in(told)
    # without the mutant the same seed holds
    code, held = run("--replay", shlex.split(command)[3], "--seconds", "10")
    assert code == Exit.OK, held


def broken_in(told: str) -> list[str]:
    """The line that names the property and the moment."""
    return [line for line in told.splitlines() if ": BROKEN: " in line]


def test_a_run_ends_after_a_few_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One bug fails many seeds; three are enough to look at."""
    ran: list[int] = []

    def fail(job: Job, trace: object = None) -> Result:
        ran.append(job.seed)
        return Result(job, 0.1, broken=SeedFailure("p", "d"))

    monkeypatch.setattr(runner, "run_job", fail)
    monkeypatch.setattr("raftlog.chaos.sim.runs.report.run_job", fail)
    code, told = run("--seeds", "0:50", "--jobs", "1", "--report", str(tmp_path))
    assert code == Exit.BROKEN
    assert sorted(set(ran)) == [0, 1, 2]
    assert told.count("repeat: ") == 3 + 3  # as it fails, and in the end


def test_a_seed_that_goes_another_way_is_an_internal_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the second run of a failed seed holds, the simulator is not deterministic: nothing is known then."""
    monkeypatch.setattr(runner, "run_job", lambda job, trace=None: Result(job, 0.1, broken=SeedFailure("p", "d")))
    code, told = run("--seeds", "0:1", "--seconds", "1", "--jobs", "1", "--report", str(tmp_path))
    assert code == Exit.INTERNAL
    assert "NOT REPEATED" in told


def test_an_error_of_the_simulator_is_not_taken_for_a_broken_property(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A KeyError in chaos/sim gives 8 and its traceback; the same raised by the core gives 1."""

    def stumble(*_: object) -> None:
        raise KeyError("mine")

    monkeypatch.setattr("raftlog.chaos.sim.nemesis.unleash", stumble)
    monkeypatch.setattr(runner, "HERE", str(Path(__file__).parent.name))
    code, told = run("--seeds", "0:1", "--seconds", "1", "--jobs", "1", "--report", str(tmp_path))
    assert code == Exit.INTERNAL, told
    assert "the simulator itself stumbled" in told
    monkeypatch.undo()
    monkeypatch.setattr(election, "tick", stumble)
    code, told = run("--seeds", "0:1", "--seconds", "1", "--jobs", "1", "--report", str(tmp_path))
    assert code == Exit.BROKEN, told


def with_stats(**stats: int) -> Callable[..., Result]:
    """Instead of `run_job`: every seed holds, with these numbers for its minute."""
    return lambda job, trace=None: Result(job, 0.1, f"{job.seed:016x}", {"simulated ms": 60_000, **stats})


ENOUGH = {"client operations": 250, "faults": 12, "leaders": 3}


def test_a_run_in_which_too_little_happened_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each median below its floor is named, exit code 6; small runs and short seeds are not judged by it."""
    monkeypatch.setattr(runner, "run_job", with_stats(**ENOUGH))
    assert run("--seeds", "0:20", "--jobs", "1")[0] == Exit.OK
    for name, words in {
        "client operations": "client operations",
        "faults": "faults",
        "leaders": "leader changes",
    }.items():
        monkeypatch.setattr(runner, "run_job", with_stats(**(ENOUGH | {name: 1})))
        code, told = run("--seeds", f"0:{FLOORS_SEEDS}", "--jobs", "1")
        assert code == Exit.TOO_LITTLE
        assert f"too little happened: {words}: 1 <" in told
        assert run("--seeds", f"0:{FLOORS_SEEDS - 1}", "--jobs", "1")[0] == Exit.OK
        assert run("--seeds", f"0:{FLOORS_SEEDS}", "--seconds", "59", "--jobs", "1")[0] == Exit.OK


def test_the_first_interrupt_lets_seeds_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C: no new seed begins, the summary is printed with how to go on; exit code 130."""
    held = with_stats(**ENOUGH)

    def interrupted(job: Job, trace: object = None) -> Result:
        if job.seed == 4:
            signal.raise_signal(signal.SIGINT)
        return held(job)

    monkeypatch.setattr(runner, "run_job", interrupted)
    code, told = run("--seeds", "2:50", "--jobs", "1")
    assert code == Exit.INTERRUPTED
    assert "3 seeds of 60 s, 0 failed" in told
    assert "go on with --seeds 5:50" in told


@pytest.mark.parametrize(
    "words",
    [
        ("--seeds", "9:2"),
        ("--seeds", "x"),
        ("--seeds", "-1:4"),
        ("--seeds", "3:"),
        ("--seconds", "0"),
        ("--skip", "a"),
        ("--skip", "4-2"),
        ("--mutant", "nothing"),
        ("--state-machine", "no.such:Thing"),
        ("--jobs", "0"),
        ("--replay", "-1"),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, the option's name, and no seed has begun."""
    monkeypatch.setattr(runner, "run_job", pytest.fail)
    code, told = run(*words)
    assert code == Exit.USAGE
    assert words[0] in told


def test_minutes_end_a_run_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --minutes alone fresh seeds are run, whose first is printed, until the time is over."""
    now = [0.0]
    held = with_stats(**ENOUGH)

    def slow(job: Job, trace: object = None) -> Result:
        now[0] += 25
        return held(job)

    monkeypatch.setattr(runner, "run_job", slow)
    monkeypatch.setattr("raftlog.chaos.sim.runs.commands.time.monotonic", lambda: now[0])
    code, told = run("--minutes", "1", "--jobs", "1")
    assert code == Exit.OK
    assert "3 seeds of 60 s" in told
    assert "seeds from " in told


def test_mutants_are_listed() -> None:
    """One per line, with what it is."""
    code, told = run("--mutant", "list")
    assert code == Exit.OK
    assert any(line.startswith(MUTANT) for line in told.splitlines())


def test_a_worker_that_dies_costs_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seed is a failure of its own, and the others are run by another process."""
    told = {result.job.seed: result for result in run_jobs([Job(-1), Job(0, 1), Job(1, 1)], 2, work=dies_at_minus_one)}
    assert sorted(told) == [-1, 0, 1]
    dead = told[-1].broken
    assert dead is not None
    assert dead.property == "worker lives"
    assert dead.is_internal
    assert told[0].broken is None
    assert told[1].broken is None


def dies_at_minus_one(job: Job) -> Result:
    """Instead of `run_job` in a worker."""
    if job.seed == -1:
        sys.exit(3)
    return Result(job, 0.0, "x", {"simulated ms": 1})


def test_a_seed_that_hangs_is_given_up() -> None:
    """After the limit its worker is ended and the seed has failed; the run goes on."""
    told = {result.job.seed: result for result in run_jobs([Job(-1), Job(0)], 2, work=hangs_at_minus_one, hung_s=1)}
    hung = told[-1].broken
    assert hung is not None
    assert hung.property == "seed ends"
    assert told[0].broken is None


def hangs_at_minus_one(job: Job) -> Result:
    """Instead of `run_job` in a worker."""
    while job.seed == -1:
        pass
    return Result(job, 0.0, "x", {"simulated ms": 1})


def test_workers_end_with_a_parent_that_is_killed() -> None:
    """No process is left to end them, and a seed that hangs would keep a core for ever."""
    code = (
        "from tests.sim.runs.test_commands import *; "
        "list(run_jobs([Job(-1), Job(-1)], 2, work=says_its_number_and_hangs))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
        parent.wait()
        wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 20)


def says_its_number_and_hangs(job: Job) -> Result:
    """Work of a worker that never ends by itself."""
    os.write(sys.stdout.fileno(), b"%d\n" % os.getpid())  # in one piece, beside the other worker's
    while True:
        signal.pause()


def test_the_process_ends_cleanly_on_two_interrupts(tmp_path: Path) -> None:
    """The real command with two workers: the first Ctrl-C waits for long seeds, the second does not; no tracebacks. As
    from a terminal, Ctrl-C reaches the workers too, also while they start."""
    command = [
        sys.executable,
        "-m",
        "raftlog.cluster.cli.main",
        "sim",
        "--seeds",
        "0:100",
        "--seconds",
        "100000",
        "--jobs",
        "2",
    ]
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            wait_until(lambda: len(children.read_text().split()) >= 2, 30)
            workers = [int(pid) for pid in children.read_text().split()]
            os.killpg(process.pid, signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(30) == Exit.INTERRUPTED
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        told = said.read()
    assert "Traceback" not in told
    assert "0 seeds" in told
    assert "Ctrl-C again" in told
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_the_text_of_numbers() -> None:
    """Seeds are half-open, numbers are single or runs; written text is read back."""
    assert seed_range("0:5") == range(5)
    assert seed_range("7") == range(7, 8)
    assert seed_range("3:") == range(3, SEEDS_MAX)
    assert numbers("1, 4-6,9") == {1, 4, 5, 6, 9}
    assert numbers("") == frozenset()
    for wanted in ({1}, {1, 2, 3}, {1, 3, 4, 9, 10, 11}, set[int]()):
        assert numbers(ranges_text(wanted)) == wanted
    for wrong in ("1:1", "2:1", "a:b", "", ":", "1:2:3", f"0:{SEEDS_MAX + 1}"):
        with pytest.raises(ValueError, match="give seeds"):
            seed_range(wrong)
    for wrong in ("-1", "3-1", "x", f"{NUMBER_MAX + 1}"):
        with pytest.raises(ValueError, match="give numbers"):
            numbers(wrong)


def test_a_job_is_repeated_by_its_command() -> None:
    """Only what differs from the default is typed."""
    assert Job(7).command == "raftlog sim --replay 7"
    job = Job(7, 9, frozenset({1, 2, 3, 8}), "x", "a:B")
    assert job.command == "raftlog sim --replay 7 --seconds 9 --mutant x --state-machine a:B --skip 1-3,8"
