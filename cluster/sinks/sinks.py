"""Keeps stores up to date from the log, each record exactly once, through kills of either side.

    from pathlib import Path
    from raftlog import SyncClient, sinks

    file = sinks.read_sinks(Path("sinks.toml"))
    with SyncClient(url) as client:
        sinks.run_of(file, "customers", client).run(once=True)

A store of one's own is a class with the methods of `SinkStore`; `SinkRun` runs it. docs/sinks.md shows one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import stamina

from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.client import consumers as requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.runtime import clock
from raftlog.cluster.sinks.changes import UNCHANGED, RowChange, RowChanges, StorePosition
from raftlog.cluster.sinks.discovery import first_records, found_columns
from raftlog.cluster.sinks.kept_files import Rejected, Rejects, RunStateFile
from raftlog.cluster.sinks.mapping import RowMapping, SinkSource
from raftlog.cluster.sinks.retry import RetryCounts, retry
from raftlog.cluster.sinks.runner import (
    RETRY_MAX_S,
    MoreColumns,
    SinkRun,
    SinkStep,
    SinkStopped,
    learn_schemas,
    start_of_rebuild,
)
from raftlog.cluster.sinks.settings import SinkFile, SinkSettings, read_sinks
from raftlog.cluster.sinks.store import (
    BESIDE,
    DroppableStore,
    PositionMoved,
    Refusal,
    RowsRefused,
    SinkIdentity,
    SinkStore,
    StoredRows,
    StoreError,
    StoreFenced,
    StoreUnavailable,
    check_owner,
)
from raftlog.cluster.sinks.verify import VerifyResult, verify

__all__ = [
    "UNCHANGED",
    "PositionMoved",
    "Preview",
    "Refusal",
    "Rejects",
    "RetryCounts",
    "RowChange",
    "RowChanges",
    "RowsRefused",
    "SinkFile",
    "SinkIdentity",
    "SinkRun",
    "SinkSettings",
    "SinkSource",
    "SinkStep",
    "SinkStopped",
    "SinkStore",
    "StoreError",
    "StoreFenced",
    "StorePosition",
    "StoreUnavailable",
    "StoredRows",
    "VerifyResult",
    "check_owner",
    "preview",
    "read_sinks",
    "rebuild",
    "rejects_of",
    "retry",
    "run_of",
    "state_of",
    "verify",
    "wait",
]

_PREVIEW_ROWS: Final = 10
_POLL_S: Final = 0.02
_EXCHANGES_MAX: Final = 10
"""How many times a rebuild tries to exchange: ten take some ten seconds, and a runner learns of it within one."""


def rejects_of(file: SinkFile, name: str) -> Rejects:
    """The rejected records of a sink: NAME.rejected beside its file."""
    return Rejects(file.beside(name, "rejected"))


def state_of(file: SinkFile, name: str) -> RunStateFile:
    """What the newest run of a sink on this machine does: NAME.state beside its file."""
    return RunStateFile(file.beside(name, "state"))


def run_of(
    file: SinkFile,
    name: str,
    client: SyncClient,
    *,
    owner: str = "",
    stop: threading.Event | None = None,
    tell: Callable[[str], None] = lambda _: None,
    at: Callable[[SinkStep], None] = lambda _: None,
) -> SinkRun:
    """A run of a sink of the file. Raises SinkSettingsError, StoreError, ClientError."""
    sink = with_columns(file, name, client)
    store, rejects = file.open_store(name), rejects_of(file, name)
    more = _more_columns(file, name, lambda: file.open_store(name))
    return SinkRun(
        name,
        sink,
        store,
        client,
        rejects,
        owner=owner,
        more_columns=more,
        stop=stop,
        tell=tell,
        keep_state=state_of(file, name).keep,
        at=at,
    )


def _more_columns(file: SinkFile, name: str, opened: Callable[[], SinkStore]) -> MoreColumns:
    """Keeps further columns of a sink, and opens its store with them."""

    def more(columns: Mapping[str, str]) -> tuple[SinkSettings, SinkStore]:
        file.learn(name, {**file.sinks[name].mapping().given, **columns})
        return file.sinks[name], opened()

    return more


def with_columns(file: SinkFile, name: str, client: SyncClient) -> SinkSettings:
    """The settings of a sink. columns = "all" that are not known yet are found, and kept in NAME.columns.

    Raises SinkSettingsError, StoreError, ClientError, OSError.
    """
    sink = file.chosen([name])[name]
    if sink.columns == "all":
        file.learn(name, found_columns(name, sink, client))
    return file.sinks[name]


class Preview(NamedTuple):
    """What a sink would store: where its store is, its columns with their places and types, and its first rows."""

    store: str
    columns: list[str]
    rows: list[dict[str, Any]]


def preview(file: SinkFile, name: str, client: SyncClient) -> Preview:
    """Connects to the store, and maps the first ten rows; writes nothing.

    Raises SinkSettingsError, Misfit, StoreError, ClientError.
    """
    sink = file.chosen([name])[name]
    if sink.columns == "all":
        sink = msgspec.structs.replace(sink, columns=found_columns(name, sink, client))
    mapping = sink.mapping()
    columns = [f"{each.name} = {each.place}{f':{each.kind}' if each.kind else ''}" for each in mapping.columns]
    learn_schemas(mapping, client)
    changes = (change for record in first_records(client) for change in mapping.of_record(record).rows)
    rows = (change.row for change in changes if change.row is not None)
    first = [dict(zip(mapping.names, row, strict=True)) for row in islice(rows, _PREVIEW_ROWS)]
    return Preview(_where(file, name, sink, mapping, client), columns, first)


def _where(file: SinkFile, name: str, sink: SinkSettings, mapping: RowMapping, client: SyncClient) -> str:
    """A sentence on the store. Raises StoreError where it cannot be reached."""
    path = getattr(sink, "path", None)
    if path is not None and not (file.path.parent / path).exists():
        return f"{path} is not there, and will be made"
    store = sink.store(file.path.parent, mapping)
    try:
        with store.rows(sink.identity(name, client.status().log)) as stored:
            if stored is None:
                return "the store is reached, and has nothing of this sink"
            return f"the store is reached, and has every change below index {stored.position.next}"
    finally:
        store.close()


def rebuild(
    file: SinkFile,
    name: str,
    client: SyncClient,
    *,
    owner: str = "",
    tell: Callable[[str], None] = lambda _: None,
    at: Callable[[SinkStep], None] = lambda _: None,
) -> SinkRun:
    """Fills a sink's store again beside the old one, and exchanges both. Readers see one whole store at any moment.

    A killed rebuild goes on with what it has filled. The runner of the sink stops at the end. The rejected records are
    those of the new rows then; after a kill at the exchange those of the old rows too, which `retry` removes.

    Raises SinkSettingsError, SinkStopped, StoreError, ClientError, OSError.
    """
    sink = with_columns(file, name, client)
    store: Any = file.open_store(name)
    if not hasattr(store, "beside"):
        raise StoreError(
            f"the store of {name} has no rows to rebuild: raftlog sink drop {name} --yes and raftlog sink run {name} "
            f"send everything again"
        )
    _check_start(name, sink, client)
    identity = sink.identity(name, client.status().log)
    beside: DroppableStore = store.beside()
    rejects = Rejects(file.beside(name + BESIDE, "rejected"))
    try:
        if beside.open(identity, 0) is None:
            rejects.path.unlink(missing_ok=True)
    except StoreFenced:  # a killed rebuild has left it, and this one goes on
        pass
    except StoreUnavailable:
        raise
    except StoreError:  # what another rebuild has left
        beside.drop(identity)
        rejects.path.unlink(missing_ok=True)
    finally:
        beside.close()
    filled: Any = file.open_store
    more = _more_columns(file, name, lambda: filled(name).beside())
    run = SinkRun(name, sink, beside, client, rejects, owner=owner, beside=True, more_columns=more, tell=tell, at=at)
    run.run(once=True)
    generation = client.consumer(f"sink/{name}").claim(owner=owner).generation  # the runner of the old store stops
    own = rejects_of(file, name)
    rejected: list[Rejected] = []
    attempts = stamina.retry_context(on=PositionMoved, attempts=_EXCHANGES_MAX, timeout=None, wait_max=RETRY_MAX_S)
    for attempt in attempts:  # that runner writes on until it reports
        with attempt:
            run.run(once=True)
            rejected = rejects.read()
            own.replace(dict.fromkeys([*own.read(), *rejected]))  # a kill on either side of the exchange loses none
            try:
                store.exchange(identity, generation)
            except PositionMoved as error:
                tell(f"{name}: {error}")
                raise
            finally:
                store.close()
    at(SinkStep.EXCHANGED)
    own.replace(rejected)
    rejects.path.unlink(missing_ok=True)
    client.call(requests.delete(f"sink/{name}{BESIDE}"))
    return run


def _check_start(name: str, sink: SinkSettings, client: SyncClient) -> None:
    """Raises StoreError where a rebuild would silently lack rows that the store has."""
    oldest = client.log_page(NUMBER_MAX, limit=1).oldest
    if sink.start == "newest":
        lacking = 'start = "newest" would leave out all rows'
    elif sink.start != "state" and oldest > (1 if sink.start == "oldest" else sink.start):
        lacking = f"the log begins at index {oldest}, so the new rows would lack what only older records say"
    else:
        return
    raise StoreError(f"{name}: {lacking}: set start = {start_of_rebuild(sink, oldest)}, and rebuild again")


def wait(file: SinkFile, name: str, client: SyncClient, index: int, *, timeout_s: float = 30.0) -> StorePosition:
    """Returns when the store of a sink has every change up to `index`. Raises StoreError after the time."""
    sink = file.chosen([name])[name]
    store, identity = file.open_store(name), sink.identity(name, client.status().log)
    until = clock.monotonic() + timeout_s
    try:
        while True:
            with store.rows(identity) as stored:
                position = None if stored is None else stored.position
            if position is not None and position.loaded is None and position.next > index:
                return position
            if clock.monotonic() > until:
                there = "has nothing yet" if position is None else f"is at {position.next}"
                raise StoreError(f"the store of {name} {there} after {timeout_s:g} s, not past {index}: is it running?")
            threading.Event().wait(_POLL_S)
    finally:
        store.close()
