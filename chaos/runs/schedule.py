"""Draws the faults of a run from its seed: when each begins, how long it lasts, and the chance it may use.

Faults of one lane follow each other; lanes overlap. So at times a partition, a killed node and a slow link come
together, but two faults never hit the same process. A schedule depends only on the seed, the seconds and the kinds. It
does not fix the leader at the beginning of a fault: a fault that aims at the leader is repeated with the leader of the
moment.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

QUIET_START_S: Final = 1.0
"""Before the first fault: what a calm cluster does is in every report."""

QUIET_END_S: Final = 1.0
"""Between the last fault and the end of the load."""

GAP_S: Final = (1.0, 6.0)
"""Between two faults of one lane."""

HEAVY_EVERY: Final = 4
"""Of the kinds that take several starts of a node, beside others: so that they do not eat the time of all others."""

ALWAYS_EVERY_S: Final = 20.0
"""In each lane its first fault, and after this time the next one, is of the kinds that every run has."""

Lasting = tuple[float, float]
"""Seconds, from and to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault to come. `draw` seeds its own choices, such as which nodes stand on which side."""

    number: int
    nemesis: str
    lane: str
    at_s: float
    lasts_s: float
    draw: int

    def __str__(self) -> str:
        return f"{self.number:>4} {self.at_s:8.3f} s {self.lasts_s:6.3f} s  {self.lane:<8} {self.nemesis}"


def schedule(
    seed: int,
    seconds: float,
    kinds: Mapping[str, tuple[str, Lasting]],
    heavy: Collection[str] = (),
    always: Collection[str] = (),
) -> tuple[PlannedFault, ...]:
    """The faults of a run of that many seconds, in order of their beginnings.

    `kinds`: per nemesis its lane and how long it may last. In each lane every kind comes once before any comes again;
    but of `heavy` ones beside others only one in `HEAVY_EVERY` comes in each turn. One of the `always` kinds of a lane
    is its first fault, and another one follows every `ALWAYS_EVERY_S`.
    """
    lanes: dict[str, list[str]] = {}
    for name, (lane, _) in sorted(kinds.items()):
        lanes.setdefault(lane, []).append(name)
    drawn: list[PlannedFault] = []
    for lane, names in sorted(lanes.items()):
        light = _Deck([name for name in names if name not in heavy and name not in always])
        some, first = (_Deck([name for name in names if name in each]) for each in (heavy, always))
        drawn += _lane(random.Random(f"{seed}/{lane}"), seconds, lane, (light, some, first), kinds)
    drawn.sort(key=lambda each: (each.at_s, each.lane))
    return tuple(replace(each, number=number) for number, each in enumerate(drawn, start=1))


@dataclass(slots=True)
class _Deck:
    """Kinds in an order of chance, each once before any comes again."""

    names: Sequence[str]
    left: list[str] = field(default_factory=list)

    def draw(self, chance: random.Random, count: int) -> list[str]:
        drawn: list[str] = []
        while self.names and len(drawn) < count:
            if not self.left:
                self.left = list(self.names)
                chance.shuffle(self.left)
            drawn.append(self.left.pop())
        return drawn


def _turn(chance: random.Random, light: _Deck, heavy: _Deck) -> list[str]:
    """All light kinds and some heavy ones among them, or all heavy ones where there are no others."""
    some = -(-len(heavy.names) // HEAVY_EVERY) if light.names else len(heavy.names)
    turn = [*light.draw(chance, len(light.names)), *heavy.draw(chance, some)]
    chance.shuffle(turn)
    return turn


def _lane(
    chance: random.Random,
    seconds: float,
    lane: str,
    decks: tuple[_Deck, _Deck, _Deck],
    kinds: Mapping[str, tuple[str, Lasting]],
) -> list[PlannedFault]:
    """The faults of one lane; `decks` are its light, its heavy and its `always` kinds."""
    light, heavy, always = decks
    drawn: list[PlannedFault] = []
    turn: list[str] = []
    now = QUIET_START_S + chance.uniform(0, GAP_S[1])
    always_at = 0.0
    while True:
        if not turn:
            turn = _turn(chance, light, heavy)
        if always.names and (now >= always_at or not turn):
            (name,) = always.draw(chance, 1)
            always_at = now + ALWAYS_EVERY_S
        else:
            name = turn.pop()
        at_s, lasts_s = round(now, 3), round(chance.uniform(*kinds[name][1]), 3)
        draw = chance.getrandbits(32)
        if at_s + lasts_s > seconds - QUIET_END_S:
            return drawn
        drawn.append(PlannedFault(number=0, nemesis=name, lane=lane, at_s=at_s, lasts_s=lasts_s, draw=draw))
        now = at_s + lasts_s + chance.uniform(*GAP_S)
