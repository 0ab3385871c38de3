"""Makes links between peers repeat, reorder or change frames, and client requests begin with a bad byte.

The stock Toxiproxy cannot do it. `chaos/toxics` can, if set-up found Go to build it; otherwise these faults are
skipped. Some of its toxics cut a stream into frames, so that whole frames with a right CRC come twice or late. Then
only the node's own protection is left. Others cut it into slices of bytes, which tear frames. The toxics count their
changes: no fault counts as installed before it changed something.

The toxics never change answers to clients or bodies of requests. HTTP over TCP carries no checksum of ours. So a
changed value would look like a value that some client wrote, and a repeated request like a second request. They may
change only the first byte of a request, which no node can take for a request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from raftlog.chaos.deploy.toxiproxy_server import ToxiproxyNotFoundError, own_server_path
from raftlog.chaos.nemesis.fault import Field, Injected, Nemesis, Skipped, Toxic, both_ways, client, peers

Kind = Literal["duplicate", "reorder", "corrupt"]
Pairs = Sequence[tuple[int, int]]

LASTS_S: Final = (1.5, 4.0)
MET_S: Final = 2.0
"""Within it something must have met the toxic: a leader's heartbeats come every 60 ms."""

CHUNKS: Final = 0
FRAMES: Final = 1
REQUESTS: Final = 2
"""What a toxic takes as one piece: `units` in chaos/toxics."""

PERMILLE: Final = {"duplicate": (50, 500), "reorder": (50, 300), "corrupt": (5, 50)}
"""Of the pieces, drawn per fault. A changed one costs the connection, so fewer: between two the node is to work."""

DISTANCE_MAX: Final = 8
WAIT_MS: Final = 150  # a piece that is kept back goes out after it, when nothing else comes
HELLO_BYTES: Final = 300  # about: half of the faults spare the first words of a connection
SLICE: Final = (("average_size", 200), ("size_variation", 120), ("delay", 0))
DONE: Final = {"duplicate": "came twice", "reorder": "were kept back", "corrupt": "were changed"}
_CLOSED: Final = re.compile(rb'^raftlog_link_closed_total\{reason="refused"\} ([0-9.e+]+)', re.MULTILINE)


def _inject(
    field: Field, kind: Kind, units: int, proxies: Sequence[str], where: str, receivers: Sequence[int]
) -> Injected:
    """Places the toxic on these proxies and waits until it met something; `receivers` are the nodes that see it."""
    try:
        own_server_path()
    except ToxiproxyNotFoundError as missing:
        raise Skipped(str(missing)) from missing
    if units != CHUNKS and field.deployment.cluster.is_secure:
        raise Skipped(f"TLS hides {_UNITS[units]} from the proxy")
    attributes = {
        "units": units,
        "permille": field.chance.randint(*PERMILLE[kind]) if units != REQUESTS else 200,
        "after": field.chance.choice((0, HELLO_BYTES)),
        "seed": field.chance.getrandbits(31),
    }
    if kind != "corrupt":
        attributes |= {"distance": field.chance.randint(1, DISTANCE_MAX), "wait_ms": WAIT_MS}
    closed = _closed(field, receivers)
    wanted = [
        toxic
        for proxy in proxies
        for toxic in (
            *([Toxic(proxy, "slicer", "upstream", SLICE)] if units == CHUNKS else []),
            Toxic(proxy, kind, "upstream", tuple(attributes.items())),
        )
    ]
    since_ns = time.monotonic_ns()
    proof = field.place(wanted)
    of_kind = [placed for placed, toxic in zip(field.placed, wanted, strict=True) if toxic.kind == kind]
    end = time.monotonic() + MET_S
    while not (done := _done(field, of_kind)):
        if time.monotonic() > end:
            field.forget()
            raise Skipped(f"nothing that passed {where} within {MET_S:g} s was met")
        time.sleep(0.02)

    def heal() -> str:
        done = _done(field, of_kind)
        field.forget()
        told = f"{done} {_UNITS[units]} {DONE[kind]}"
        after = _closed(field, receivers)
        more = sum(max(0, after[node] - closed[node]) for node in receivers if node in after and node in closed)
        return f"{told}; nodes refused {more} connections" if receivers else told

    said = ", ".join(f"{name} {value}" for name, value in attributes.items() if name != "seed")
    return Injected(f"{where}: {said}", f"{proof}; {done} {_UNITS[units]} {DONE[kind]} by then", heal, since_ns)


_UNITS: Final = {CHUNKS: "pieces", FRAMES: "frames", REQUESTS: "requests"}


def _done(field: Field, placed: Sequence[tuple[str, str]]) -> int:
    """How many pieces the toxics say that they met."""
    return sum(int(field.deployment.toxiproxy.attributes(proxy, name)["done"]) for proxy, name in placed)


def _closed(field: Field, nodes: Sequence[int]) -> dict[int, int]:
    """How many peer connections each of these nodes has refused so far, as far as it answers."""
    found: dict[int, int] = {}
    for node in nodes:
        try:
            status, body = field.deployment.cluster.ask(node, "/metrics", timeout_s=1.0)
        except OSError:
            continue
        if status == 200:
            told = _CLOSED.search(body)
            found[node] = int(float(told[1])) if told else 0
    return found


def _link(field: Field) -> tuple[str, Pairs]:
    """One direction between the leader and another: a link on which something is sent."""
    leader = field.leader()
    other = field.chance.choice([node for node in field.nodes if node != leader])
    sender, to = (leader, other) if field.chance.random() < 0.5 else (other, leader)
    return f"the link from node {sender} to {to}", [(sender, to)]


def _node(field: Field) -> tuple[str, Pairs]:
    node = field.chance.choice(field.nodes)
    return f"all links of node {node}", both_ways(node, field.nodes)


def _of_peers(kind: Kind, units: int, place: Callable[[Field], tuple[str, Pairs]]) -> Callable[[Field], Injected]:
    def inject(field: Field) -> Injected:
        where, pairs = place(field)
        return _inject(field, kind, units, peers(pairs), where, sorted({to for _, to in pairs}))

    return inject


def _requests(field: Field) -> Injected:
    node = field.chance.choice(field.nodes)
    return _inject(field, "corrupt", REQUESTS, [client(node)], f"clients of node {node}", [])


_nemesis: Final = partial(Nemesis, lane="quality", lasts_s=LASTS_S)

NEMESES: Final = (
    _nemesis("duplicate-link", "frames of one link come twice, the second time perhaps late",
             _of_peers("duplicate", FRAMES, _link)),
    _nemesis("duplicate-node", "frames from and to one node come twice", _of_peers("duplicate", FRAMES, _node)),
    _nemesis("duplicate-bytes", "slices of one node's streams come twice: frames are torn",
             _of_peers("duplicate", CHUNKS, _node)),
    _nemesis("reorder-link", "frames of one link overtake each other", _of_peers("reorder", FRAMES, _link)),
    _nemesis("reorder-node", "frames from and to one node overtake each other", _of_peers("reorder", FRAMES, _node)),
    _nemesis("reorder-bytes", "slices of one node's streams overtake each other: frames are torn",
             _of_peers("reorder", CHUNKS, _node)),
    _nemesis("corrupt-link", "bits of one link turn", _of_peers("corrupt", FRAMES, _link)),
    _nemesis("corrupt-node", "bits turn on all links of one node", _of_peers("corrupt", FRAMES, _node)),
    _nemesis("corrupt-requests", "requests to one node begin with a bad byte", _requests),
)  # fmt: skip
