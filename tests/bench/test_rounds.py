"""The rounds are interleaved, warmed up, and go on without whoever fails."""

from __future__ import annotations

import io
import os

import msgspec
from rich.console import Console

from bench import growth
from bench.figures import Run
from bench.rounds import WARM_UP_S, Axis, Entrant, measure

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
        ("a", 4, 2), ("b", 4, 2), ("a", 8, 2), ("b", 8, 2),
    ]  # fmt: skip
    assert figures[0].per_second == 500.0


def test_who_fails_is_left_out_with_the_reason() -> None:
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
