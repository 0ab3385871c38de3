"""Measures what open consoles cost a leader: its writes with none and with 500, in turns, and its processor time.

A console asks what the overview asks, once a second. The writers, the consoles and the nodes are processes of their
own. `python -m bench.studies.consoles` prints a line a round, and the medians.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from bench.comparison.axes import VALUE
from bench.loads import raw
from raftlog import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster

ASKED = ("/v1/overview",)
"""What a console asks once a second; with `--apart` the same from five routes."""
APART = ("/v1/status", "/v1/members", "/v1/explain/leaderless", "/v1/events?after=100000", "/v1/history?step=1&rows=5")
_WRITERS = 64
_WRITE = b"POST /v1/log HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(VALUE), VALUE)
_RECEIVE_BYTES = 1 << 18


class _Console:
    """A connection that stays open, and what it still asks for in this second."""

    def __init__(self, port: int, first: float, targets: Sequence[str]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.targets, self.due, self.left, self.seen, self.length = targets, first, 0, b"", 0

    def ask(self) -> None:
        self.sock.sendall(b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % self.targets[self.left - 1].encode())
        self.seen, self.length = b"", 0

    def take(self) -> bool:
        """Whether the answer is whole."""
        self.seen += self.sock.recv(_RECEIVE_BYTES)
        if not self.length and (end := self.seen.find(b"\r\n\r\n")) >= 0:
            head = self.seen[:end].lower()
            assert head.startswith(b"http/1.1 200"), head
            self.length = end + 4 + int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return 0 < self.length <= len(self.seen)


def look(port: int, consoles: int, seconds: float, targets: Sequence[str]) -> tuple[int, int]:
    """So many consoles, for a while; how many answers came, and their bytes."""
    begin = time.monotonic()
    opened = [_Console(port, begin + number / consoles, targets) for number in range(consoles)]
    answers = size = at = 0
    with selectors.DefaultSelector() as selector:
        for each in opened:
            selector.register(each.sock, selectors.EVENT_READ, each)
        while (now := time.monotonic()) < begin + seconds:
            while opened[at].due <= now:
                if not opened[at].left:  # a page asks again only once it has its answers
                    opened[at].left = len(targets)
                    opened[at].ask()
                opened[at].due += 1
                at = (at + 1) % consoles
            for key, _ in selector.select(max(0.0, opened[at].due - now)):
                console = key.data
                if console.take():
                    answers, size = answers + 1, size + len(console.seen)
                    console.left -= 1
                    if console.left:
                        console.ask()
    return answers, size


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _round(port: int, pid: int, consoles: int, seconds: float, more: Sequence[str] = ()) -> tuple[float, float]:
    """Writes a second, and microseconds of the leader's processor time for each write."""
    words = [sys.executable, "-m", "bench.studies.consoles", "--port", str(port)]
    words += ["--consoles", str(consoles), "--seconds", str(seconds + 1), *more]
    asking = subprocess.Popen(words, stdout=subprocess.PIPE, text=True) if consoles else None
    time.sleep(1)
    before = _processor_s(pid)
    answers = raw.Answers(b"HTTP/1.1 200", b"HTTP/1.1 5")
    run = raw.run(raw.Job(port, _WRITE, answers, connections=_WRITERS, seconds=seconds))
    spent = _processor_s(pid) - before
    said = asking.communicate()[0].strip() if asking else ""
    cost = spent / run.requests * 1e6
    print(
        f"{consoles:4} consoles: {run.per_second:8,.0f} writes/s, {cost:6.1f} µs each, {run.bad} bad {said}", flush=True
    )
    return run.per_second, cost


def main(
    consoles: Annotated[int, typer.Option(min=1)] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="seconds of a round")] = 8.0,
    rounds: Annotated[int, typer.Option(min=1)] = 4,
    port: Annotated[int, typer.Option(help="only asks that node")] = 0,
    apart: Annotated[bool, typer.Option("--apart", help="asks five routes in place of one")] = False,
) -> None:
    """Prints writes a second with no console and with so many, in turns."""
    if port:
        answers, size = look(port, consoles, seconds, APART if apart else ASKED)
        print(f"{answers / seconds:,.0f} answers/s of {size / max(1, answers):,.0f} bytes")
        return
    more = ["--apart"] if apart else []
    with tempfile.TemporaryDirectory(prefix="raftlog-consoles-") as folder, LocalCluster(Path(folder), 3) as cluster:
        cluster.restore()
        with SyncClient(cluster.urls) as client:
            leader = client.status().leader
        assert leader is not None
        pid, at = cluster.pid(leader.node), int(leader.url.rpartition(":")[2])
        assert pid is not None
        _round(at, pid, 0, 2)
        found = [[_round(at, pid, number, seconds, more) for number in (0, consoles)] for _ in range(rounds)]
        cluster.kill(*cluster.running)
    ratios = [with_them[0] / without[0] for without, with_them in found]
    shares = [with_them[0] * (with_them[1] - without[1]) / 1e6 for without, with_them in found]
    print(f"with {consoles} consoles {median(ratios):.3f} of the writes; they take {median(shares):.3f} of a processor")


if __name__ == "__main__":
    typer.run(main)
