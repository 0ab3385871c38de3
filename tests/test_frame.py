"""The frame that every other test stands on: the plugin's skip table and CI rule, long tests, free ports, waiting."""

import asyncio
import gc
import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests import extra
from tests.plugin import table
from tests.support import HANG_S, free_ports, streams_served, wait_until, wait_until_async

SKIPPING = """
import pytest

def test_that_needs_java():
    pytest.skip("no Java: none found")

@pytest.mark.skip(reason="waits for issue 9")
def test_skipped_by_its_marker():
    pass

def test_that_passes():
    pass
"""


def _run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    # The inner run has none of this project's settings, so markers and plugins are named here.
    pytester.makeini("[pytest]\nmarkers =\n  long:\n  serial:\n  spark:\n  toxiproxy:\nasyncio_mode = auto\n")
    options = [
        "-p",
        "tests.plugin",
        "-p",
        "no:cacheprovider",
        *(() if "-n" in arguments else ("-p", "no:xdist")),
        "-W",
        "ignore",
        *arguments,
    ]
    return pytester.runpytest_inprocess(*options)


def test_skipped_tests_are_listed_in_a_table(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CI a skip is a skip, and the run ends with how many, where and why."""
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(test_skipping=SKIPPING)
    result = _run(pytester)
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*skipped, and why*", "*1 *test_skipping.py *no Java: none found"])
    result.stdout.fnmatch_lines(["*1 *test_skipping.py *waits for issue 9"])


def test_a_failing_run_ends_with_the_commands_that_repeat_each_failure(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for each failed test and each file that could not be read, with the seed of the run; with it Hypothesis
    and `fresh_seed` draw the same again. A condition that did not come true in time is a failure like others."""
    commands = pytester.path / "commands"
    monkeypatch.setenv("RAFTLOG_FAILED_FILE", str(commands))
    monkeypatch.setenv("RAFTLOG_SEED", "17")
    pytester.makepyfile(
        test_f="import hypothesis\nimport hypothesis.strategies as st\nimport pytest\nfrom tests import support\n"
        "drawn = []\n\n@hypothesis.given(st.integers())\ndef test_draws(number): drawn.append(number)\n\n"
        "import os\n\ndef test_has_no_file_of_the_outer_run(): assert 'RAFTLOG_FAILED_FILE' not in os.environ\n\n"
        "def test_shows(): raise support.TooSlow(f'{drawn} {support.fresh_seed(chr(97))}')\n",
        test_g="nonsense",
    )
    results = [_run(pytester, "--continue-on-collection-errors") for _ in range(2)]
    for result in results:
        result.assert_outcomes(passed=2, failed=1, errors=1)
    told = [[line for line in result.outlines if line.startswith("E   ")] for result in results]
    assert told[0] == told[1]
    words = "RAFTLOG_SEED=17 .venv/bin/python -m pytest"
    assert commands.read_text().splitlines() == [f"{words} test_f.py::test_shows", f"{words} test_g.py"] * 2
    results[0].stdout.fnmatch_lines(["*to repeat each failure alone*", f"{words} test_f.py::test_shows"])


def test_ci_accepts_no_skip_for_a_missing_tool(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI set, a skip for Java, Toxiproxy or Spark fails the run, for a test or a module; other skips do not."""
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(
        test_skipping=SKIPPING,
        test_module="import pytest\npytest.skip('no Toxiproxy: none found', allow_module_level=True)\n",
    )
    result = _run(pytester, "--continue-on-collection-errors")
    result.assert_outcomes(passed=1, skipped=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["skipped, which CI does not accept: no Java: none found"])


def test_long_tests_run_only_on_request(pytester: pytest.Pytester) -> None:
    """A test marked long is deselected unless the marker expression or a file::test argument names it."""
    pytester.makepyfile(test_l="import pytest\n\n@pytest.mark.long\ndef test_a(): pass\n\ndef test_b(): pass\n")
    _run(pytester).assert_outcomes(passed=1, deselected=1)
    _run(pytester, "-m", "not serial").assert_outcomes(passed=1, deselected=1)
    _run(pytester, "-m", "long").assert_outcomes(passed=1, deselected=1)
    _run(pytester, "test_l.py::test_a").assert_outcomes(passed=1)


def test_what_make_test_leaves_out_exists() -> None:
    """Each entry names a test that is collected: one that was renamed would run again, unseen. None is of tests marked
    `long` alone, which `make test` leaves out anyway."""
    files = {entry.partition("::")[0] for entry in extra.ENTRIES}
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *files]
    told = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=HANG_S)
    tests = [line for line in told.stdout.splitlines() if extra.is_extra(line)]
    named = {name for test in tests for name in (test, test.partition("[")[0], test.partition("::")[0])}
    assert {*extra.ENTRIES} <= named, told.stderr


def test_spark_and_toxiproxy_tests_are_serial(pytester: pytest.Pytester) -> None:
    """What starts processes runs in the serial part without being marked twice."""
    pytester.makepyfile(
        test_s="import pytest\n\n@pytest.mark.spark\ndef test_a(): pass\n\n"
        "@pytest.mark.toxiproxy\ndef test_b(): pass\n\ndef test_c(): pass\n"
    )
    _run(pytester, "-m", "serial").assert_outcomes(passed=2, deselected=1)
    _run(pytester, "-m", "not serial").assert_outcomes(passed=1, deselected=2)


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_table_of_two_runs_is_one(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    """With RAFTLOG_SKIPS_FILE the second run's table also shows what the first run skipped; each once, also where
    several processes share the tests."""
    monkeypatch.delenv("CI", raising=False)
    shared = tmp_path / "skips.json"
    shared.write_text(json.dumps([["no root", "tests/first.py"]]), encoding="utf-8")
    monkeypatch.setenv("RAFTLOG_SKIPS_FILE", str(shared))
    pytester.makepyfile(test_skipping=SKIPPING)
    _run(pytester, *processes).stdout.fnmatch_lines(["*1 *tests/first.py *no root"])
    assert len(json.loads(shared.read_text(encoding="utf-8"))) == 3


def test_measured_figures_are_shown(pytester: pytest.Pytester) -> None:
    """The numbers of a test that passed stand at the end of the run, under the test's name."""
    pytester.makepyfile(test_m="def test_a(record_property):\n    record_property('measured', 'median 7 ms')\n")
    _run(pytester).stdout.fnmatch_lines(["*measured*", "test_m.py::test_a", "*median 7 ms"])


def test_table_counts_equal_reasons() -> None:
    """Skips of one file for one reason are one line with their number, the most frequent first."""
    rows = table([("no root", "a.py"), ("no Java", "b.py"), ("no Java", "b.py")])
    assert [row.split() for row in rows] == [
        ["tests", "file", "why"],
        ["2", "b.py", "no", "Java"],
        ["1", "a.py", "no", "root"],
    ]


def test_free_ports_are_different_and_free() -> None:
    """Every port given can be bound, and none is given twice."""
    ports = free_ports(5) + free_ports(5)
    assert len(set(ports)) == 10
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_free_ports_are_claimed_against_other_processes() -> None:
    """Another process that searches the same range gets other ports, although no process listens on ours. Otherwise a
    second run of the tests could take the port of a node that was just killed."""
    ours = free_ports(3)
    code = "from tests import support; support._next_port = int({!r}); print(*support.free_ports(3))"
    told = subprocess.run(
        [sys.executable, "-c", code.format(str(ours[0]))], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert not set(map(int, told.stdout.split())) & set(ours)


def test_free_ports_passes_over_a_busy_one() -> None:
    """A port on which somebody listens is not given."""
    first = free_ports(1)[0]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", first + 1))
        listener.listen()
        assert first + 1 not in free_ports(3)


def test_wait_until_returns_the_first_true_value() -> None:
    """The answer itself comes back, as soon as it is true."""
    answers = iter([None, 0, "here"])
    assert wait_until(lambda: next(answers)) == "here"


def test_wait_until_names_its_condition() -> None:
    """After the deadline the error names the thing and the last answer."""
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"waited 0\.05 s for: a leader; the last answer was \[\]"):
        wait_until(list, 0.05, what="a leader")
    assert time.monotonic() - began < 5


async def test_wait_until_async_lets_others_run() -> None:
    """Plain and coroutine conditions both work, and a task that they wait for makes progress meanwhile."""
    done = asyncio.Event()

    async def condition() -> bool:
        return done.is_set()

    async def finish() -> None:
        done.set()

    task = asyncio.create_task(finish())
    assert await wait_until_async(condition)
    assert await wait_until_async(done.is_set)
    await task
    with pytest.raises(AssertionError, match="the last answer was 0"):
        await wait_until_async(lambda: 0, 0.01)


@pytest.mark.parametrize("turns", range(8))
def test_a_server_closes_connections_that_came_at_its_end(turns: int) -> None:
    """A connection that came that many turns of the loop before the end of `streams_served` is closed in every state:
    not yet accepted, accepted without a handler, or with one that has not begun. A remaining one fails the test."""

    async def serve() -> None:
        async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read()

        async with streams_served(silent) as port:
            client = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
            for _ in range(turns):
                await asyncio.sleep(0)
        client.settimeout(HANG_S)
        with client, suppress(ConnectionResetError):
            assert client.recv(1) == b""

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(serve())
    gc.collect()
