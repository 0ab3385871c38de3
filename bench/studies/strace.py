"""Shows with strace that no write is answered before a majority has it on its disk.

Three nodes run with the shipped defaults, each under strace. Every write has a value of its own, so the system calls
for it can be found. On each node, that is the first `fdatasync` that began after the value was written to a file. At
the leader, it is also the `write` of the answer. The answer must come after the second of the three. `python -m bench
strace`.
"""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from rich.console import Console

from raftlog.cluster.node.local_cluster import LocalCluster

TRACED: Final = "trace=pwrite64,fdatasync,write,writev,sendto,sendmsg"
_LINE: Final = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_STRACE_S: Final = 60.0  # seconds for strace to attach, and to write what it saw; both take milliseconds


class Event(NamedTuple):
    """One system call of a node: when it began and ended (seconds), its name, the rest of its line."""

    began: float
    ended: float
    name: str
    text: str


def events(lines: Iterable[str]) -> Iterator[Event]:
    """What `strace -f -ttt -T` says, calls of several threads between each other put together."""
    begun: dict[str, tuple[float, str, str]] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        thread, at, text = match[1], float(match[2]), match[3]
        if text.endswith("<unfinished ...>"):
            begun[thread] = (at, text.partition("(")[0], text)
        elif text.startswith("<... "):
            if thread in begun:
                start, name, first = begun.pop(thread)
                yield Event(start, at, name, first + text)
        elif took := re.search(r"<(\d+\.\d+)>$", text):
            yield Event(at, at + float(took[1]), text.partition("(")[0], text)


def durable_at(value: str, calls: Iterable[Event]) -> float | None:
    """When the node that made these calls had that value on its disk; None: never."""
    found = list(calls)
    written = min((call.ended for call in found if call.name == "pwrite64" and value in call.text), default=None)
    if written is None:
        return None
    return min((call.ended for call in found if call.name == "fdatasync" and call.began >= written), default=None)


def answered_at(request_id: str, calls: Iterable[Event]) -> float | None:
    """When the answer to that request began to leave."""
    return min((call.began for call in calls if call.name != "pwrite64" and request_id in call.text), default=None)


def _write(connection: http.client.HTTPConnection, value: str, request_id: str) -> None:
    connection.request("POST", "/v1/log", value, {"Raftlog-Request-Id": request_id})
    answer = connection.getresponse()
    told = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"the append of {value} was answered with {answer.status}: {told[:200]!r}")


def margin(number: int, seen: Mapping[int, Sequence[Event]], leader: int) -> float | None:
    """How many seconds the answer to that write left after the second node had it on its disk. None: strace has not
    written all of that yet."""
    synced = [durable_at(f"value-{number:06}.", calls) for calls in seen.values()]
    durable = sorted(each for each in synced if each is not None)
    answered = answered_at(f"traced-{number:06}.", seen[leader])
    return None if answered is None or len(durable) < 2 else answered - durable[1]


def margins(folder: Path, writes: int) -> list[float]:
    """The margin of each write. Raises RuntimeError."""
    with LocalCluster(folder / "raftlog") as cluster:
        cluster.start()
        cluster.wait_ready(timeout_s=120.0)
        leader = cluster.leader()
        tracers: list[subprocess.Popen[bytes]] = []
        files = {node: folder / f"{node}.strace" for node in cluster.nodes}

        def seen() -> dict[int, list[Event]]:
            return {node: list(events(file.read_text("utf-8", "replace").splitlines())) for node, file in files.items()}

        def wait_for(condition: Callable[[], bool], what: str) -> None:
            until = time.monotonic() + _STRACE_S
            while not condition():
                if time.monotonic() > until or any(tracer.poll() is not None for tracer in tracers):
                    raise RuntimeError(what)
                time.sleep(0.05)

        try:
            for node, file in files.items():
                words = ["strace", "-f", "-ttt", "-T", "-s", "4096", "-e", TRACED, "-p", str(cluster.pid(node))]
                tracers.append(subprocess.Popen([*words, "-o", str(file)], stderr=subprocess.DEVNULL))
            wait_for(
                lambda: all(file.exists() and file.stat().st_size for file in files.values()),
                "strace saw nothing: may this user trace its own processes (ptrace_scope)?",
            )
            connection = http.client.HTTPConnection(cluster.url(leader).removeprefix("http://"), timeout=60)
            for number in range(writes):
                _write(connection, f"value-{number:06}.", f"traced-{number:06}.")
            connection.close()
            # strace writes the line of an answer after the client has it: one that is ended earlier never does.
            wait_for(
                lambda: margin(writes - 1, seen(), leader) is not None,
                f"strace did not see the last of {writes} writes on two disks and answered",
            )
        finally:
            for tracer in tracers:
                tracer.terminate()
                tracer.wait(20)
    calls = seen()
    found: list[float] = []
    for number in range(writes):
        after = margin(number, calls, leader)
        if after is None:
            raise RuntimeError(f"strace did not see write {number} on two disks and answered")
        found.append(after)
    return found


def main(
    writes: Annotated[int, typer.Option(min=1, help="how many, one after the other")] = 200,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
) -> None:
    """Traces the system calls of three nodes: is each write on two disks before it is answered? Ends with 1 if not."""
    console = Console()
    if shutil.which("strace") is None:
        console.print("[red]strace is not here: install it with `apt-get install strace`[/]")
        raise typer.Exit(8)
    with tempfile.TemporaryDirectory(prefix="raftlog-strace-", dir=data) as name:
        found = sorted(margins(Path(name), writes))
    early = sum(margin < 0 for margin in found)
    console.print(
        f"{writes} writes: {early} answered before fdatasync had returned on a majority; under strace the answer left "
        f"{found[0] * 1e6:,.0f} µs after it at the least, {found[len(found) // 2] * 1e6:,.0f} in the middle",
        soft_wrap=True,
    )
    if early:
        raise typer.Exit(1)
