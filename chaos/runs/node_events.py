"""Notes what happened inside the nodes during a run, from their own logs: installs, trims, backfills, elections.

The judgement needs it: a run without installs, trims and backfills says nothing about them. It also counts at how many
of these events a request was under way at that node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raftlog.chaos.judge.history import Operation
from raftlog.chaos.workloads.workload import Arena

EVERY_S: Final = 0.1

KINDS: Final[Mapping[bytes, str]] = {
    b'"event":"snapshot_saved"': "snapshots saved",
    b'"event":"snapshot_in_force"': "snapshots installed",
    b'"event":"log_trimmed"': "trims",
    b'"event":"log_deleted"': "deletions",
    b'"event":"backfill_segment"': "segments backfilled",
    b'"event":"became_leader"': "leaders elected",
    b'"event":"serving"': "starts",
}
"""Part of a line in a node's log -> kind of event."""

ANYWHERE: Final = ("trims", "leaders elected")
"""These concern every node, not only the one that logs them."""

MET: Final = ("snapshots installed", "trims", "leaders elected", "starts")
"""Requests must be under way at some of these."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An event in the log of a node; it was seen at `at_ns`, and happened at most `EVERY_S` before."""

    node: int
    kind: str
    at_ns: int


@dataclass(slots=True)
class NodeEvents:
    """Reads the nodes' logs while they grow. `files`: node -> its log."""

    arena: Arena
    files: Mapping[int, Path]
    seen: list[NodeEvent] = field(default_factory=list)
    _read: dict[int, int] = field(default_factory=dict)  # node -> bytes of whole lines read

    async def run(self) -> None:
        """Until the task is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Takes what came since the last look."""
        now_ns = self.arena.now_ns()
        for node, file in self.files.items():
            try:
                with file.open("rb") as lines:
                    lines.seek(self._read.get(node, 0))
                    text, _, _ = lines.read().rpartition(b"\n")
            except OSError:
                continue
            if text:
                self._read[node] = self._read.get(node, 0) + len(text) + 1
                self.seen += [NodeEvent(node, kind, now_ns) for line in text.splitlines() for kind in _kinds(line)]


def _kinds(line: bytes) -> Iterable[str]:
    return (kind for mark, kind in KINDS.items() if mark in line)


def counts_of(seen: Sequence[NodeEvent]) -> dict[str, int]:
    """How often each kind happened."""
    return {kind: sum(each.kind == kind for each in seen) for kind in KINDS.values()}


def met_of(seen: Sequence[NodeEvent], operations: Sequence[Operation]) -> dict[str, int]:
    """At how many events of each kind one of these operations was under way at that node, or at any."""
    spans: dict[object, list[tuple[int, int]]] = {}
    for each in operations:
        if each.called_ns is not None and each.returned_ns is not None:
            spans.setdefault(each.node, []).append((each.called_ns, each.returned_ns))
    everywhere = [span for of_node in spans.values() for span in of_node]
    met = dict.fromkeys(MET, 0)
    for event in seen:
        if event.kind in met:
            near = everywhere if event.kind in ANYWHERE else spans.get(event.node, [])
            before_ns = event.at_ns - int(EVERY_S * 1e9)
            met[event.kind] += any(called <= event.at_ns and returned >= before_ns for called, returned in near)
    return met
