"""A space-time diagram of the end of a run: one HTML page with a lane per node and an arrow per message.

Time runs to the right. Lanes show role and term, stubs are lost messages, bands are faults, and a red line is where the
property broke. The page needs nothing beside itself: the events are in it as JSON, diagram.html draws them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from raftlog.chaos.sim.ground.trace import DOWN, EVERYONE, ROLE_MARKS, Event, View
from raftlog.cluster.drawing.page import with_data
from raftlog.raft.types import NodeId

WINDOW_US: Final = 15_000_000
"""How much of the end is in the page: some thousand messages, which a browser draws at once."""

FIRST_VIEW_US: Final = 1_000_000
"""How much of it the page shows at first."""

ROLE_OF_MARK: Final = {mark: str(role.value) for role, mark in ROLE_MARKS.items()} | {DOWN: "down"}


@dataclass(frozen=True, slots=True)
class Caption:
    """What the page says beside the picture. `broken` is (time, property, detail), None for a run that held."""

    title: str
    command: str
    facts: Sequence[str] = ()
    broken: tuple[int, str, str] | None = None


def page(events: Iterable[Event], caption: Caption, *, window_us: int = WINDOW_US) -> str:
    """The page over the last `window_us` of these events, which are in the order of time."""
    return with_data(Path(__file__).with_name("diagram.html"), picture(list(events), caption, window_us))


def picture(events: Sequence[Event], caption: Caption, window_us: int) -> dict[str, Any]:
    """What the page draws, as plain values."""
    end_us = max(events[-1].time_us if events else 0, caption.broken[0] if caption.broken else 0)
    start_us = max(events[0].time_us if events else 0, end_us - window_us)
    nodes = list(range(1, len(events[-1].cluster) + 1)) if events else []
    broken = None
    if caption.broken is not None:
        at_us, name, detail = caption.broken
        broken = {"at_us": at_us, "property": name, "detail": detail}
    return {
        "title": caption.title,
        "command": caption.command,
        "facts": list(caption.facts),
        "broken": broken,
        "start_us": start_us,
        "end_us": max(end_us, start_us + 1),
        "first_view_us": FIRST_VIEW_US,
        "nodes": nodes,
        "spans": {node: _spans(events, node, start_us, end_us) for node in nodes},
        "messages": _messages(events, start_us, end_us),
        "lines": [
            {"at_us": event.time_us, "node": event.node, "text": event.text}
            for event in events
            if event.time_us >= start_us and event.kind in {"line", "state"} and event.text
        ],
        "faults": [
            {
                "at_us": event.time_us, "number": event.number, "kind": _fault_kind(event), "nodes": list(event.nodes),
                "lasts_us": event.lasts_us, "text": event.text,
            }
            for event in events
            if event.kind == "fault" and event.time_us + event.lasts_us >= start_us
        ],
    }  # fmt: skip


def _fault_kind(event: Event) -> str:
    """`kill` of `FAULT 7 kill on 2 …`."""
    return event.text.removeprefix(f"FAULT {event.number} ").partition(" on ")[0]


def _spans(events: Sequence[Event], node: NodeId, start_us: int, end_us: int) -> list[dict[str, Any]]:
    """What that node was, as stretches of one role and term that fill the time."""
    spans: list[dict[str, Any]] = []

    def close(until_us: int) -> None:
        if spans:
            spans[-1]["to_us"] = until_us

    for event in events:
        if event.node != node or event.node == EVERYONE:
            continue
        shown = _shown(event.view)
        if spans and (spans[-1]["role"], spans[-1]["term"]) == shown:
            continue
        close(event.time_us)
        spans.append({"from_us": event.time_us, "to_us": end_us, "role": shown[0], "term": shown[1]})
    close(end_us)
    for span in spans:
        span["from_us"] = max(span["from_us"], start_us)
    return [span for span in spans if span["to_us"] >= start_us]


def _shown(view: View) -> tuple[str, int]:
    return ROLE_OF_MARK[view.mark], view.term


def _messages(events: Sequence[Event], start_us: int, end_us: int) -> list[dict[str, Any]]:
    """An arrow for every copy that arrived or was lost, and one for each message that is still on its way."""
    sent: dict[int, Event] = {}
    arrows: list[dict[str, Any]] = []
    arrived: set[int] = set()
    for event in events:
        match event.kind:
            case "sent":
                sent[event.number] = event
            case "delivered" | "lost":
                arrived.add(event.number)
                if event.time_us >= start_us:
                    # one that was sent before the record begins comes out of the left edge
                    arrows.append(_arrow(sent.get(event.number), event, event.time_us, event.kind))
    for number, event in sent.items():
        if number not in arrived and event.time_us >= start_us:
            arrows.append(_arrow(event, event, end_us, "flying"))
    return sorted(arrows, key=lambda arrow: (arrow["sent_us"], arrow["number"]))


def _arrow(sent: Event | None, event: Event, end_us: int, fate: str) -> dict[str, Any]:
    text = sent.text if sent is not None else event.text
    if fate == "lost":
        text += " " + event.text[event.text.find("lost:") :]
    elif fate == "flying":
        text += " still on its way"
    kind = event.text.split()[2]
    return {
        "number": event.number, "kind": kind, "from": event.nodes[0], "to": event.nodes[1],
        "sent_us": sent.time_us if sent is not None else max(0, event.time_us - 1_000), "end_us": end_us, "fate": fate,
        "text": text, "quiet": is_heartbeat(kind, text),
    }  # fmt: skip


def is_heartbeat(kind: str, text: str) -> bool:
    """Whether a message, as the trace words it, moves no entry and refuses nothing: what one hides at first."""
    if kind == "AppendEntries":
        return " +" not in text
    return kind == "AppendEntriesReply" and re.search(r" match (\d+) after \1 ", text) is not None
