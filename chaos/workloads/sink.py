"""Writes single keys, which a real sink copies into a table of SQLite while its runner is killed and paused.

Another program reads position and rows of the table together, again and again. Each such sample must be the fold of the
log up to its position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.register import Registers

PREFIX: Final = "sink/"
SAMPLE_EVERY_S: Final = 0.1
BEGINS_S: Final = 60.0

StoreSample = tuple[int, dict[str, str]]
"""The position of a store and its values by key, as of one moment."""


class Sink(Protocol):
    """The sink's processes and store (`raftlog.chaos.deploy.sink_process.SinkProcess`)."""

    def start(self) -> object: ...
    def sample(self) -> StoreSample | None: ...
    def finish(self) -> list[str]: ...
    @property
    def log(self) -> Path: ...


@dataclass(slots=True)
class SinkCopies(Registers):
    """The workload, its sink, and what the store had."""

    name: str = "sink"
    processes: int = 4
    prefix: str = PREFIX
    sink: Sink | None = None
    samples: list[StoreSample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    async def prepare(self) -> None:
        """The sink begins before anything is there to be copied."""
        assert self.sink is not None
        self.sink.start()
        end = asyncio.get_running_loop().time() + BEGINS_S
        while not self.samples:
            if asyncio.get_running_loop().time() > end:
                raise RuntimeError(f"the sink has not begun after {BEGINS_S:g} s: {self.sink.log}")
            await self._sample()

    async def run(self) -> None:
        """All processes, and the reader of the table."""
        sampling = asyncio.create_task(self._sample_all())
        await Registers.run(self)
        await sampling

    async def _sample_all(self) -> None:
        while not self.arena.stopping.is_set():
            await self._sample()

    async def _sample(self) -> None:
        assert self.sink is not None
        if (found := await asyncio.to_thread(self.sink.sample)) is not None:
            self.samples.append(found)
        await asyncio.sleep(SAMPLE_EVERY_S)

    async def finish(self, last_index: int) -> None:
        """Brings the store to the end of the log."""
        assert self.sink is not None
        self.problems += await asyncio.to_thread(self.sink.finish)
        await self._sample()

    def judge(self, log: LogTruth) -> list[str]:
        """Each sample is the fold of the log up to its position; the last one has the whole log."""
        return self.problems + compared(self.samples, [*log.values(self.prefix)])


def compared(samples: Sequence[StoreSample], changes: Sequence[tuple[int, str, str | None]]) -> list[str]:
    """The first difference between the samples of a store and the fold of the changes, each with index, key, value."""
    rows: dict[str, str] = {}
    left = iter(changes)
    change = next(left, None)
    for position, found in sorted(samples, key=lambda each: each[0]):
        while change is not None and change[0] < position:
            _, key, value = change
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
            change = next(left, None)
        if found != rows:
            key = min(key for key in {*found, *rows} if found.get(key) != rows.get(key))
            said = f"{key} is {found.get(key)} in the store and {rows.get(key)} in the log"
            return [f"at position {position} the store of the sink differs from the log: {said}"]
    if change is not None and samples:
        return [f"the store of the sink ends at {samples[-1][0]}, and the log has a change at {change[0]}"]
    return []
