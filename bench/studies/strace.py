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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from rich.console import Console

from raftlog.cluster.node.local_cluster import LocalCluster

TRACED: Final = "trace=pwrite64,fdatasync,write,writev,sendto,sendmsg"
_LINE: Final = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_ATTACH_S: Final = 20.0


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


def margins(folder: Path, writes: int) -> list[float]:
    """For each write how many seconds the answer left after the second node had it on its disk. Raises RuntimeError."""
    with LocalCluster(folder / "raftlog") as cluster:
        cluster.start()
        cluster.wait_ready(timeout_s=120.0)
        leader = cluster.leader()
        tracers: list[subprocess.Popen[bytes]] = []
        files = {node: folder / f"{node}.strace" for node in cluster.nodes}
        try:
            for node, file in files.items():
                words = ["strace", "-f", "-ttt", "-T", "-s", "4096", "-e", TRACED, "-p", str(cluster.pid(node))]
                tracers.append(subprocess.Popen([*words, "-o", str(file)], stderr=subprocess.DEVNULL))
            until = time.monotonic() + _ATTACH_S
            while not all(file.exists() and file.stat().st_size for file in files.values()):
                if time.monotonic() > until or any(tracer.poll() is not None for tracer in tracers):
                    raise RuntimeError("strace saw nothing: may this user trace its own processes (ptrace_scope)?")
                time.sleep(0.05)
            connection = http.client.HTTPConnection(cluster.url(leader).removeprefix("http://"), timeout=60)
            for number in range(writes):
                _write(connection, f"value-{number:06}.", f"traced-{number:06}.")
            connection.close()
        finally:
            for tracer in tracers:
                tracer.terminate()
                tracer.wait(20)
    seen = {node: list(events(file.read_text("utf-8", "replace").splitlines())) for node, file in files.items()}
    found: list[float] = []
    for number in range(writes):
        synced = [durable_at(f"value-{number:06}.", calls) for calls in seen.values()]
        answered = answered_at(f"traced-{number:06}.", seen[leader])
        durable = sorted(each for each in synced if each is not None)
        if answered is None or len(durable) < 2:
            raise RuntimeError(f"write {number}: answered {answered}, on {len(durable)} disks, as far as strace saw")
        found.append(answered - durable[1])
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
