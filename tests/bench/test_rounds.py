"""Tests that the rounds are interleaved, warmed up, and go on without a failing contender."""

from __future__ import annotations

import io
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from rich.console import Console

from bench.comparison.rounds import WARM_UP_S, Axis, Entrant, measure
from bench.contenders.raftlog import Raftlog
from bench.instruments.figures import Run
from bench.studies import growth

RUN = Run(4, 100, 50.0, 0, 1.0, 2.0, 3.0)


def test_every_contender_runs_once_a_round_after_an_uncounted_one() -> None:
    """What the machine does in between hits all of them; the first second of each is not in the figures."""
    told: list[tuple[str, int, int]] = []

    def entrant(name: str) -> Entrant:
        def run(count: int, seconds: int) -> Run:
            told.append((name, count, seconds))
            return RUN

        return Entrant(name, lambda: [os.getpid()], run, 10.0)

    axis = Axis("write", "ops/s", (4, 8), [entrant("a"), entrant("b")])
    figures = measure(axis, 2, 3, list, Console(file=io.StringIO()), {})
    warm = [("a", 4, WARM_UP_S), ("b", 4, WARM_UP_S)]
    assert told == [*warm, *([("a", 4, 3), ("b", 4, 3)] * 2), *([("a", 8, 3), ("b", 8, 3)] * 2)]
    assert [(each.contender, each.connections, len(each.runs)) for each in figures] == [
        ("a", 4, 2),
        ("b", 4, 2),
        ("a", 8, 2),
        ("b", 8, 2),
    ]
    assert figures[0].per_second == 500.0


def test_a_failing_contender_is_left_out_with_the_reason() -> None:
    """At the warm-up or later: the others go on, and the report says why one is missing."""

    def never(count: int, seconds: int) -> Run:
        raise RuntimeError("it does not\nlisten")

    def not_at_eight(count: int, seconds: int) -> Run:
        if count == 8:
            raise OSError("too many")
        return RUN

    def entrant(name: str, run: object) -> Entrant:
        return Entrant(name, lambda: [os.getpid()], run)  # type: ignore[arg-type]

    entrants = [entrant("a", never), entrant("b", not_at_eight), entrant("c", lambda count, seconds: RUN)]
    failed: dict[str, str] = {}
    figures = measure(Axis("write", "ops/s", (4, 8), entrants), 1, 1, list, Console(file=io.StringIO()), failed)
    assert [(each.contender, each.connections) for each in figures] == [("b", 4), ("c", 4), ("c", 8)]
    assert failed == {"a, write": "it does not listen", "b, write": "too many"}


def test_growth_puts_every_key_once() -> None:
    """In transactions that the shipped limit takes."""
    bodies = [msgspec.json.decode(body)["then"] for body in growth.puts(950, 1_230)]
    assert [len(body) for body in bodies] == [100, 100, 80]
    assert [put["key"] for body in bodies for put in body] == [f"key-{number:08d}" for number in range(950, 1_230)]


class _Answers(BaseHTTPRequestHandler):
    """Answers with the statuses that are given, one after the other, and remembers the bodies."""

    statuses: ClassVar[list[int]] = []
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.statuses.pop(0))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("statuses", "again_s", "asked"),
    [([200, 504, 503, 200], 60.0, [b"a", b"b", b"b", b"b"]), ([504], 0.0, [b"a"]), ([400], 60.0, [b"a"])],
)
def test_a_load_is_repeated_while_no_node_leads(
    statuses: list[int], again_s: float, asked: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """503 and 504 are repeated where that is allowed, to the leader of the moment; any other answer ends the load."""
    monkeypatch.setattr(_Answers, "statuses", list(statuses))
    monkeypatch.setattr(_Answers, "bodies", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            monkeypatch.setattr(Raftlog, "url", f"http://127.0.0.1:{server.server_address[1]}")
            ours = Raftlog(tmp_path)
            if statuses[-1] == 200:
                assert ours.ask_all("POST", "/", [b"a", b"b"], "text/plain", again_s=again_s) == b"{}"
            else:
                with pytest.raises(RuntimeError, match=f"answered {statuses[-1]}"):
                    ours.ask_all("POST", "/", [b"a", b"b"], "text/plain", again_s=again_s)
        finally:
            server.shutdown()
            thread.join()
    assert _Answers.bodies == asked
