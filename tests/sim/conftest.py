"""Ends the processes of every world that a test made: their coroutines are closed, and not found by the collector."""

from collections.abc import Iterator
from typing import Any

import pytest

from raftlog.chaos.sim.world.world import World


@pytest.fixture(autouse=True)
def worlds_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls `World.end` for each world that the test left running."""
    running: dict[int, World] = {}
    begin, end = World.__init__, World.end

    def begun(world: World, *arguments: Any, **named: Any) -> None:
        begin(world, *arguments, **named)
        running[id(world)] = world

    def ended(world: World) -> None:
        running.pop(id(world), None)
        end(world)

    monkeypatch.setattr(World, "__init__", begun)
    monkeypatch.setattr(World, "end", ended)
    yield
    for world in list(running.values()):
        world.end()
