"""Defines the axes of the bench: each starts its contenders and gives each of them its load."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.comparison.rounds import Axis, Entrant
from bench.contenders.etcd import TXN_OPERATIONS_MAX
from bench.contenders.field import Contender, Field
from bench.contenders.nats import Nats
from bench.contenders.raftlog import Raftlog
from bench.contenders.zookeeper import ZooKeeper
from bench.instruments import tools
from bench.instruments.figures import Run
from bench.loads import client_load, h2load, raw, stream_client, wrk

VALUE = b"x" * 256
CONNECTIONS = (1, 16, 64, 256, 1024)
BULK_CONNECTIONS = (4, 16)
IN_FLIGHT = (64, 256, 1024)
TASKS = 256
PAGE = 1_000
"""Records that peers are asked for at once, reading the log back."""
STREAM_RECORDS = 400_000
WRITE, READ, STREAM, COMMIT, CLIENT = "write", "linearizable read", "log stream", "commit in process", "client append"
BULK = "bulk append of {}"
SECURE_WRITE, SECURE_READ, HANDSHAKE = "write, secure", "linearizable read, secure", "TLS handshake"
SECURE_CONNECTIONS = (1, 64)
HANDSHAKE_CONNECTIONS = 16

Load = wrk.Load | h2load.Load
C = TypeVar("C", bound=Contender)


def _loaded(load: Load, folder: Path) -> Callable[[int, int], Run]:
    if isinstance(load, wrk.Load):
        return lambda count, seconds: wrk.run(load, connections=count, seconds=seconds, folder=folder)
    return lambda count, seconds: h2load.run(load, connections=count, seconds=seconds, folder=folder)


def writes(field: Field, connections: tuple[int, ...] = CONNECTIONS) -> list[Axis]:
    """One durable write a request."""
    entrants: list[Entrant] = []
    ours = (field.raftlog(), field.raftlog(fast_path=False))
    entrants += [_entrant(each.name, each, each.write(VALUE), field) for each in ours]
    entrants += [_entrant(each.name, each, each.write(VALUE), field) for each in field.floor()]
    for etcd in field.etcds():
        etcd.prepare(VALUE)
        entrants.append(_entrant(f"{etcd.name} gateway", etcd, etcd.gateway_put(VALUE), field))
        entrants.append(_entrant(f"{etcd.name} gRPC", etcd, etcd.grpc_put(VALUE), field))
    for keeper in field.zookeeper():
        keeper.prepare(VALUE)
        entrants.append(_made(keeper.name, keeper, lambda peer, c, s: raw.run(peer.set_data(VALUE, c, s))))
    return [Axis(WRITE, "ops/s", connections, entrants)]


def bulk(field: Field, connections: tuple[int, ...] = BULK_CONNECTIONS) -> list[Axis]:
    """Many records a request; rates in records. etcd stops at its own limit."""
    ours, etcds, keepers = field.raftlog(), field.etcds(), field.zookeeper()
    for keeper in keepers:
        keeper.prepare(VALUE)
    axes = []
    for count in (100, 1_000):
        entrants = [
            _entrant(f"{ours.name} JSON", ours, ours.bulk_json(VALUE, count), field, count),
            _entrant(f"{ours.name} msgpack", ours, ours.bulk_msgpack(VALUE, count), field, count),
        ]
        if count <= TXN_OPERATIONS_MAX:
            entrants += [
                _entrant(f"{each.name} gRPC", each, each.grpc_txn(VALUE, count), field, count) for each in etcds
            ]
        entrants += [_made(each.name, each, partial(_multi, count), count) for each in keepers]
        axes.append(Axis(BULK.format(count), "records/s", connections, entrants))
    return axes


def reads(field: Field, connections: tuple[int, ...] = CONNECTIONS) -> list[Axis]:
    """A linearizable get of one key."""
    entrants = []
    for ours in (field.raftlog(), field.raftlog(fast_path=False)):
        ours.prepare(VALUE)
        entrants.append(_entrant(ours.name, ours, ours.read(), field))
    for etcd in field.etcds():
        etcd.prepare(VALUE)
        entrants.append(_entrant(f"{etcd.name} gateway", etcd, etcd.gateway_get(), field))
        entrants.append(_entrant(f"{etcd.name} gRPC", etcd, etcd.grpc_get(), field))
    for keeper in field.zookeeper():
        keeper.prepare(VALUE)
        entrants.append(_made(keeper.name, keeper, lambda peer, c, s: raw.run(peer.get_data(c, s))))
    return [Axis(READ, "ops/s", connections, entrants)]


def secure(field: Field, connections: tuple[int, ...] = SECURE_CONNECTIONS) -> list[Axis]:
    """Single writes and reads with TLS and access control on both sides, and handshakes."""
    ours = field.raftlog(secure=True)
    ours.prepare(VALUE)
    written = [_entrant(ours.name, ours, ours.write(VALUE), field)]
    read = [_entrant(ours.name, ours, ours.read(), field)]
    shaken = [_entrant(ours.name, ours, ours.handshake(), field)]
    for etcd in field.etcds(secure=True):
        etcd.prepare(VALUE)
        written.append(_entrant(f"{etcd.name} gRPC", etcd, etcd.grpc_put(VALUE), field))
        read.append(_entrant(f"{etcd.name} gRPC", etcd, etcd.grpc_get(), field))
        shaken.append(_entrant(etcd.name, etcd, etcd.handshake(), field))
    return [
        Axis(SECURE_WRITE, "ops/s", connections, written),
        Axis(SECURE_READ, "ops/s", connections, read),
        Axis(HANDSHAKE, "handshakes/s", (HANDSHAKE_CONNECTIONS,), shaken),
    ]


def stream(field: Field, records: int = STREAM_RECORDS) -> list[Axis]:
    """Reading the log back, in MB of values a second; one reader."""
    ours = field.raftlog()
    body = msgspec.msgpack.encode([VALUE] * PAGE)
    ours.ask_all("POST", "/v1/log", [body] * (records // PAGE), "application/msgpack")
    entrants = [
        _made(f"{ours.name} {name}", ours, partial(_read_log, form, records))
        for name, form in (("raw", "raw"), ("JSON", "ndjson"))
    ]
    page_mb = PAGE * len(VALUE) / 1e6
    for etcd in field.etcds():
        etcd.prepare(VALUE, 10 * PAGE)
        entrants.append(_entrant(f"{etcd.name} gRPC range", etcd, etcd.grpc_range(PAGE), field, page_mb))
    for nats in field.nats(synced=False):
        raw.run(nats.publish(VALUE, 256, 120, records))
        entrants.append(
            _made(f"{nats.name} pull", nats, lambda peer, _, s: raw.run(peer.pull(PAGE, records, s)), page_mb)
        )
    return [Axis(STREAM, "MB/s", (1,), entrants)]


def commits(field: Field, in_flight: tuple[int, ...] = IN_FLIGHT) -> list[Axis]:
    """Commits without HTTP: from within the leader's process, or by NATS's own protocol."""
    ours = field.raftlog()
    size = len(VALUE)
    entrants = [_made(ours.name, ours, lambda peer, c, s: peer.commit(size, c, s))]
    entrants += [_made(nats.name, nats, _publish) for nats in field.nats()]
    return [Axis(COMMIT, "commits/s", in_flight, entrants)]


def clients(field: Field, tasks: tuple[int, ...] = (TASKS,)) -> list[Axis]:
    """`await append(x)` from many tasks of one Python process."""
    ours = field.raftlog()
    size = len(VALUE)
    urls = ",".join(ours.cluster.urls)
    entrants = [
        _made(f"{ours.name} client", ours, lambda _, c, s: client_load.run("raftlog", urls, c, s, size)),
    ]
    others = field.nats(older=False)
    if others:
        packages = tools.python_packages("nats")
        entrants += [
            _made(
                f"nats-py, {each.name}",
                each,
                lambda peer, c, s: client_load.run("nats", peer.url, c, s, size, packages),
            )
            for each in others
        ]
    return [Axis(CLIENT, "ops/s", tasks, entrants)]


def _publish(nats: Nats, in_flight: int, seconds: int) -> Run:
    nats.purge()  # so that many rounds do not fill the disk
    return raw.run(nats.publish(VALUE, in_flight, seconds))


def _multi(operations: int, keeper: ZooKeeper, count: int, seconds: int) -> Run:
    return raw.run(keeper.multi(VALUE, operations, count, seconds))


def _read_log(form: str, records: int, ours: Raftlog, _: int, seconds: int) -> Run:
    return stream_client.run(ours.url, form, records, len(VALUE), seconds)


def _made(name: str, contender: C, run: Callable[[C, int, int], Run], scale: float = 1.0) -> Entrant:
    return Entrant(name, lambda: contender.pids, lambda count, seconds: run(contender, count, seconds), scale)


def _entrant(name: str, contender: Contender, load: Load, field: Field, scale: float = 1.0) -> Entrant:
    return Entrant(name, lambda: contender.pids, _loaded(load, field.folder), scale)


AXES: dict[str, Callable[..., list[Axis]]] = {
    "writes": writes,
    "bulk": bulk,
    "reads": reads,
    "stream": stream,
    "commits": commits,
    "clients": clients,
    "secure": secure,
}
