"""Breaks links between peers: slow, narrow, held back, cut within a message, closed, refused, all broken at once."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from raftlog.chaos.deploy.deployment import client_proxy
from raftlog.chaos.deploy.toxiproxy import ToxiproxyError
from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis, Toxic, peers
from raftlog.chaos.sim.network.topologies import alone, only

LASTS_S: Final = (1.0, 3.0)
HELD_S: Final = (0.8, 2.0)  # longer than an election takes: bytes that are released then are of an old term
CONNECT_S: Final = 2.0

LATENCY_MS: Final = 75
JITTER_MS: Final = 50  # etcd's robustness suite: 75 ± 50 ms
_LATER: Final = (("latency", LATENCY_MS), ("jitter", JITTER_MS))
RATE_KB_S: Final = 16
HALF_BYTES: Final = (1, 4_000)


def _of_one(kind: str, attributes: Callable[[Field], Sequence[tuple[str, int]]]) -> Callable[[Field], Injection]:
    """The toxic on all links of one node to and from its peers."""

    def inject(field: Field) -> Injection:
        node = field.chance.choice(field.nodes)
        chosen = tuple(attributes(field))
        pairs = alone(field.nodes, node)
        proof = field.place(Toxic(proxy, kind, "upstream", chosen) for proxy in peers(pairs))
        words = ", ".join(f"{name} {value}" for name, value in chosen)
        return Injection(f"links of node {node}: {words}", proof, field.forget)

    return inject


def _latency(field: Field) -> Injection:
    """All links, so that every round takes that much longer."""
    proof = field.place(Toxic(proxy, "latency", "upstream", _LATER) for proxy in peers(only(field.nodes, ())))
    return Injection(f"all links {LATENCY_MS} ± {JITTER_MS} ms", proof, field.forget)


def _client_latency(field: Field) -> Injection:
    node = field.chance.choice(field.nodes)
    proof = field.place([Toxic(client_proxy(node), "latency", "downstream", _LATER)])
    return Injection(f"answers of node {node} {LATENCY_MS} ± {JITTER_MS} ms late", proof, field.forget)


def _late(field: Field) -> Injection:
    """What the leader sends is held back, and arrives when another may lead."""
    leader = field.leader()
    pairs = [(leader, node) for node in field.nodes if node != leader]
    proof = field.place(Toxic(proxy, "bandwidth", "upstream", (("rate", 0),)) for proxy in peers(pairs))
    return Injection(f"what leader {leader} sends is held back, then delivered", proof, field.forget)


def _refuse(field: Field) -> Injection:
    node = field.chance.choice(field.nodes)
    pairs = alone(field.nodes, node)
    proof = field.disable(peers(pairs))
    listen = field.deployment.peer_address(*pairs[0])
    return Injection(f"node {node} and its peers", f"{proof}; a dial met {refusal(listen)}", field.forget)


def _reset(field: Field) -> Injection:
    """Connections are closed when it begins (an RST is for those opened after it), and every new one is reset."""
    node = field.chance.choice(field.nodes)
    pairs = alone(field.nodes, node)
    proof = field.place(Toxic(proxy, "reset_peer", "upstream", (("timeout", 0),)) for proxy in peers(pairs))
    listen = field.deployment.peer_address(*pairs[0])
    return Injection(f"links of node {node}", f"{proof}; a connection met {end_of(listen)}", field.forget)


def _broken(chosen: Callable[[Field], Sequence[tuple[int, int]]], whose: str) -> Callable[[Field], Injection]:
    """Ends all connections on some links together, and lets the nodes dial again: one short break.

    Connections of the harness show it: one stands on each link before, and has to end. A healthy leader stays: where
    no other fault lasts, the term is the same before and after.
    """

    def inject(field: Field) -> Injection:
        pairs = chosen(field)
        with ExitStack() as opened:
            try:
                own = [opened.enter_context(_dialled(field.deployment.peer_address(*pair))) for pair in pairs]
            except OSError as error:  # the proxy is disabled by another fault
                raise FaultSkipped(f"a link is not open to dials: {_named(error)}") from None
            before, since_ns = _term(field), time.monotonic_ns()
            field.deployment.toxiproxy.drop(peers(pairs), f"f{field.number}")
            ended = sum(map(_has_ended, own))
        if ended < len(own):
            raise ToxiproxyError(f"{len(own) - ended} of {len(own)} connections outlived the break of their links")
        took_ms = (time.monotonic_ns() - since_ns) / 1e6

        def heal() -> str:
            return f"term {before} before, {_term(field)} after"

        proof = f"{ended} connections on {len(pairs)} links ended within {took_ms:.0f} ms"
        return Injection(f"all links of {whose}", proof, heal, since_ns)

    return inject


def _term(field: Field) -> int:
    """The newest term that a node reports; 0 if no node answers."""
    statuses = [field.deployment.cluster.status(node) for node in field.deployment.cluster.running]
    return max((each.term for each in statuses if each is not None), default=0)


def _dialled(address: str) -> socket.socket:
    """A connection through that proxy."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), CONNECT_S)


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def refusal(address: str) -> str:
    """What a dial meets."""
    try:
        with _dialled(address):
            return "a listener"
    except OSError as error:
        return _named(error)


def end_of(address: str) -> str:
    """What a connection meets that says a word: how it ends."""
    try:
        with _dialled(address) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(b"\0")
            return "a close" if connection.recv(1) == b"" else "an answer"
    except OSError as error:
        return _named(error)


def _named(error: OSError) -> str:
    return errno.errorcode.get(error.errno, str(error)) if error.errno else str(error) or type(error).__name__


_nemesis: Final = partial(Nemesis, lane="quality", lasts_s=LASTS_S)

NEMESES: Final = (
    _nemesis("latency", f"all links take {LATENCY_MS} ± {JITTER_MS} ms longer", _latency),
    _nemesis("client-latency", "answers of one node come late", _client_latency),
    _nemesis(
        "bandwidth",
        f"one node's links carry {RATE_KB_S} KB/s",
        _of_one("bandwidth", lambda field: [("rate", RATE_KB_S)]),
    ),
    _nemesis("late-delivery", "what the leader sends arrives after an election", _late, lasts_s=HELD_S),
    _nemesis(
        "half-messages",
        "one node's links close in the middle of a message, again and again",
        _of_one("limit_data", lambda field: [("bytes", field.chance.randint(*HALF_BYTES))]),
    ),
    _nemesis("reset", "one node's links are closed, new ones reset", _reset),
    _nemesis("refused", "one node's links are closed, new ones refused", _refuse),
    _nemesis(
        "broken-all",
        "all links end at the same moment, and can be dialled again at once",
        _broken(lambda field: only(field.nodes, ()), "all nodes"),
    ),
    _nemesis(
        "broken-leader",
        "all links of the leader end at the same moment, and can be dialled again at once",
        _broken(lambda field: alone(field.nodes, field.leader()), "the leader"),
    ),
)
