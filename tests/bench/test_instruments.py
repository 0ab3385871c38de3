"""The bench measures what it says: no figures from memory disks, no hidden waiting."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
import typer
from rich.console import Console

from bench import __main__ as run
from bench.instruments import conditions, machine
from bench.instruments.options import named
from bench.loads import openloop
from bench.spark import __main__ as spark
from bench.studies import growth
from tests.support import hang_s


def test_a_filesystem_in_memory_is_refused() -> None:
    """An fsync on tmpfs costs nothing: the bench says so and names the option that fixes it."""
    folder = Path("/dev/shm")
    if machine.filesystem_of(folder) != "tmpfs":
        pytest.skip("no tmpfs at /dev/shm on this machine")
    with pytest.raises(machine.NotADisk, match="--data"):
        machine.measure_disk(folder)


def test_fdatasync_is_timed_on_a_disk(tmp_path: Path) -> None:
    """The floor is measured where the data will be, and leaves nothing behind."""
    if machine.filesystem_of(tmp_path) == "tmpfs":
        pytest.skip("the temporary folder is in memory")
    disk = machine.measure_disk(tmp_path, samples=20)
    assert 0 < disk.p50_us <= disk.p99_us
    assert list(tmp_path.iterdir()) == []


STALL_S = 0.4


async def _serve(hold: asyncio.Event, port: int, ended: asyncio.Semaphore) -> asyncio.Server:
    """A server that gives no answer for STALL_S after its first request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                await reader.readexactly(size)
                if not hold.is_set():
                    asyncio.get_running_loop().call_later(STALL_S, hold.set)
                await hold.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.release()

    return await asyncio.start_server(answer, "127.0.0.1", port)


async def test_an_open_loop_counts_the_wait_of_requests_that_could_not_be_sent(free_port: int) -> None:
    """While the server stalls, requests fall due with every connection busy: their wait is in the latencies, so the
    stall shows in most of them, not in one (no coordinated omission)."""
    hold, ended = asyncio.Event(), asyncio.Semaphore(0)
    server = await _serve(hold, free_port, ended)
    try:
        seen = await openloop.offer(f"http://127.0.0.1:{free_port}/", rate=200, seconds=0.5, connections=2, body=b"x")
    finally:
        server.close()
        await server.wait_closed()
        for _ in range(2):  # both connections are closed before the loop is
            await asyncio.wait_for(ended.acquire(), hang_s())
    assert (seen.sent, seen.answered, seen.bad) == (100, 100, 0)
    assert seen.max_ms >= 350
    assert seen.p50_ms >= 100, "half of the requests were due during the stall"


async def test_an_open_loop_refuses_an_invalid_address() -> None:
    """A URL without a port is a mistake of the caller, said at once."""
    with pytest.raises(ValueError, match="host:port"):
        await openloop.offer("127.0.0.1:1", rate=1, seconds=1, connections=1)


def test_a_disk_without_room_for_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured, and with the way out: a full disk in the middle of a run costs the whole run."""
    with pytest.raises(typer.Exit) as refused:
        conditions.look(tmp_path, Console(width=200), room=1 << 60)
    assert refused.value.exit_code == 2
    assert "GB are free" in (said := capsys.readouterr().out)
    assert "--data" in said


@pytest.mark.parametrize(
    ("command", "option", "known"),
    [(run.main, "only", run.PARTS), (growth.main, "only", growth.CURVES), (spark.main, "jobs", spark.JOBS)],
    ids=["parts", "curves", "jobs"],
)
def test_options_that_list_names(command: Callable[..., None], option: str, known: tuple[str, ...]) -> None:
    """Every name can be chosen (a comma in one would divide it), all are where none is, and an unknown one is refused
    at once with those that there are: nothing runs for minutes to fail at the end."""
    assert named(option, "", known) == list(known)
    assert named(option, inspect.signature(command).parameters[option].default, known) == list(known)
    assert named(option, ", ".join(known), known) == list(known)
    assert named(option, known[-1], known) == [known[-1]]
    for unknown in ("sort", known[0][:-1]):
        with pytest.raises(typer.BadParameter, match=f"{option}: there is no '{unknown}'; there are {known[0]}, "):
            named(option, f"{known[0]},{unknown}", known)
