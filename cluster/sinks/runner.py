"""Runs a sink: reads the log behind the store's position, maps records, and writes batches.

The store's position decides where to go on. The consumer group of the sink follows the store: it shows the lag, and
keeps the log from being trimmed. Its generation is the store's: a second runner that claims the group fences the first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, ParamSpec, TypeVar

import stamina

from raftlog.cluster.api.values import NUMBER_MAX, SHARD
from raftlog.cluster.client import requests
from raftlog.cluster.client.answers import LogPage, Record
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import ClientError, Compacted, ConsumerFenced, OutcomeUnknown, Unavailable
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.freed_memory import return_large_blocks
from raftlog.cluster.sinks.changes import MappedRecord, RowChange, RowChanges, SinkBatch, StorePosition
from raftlog.cluster.sinks.following import LogFollower, StateLoad, first_index
from raftlog.cluster.sinks.kept_files import Rejects, RunPhase
from raftlog.cluster.sinks.mapping import Misfit, NewMembers, RowMapping
from raftlog.cluster.sinks.settings import SinkSettings
from raftlog.cluster.sinks.store import (
    BESIDE,
    PositionMoved,
    RowsRefused,
    SinkStore,
    StoreError,
    StoreFenced,
    StoreUnavailable,
)

P = ParamSpec("P")
T = TypeVar("T")

PAGE_RECORDS: Final = 1_000
"""Records of the log in one request, or keys of its state."""

WAIT_MS: Final = 1_000
"""How long a request waits for a record at the end of the log."""

REPORT_S: Final = 1.0
"""How often the consumer group is moved, and the position of a store that gets no rows."""

RETRY_MAX_S: Final = 2.0
"""Longest pause before a store or cluster that does not answer is tried again."""


VERIFIER: Final = "raftlog sink verify"
"""Owner of a sink's group while its rows are compared."""

VERIFIER_DONE: Final = f"{VERIFIER} (done)"
"""Owner of the group after that, until a run claims it again."""

VERIFY_MAX_S: Final = 600.0
"""Longest time that a run waits for the comparison; one that was killed never gives the group back."""

VERIFY_POLL_S: Final = 0.1

MoreColumns = Callable[[Mapping[str, str]], tuple[SinkSettings, SinkStore]]
"""Keeps columns that the log has brought, and gives the sink and its store with them."""


class SinkStep(StrEnum):
    """Steps of a run, for tests that kill it there."""

    CLAIMED = "claimed"
    OPENED = "opened"
    MAPPED = "mapped"
    WRITTEN = "written"
    REPORTED = "reported"
    EXCHANGED = "exchanged"  # of a rebuild
    READ = "read"  # of a verify, and the next one
    COMPARED = "compared"


class SinkStopped(Exception):
    """A sink that cannot go on. The message names sink, index and key, and says what to do."""

    exit_code = 1  # of the command line


class SinkProgress:
    """What a run has done, for status and metrics; written by the thread of the run alone."""

    def __init__(self) -> None:
        self.position: StorePosition | None = None
        self.behind = 0  # indexes of the log that the store lacks
        self.rows = 0
        self.batches = 0
        self.rejected = 0
        self.split = 0
        self.batch_s = 0.0
        self.error = ""

    @property
    def next_index(self) -> int:
        """The first index that the store lacks; 0 before it is known."""
        return 0 if self.position is None else self.position.next

    @property
    def is_failing(self) -> bool:
        """Whether the store or the cluster is being tried again."""
        return bool(self.error)


class SinkRun:
    """One sink, which `run` keeps up to date until `stop` is set; or, with `beside`, the store that a rebuild fills."""

    def __init__(
        self,
        name: str,
        sink: SinkSettings,
        store: SinkStore,
        client: SyncClient,
        rejects: Rejects,
        *,
        owner: str = "",
        beside: bool = False,
        more_columns: MoreColumns | None = None,
        stop: threading.Event | None = None,
        tell: Callable[[str], None] = lambda _: None,
        keep_state: Callable[[RunPhase, str], None] = lambda *_: None,
        at: Callable[[SinkStep], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.progress = SinkProgress()
        self._sink = sink
        self._store = store
        self._mapping = sink.mapping()
        self._client = client
        self._rejects = rejects
        self._owner = owner
        self._group = client.consumer(f"sink/{name}{BESIDE if beside else ''}")
        self._more_columns = more_columns
        self._stop = stop or threading.Event()
        self._tell = tell
        self._keep_state = keep_state
        self._at = at
        self._claims = 0  # that were sent; of several, one without an answer may take effect late
        self._reported_s = 0.0
        self._sent: StorePosition | None = None  # by the newest batch of this session
        self._noted: set[str] = set()  # notes of the store that were printed

    def run(self, *, once: bool = False, until: int | None = None, skip: int | None = None) -> None:
        """Writes what comes; with `once` up to the committed end of the log, with `until` up to that index.

        The record at `skip` goes to the rejected ones. A store or cluster that does not answer is tried again.
        Raises SinkStopped, ClientError, OSError.
        """
        return_large_blocks()
        try:
            self._run(once=once, until=until, skip=skip)
        except (SinkStopped, ClientError, OSError) as error:
            self._keep_state("stopped", str(error))
            raise
        self._keep_state("ended", "")

    def _run(self, *, once: bool, until: int | None, skip: int | None) -> None:
        attempts = stamina.retry_context(
            on=(StoreUnavailable, PositionMoved, Unavailable, OutcomeUnknown),
            attempts=None,
            timeout=None,
            wait_max=RETRY_MAX_S,
        )
        for attempt in attempts:
            if self._stop.is_set():
                return
            with attempt:
                try:
                    self._with_new_columns(once=once, until=until, skip=skip)
                except (StoreFenced, ConsumerFenced) as error:
                    self._claim_again(error)
                except (StoreUnavailable, PositionMoved, Unavailable, OutcomeUnknown) as error:
                    self.progress.error = str(error)
                    self._tell(f"{self.name}: {error}; trying again")
                    self._keep_state("retrying", str(error))
                    raise
                except StoreError as error:
                    raise SinkStopped(f"{self.name}: {error}") from error
                finally:
                    self._store.close()

    def _claim_again(self, error: Exception) -> None:
        """Has the next try claim the sink again: once `sink verify` no longer holds it, or where a claim of this run
        that had no answer came late.

        Raises StoreUnavailable for that try, or SinkStopped where another runner holds it.
        """
        owner = self._group.status().owner
        if owner == self._owner and self._claims > 1:
            self._claims, self._group.owned = 0, None
            raise StoreUnavailable("a claim of this run that had no answer came late") from error
        if owner not in (VERIFIER, VERIFIER_DONE):
            raise SinkStopped(f"{self.name}: another runner has taken over ({error}); this one stops") from error
        self._store.close()
        until = clock.monotonic() + VERIFY_MAX_S
        while self._group.status().owner == VERIFIER and clock.monotonic() < until and not self._stop.is_set():
            self._stop.wait(VERIFY_POLL_S)
        self._group.owned = None
        raise StoreUnavailable("sink verify has held the sink") from error

    def _with_new_columns(self, *, once: bool, until: int | None, skip: int | None) -> None:
        """Goes on from the store's position with each column that the log brings."""
        while True:
            try:
                return self._session(once=once, until=until, skip=skip)
            except NewMembers as error:
                if self._more_columns is None:
                    raise SinkStopped(f"{self.name}: {error}") from error
                self._tell(f"{self.name}: {error}")
                self._store.close()
                self._sink, self._store = self._more_columns(error.columns)
                self._mapping = self._sink.mapping()

    def _session(self, *, once: bool, until: int | None, skip: int | None) -> None:
        """From a claim to the end, or to an error."""
        log, group, self._sent = self._client.status().log, self._group, None
        if once:
            until = self._end().last_user_index
        if group.owned is None:  # one claim serves all tries
            self._claims += 1
            group.claim(owner=self._owner, start=self._first_of_group())
        assert group.owned is not None
        self._at(SinkStep.CLAIMED)
        try:
            position = self._store.open(self._sink.identity(self.name, log), group.owned.generation)
        except StoreFenced as error:
            self._check_log_reaches(error.generation + 1)
            raise
        self._at(SinkStep.OPENED)
        for note in getattr(self._store, "notes", ()):
            if note not in self._noted:
                self._noted.add(note)
                self._tell(f"{self.name}: {note}")
        self._look_back(position, group.owned.position.next[SHARD])
        if position is None or position.loaded is not None:
            position = self._begun(position)
        learn_schemas(self._mapping, self._client)
        if skip is not None and position.next > skip:
            raise SinkStopped(f"{self.name}: the store is at index {position.next} already, behind {skip}")
        self.progress.position, self.progress.error = position, ""
        self._keep_state("running", "")
        self._follow(LogFollower(position, until), skip)

    def _look_back(self, position: StorePosition | None, reached: int) -> None:
        """Says it where the store is behind what its group has `reached`. Raises SinkStopped where the log would be
        left out, or lacks what the store has."""
        if position is not None:
            self._check_log_reaches(position.next)
            if position.next < reached:
                self._tell(
                    f"{self.name}: the store is back at index {position.next}, from {reached}: it was restored from an "
                    f"older state, and gets the log again from there"
                )
        elif reached > max(self._end().oldest, self._first_of_group() or 0):
            lost = f"{self.name}: the store was at index {reached}, and has no position any more"
            if self._sink.start == "newest":
                raise SinkStopped(f'{lost}: start = "newest" would leave out what it lacks. Name another start')
            self._tell(f"{lost}: it was emptied, and is filled again")

    def _check_log_reaches(self, index: int) -> None:
        """Raises SinkStopped where the log ends before the entry in front of `index`, which the store knows."""
        if index > (end := self._end().committed) + 1:
            raise SinkStopped(
                f"{self.name}: the store is at index {index}, and the log ends with {end}: the cluster was restored "
                f"from a backup, and lost what the store has. raftlog sink rebuild {self.name} fills it again"
            )

    def _first_of_group(self) -> int | None:
        """Where a new group of this sink begins: not before what the sink wants to read."""
        return self._sink.start if isinstance(self._sink.start, int) else None

    # -- the beginning --------------------------------------------------------------------------------------------
    def _begun(self, position: StorePosition | None) -> StorePosition:
        """The position from which the log is read, in the store too."""
        if self._sink.start == "state":
            return self._loaded(position)
        begun = StorePosition(first_index(self._sink.start, self._end()))
        self._store.write(RowChanges(()), position, begun)
        return begun

    def _end(self) -> LogPage:
        """A page behind the log: it says where the log begins and ends."""
        return self._client.log_page(NUMBER_MAX, limit=1)

    def _loaded(self, position: StorePosition | None) -> StorePosition:
        """Loads the keys as of one index, page by page; a load that was killed goes on at its newest page."""
        prefix = (self._sink.source.keys or "").encode()
        load, end = StateLoad(position, prefix), requests.prefix_end(prefix)
        while not load.is_done and not (load.position is not None and self._stop.is_set()):
            try:
                page = self._client.range_page(load.start, end, limit=PAGE_RECORDS, at=load.revision)
            except Compacted:
                self._tell(
                    f"{self.name}: the revision {load.revision} of the half loaded state is compacted: it begins again"
                )
                self._put(load.begun_again(self._client.range_page(b"", limit=1)))
                continue
            index, of_item = load.index(page), self._mapping.of_item
            rows = [row for item in page.items if (row := self._fitting(of_item, item, index)) is not None]
            self._put(load.batch(page, rows))
        self._settle()
        assert load.position is not None
        return load.position

    # -- the log --------------------------------------------------------------------------------------------------
    def _follow(self, follower: LogFollower, skip: int | None) -> None:
        while not self._stop.is_set() and not follower.is_done:
            self._follow_page(follower, skip)
        self._report(follower.position)

    def _follow_page(self, follower: LogFollower, skip: int | None) -> None:
        """Writes the batches of the next page. Nothing of it is held while the one after it is read."""
        page = self._page(follower.next_index, follower.until, WAIT_MS if follower.may_wait else 0)
        is_due = clock.monotonic() >= self._reported_s + REPORT_S
        mapped = (self._mapped(record, skip) for record in page.records)
        for batch in follower.batches(page, mapped, is_due=is_due):
            self._put(batch)
        self.progress.behind, self.progress.split = follower.behind, follower.split
        if not page.records:
            self._settle()
        if is_due and not follower.is_done:
            self._report(follower.position)

    def _page(self, first: int, until: int | None, wait_ms: int) -> LogPage:
        to = None if until is None else until + 1
        try:
            return self._client.log_page(first, to=to, limit=PAGE_RECORDS, wait_ms=wait_ms)
        except Compacted as error:
            raise SinkStopped(
                f"{self.name}: the store needs the log from index {first} on, and that is trimmed ({error}): "
                f"{self._choices_of_start()}, or drop it and begin at another start"
            ) from error

    def _choices_of_start(self) -> str:
        """What fills the store of a trimmed log again."""
        if self._sink.start == "state":
            return f"raftlog sink rebuild {self.name} fills it from the state of the keys"
        start = start_of_rebuild(self._sink, self._end().oldest)
        return f"set start = {start}, then raftlog sink rebuild {self.name} fills it again"

    def _mapped(self, record: Record, skip: int | None) -> MappedRecord:
        if record.index == skip:
            self._reject(record.index, "", "skipped by hand")
            return MappedRecord(record.index)
        return self._fitting(self._mapping.of_record, record) or MappedRecord(record.index)

    def _fitting(self, mapped: Callable[P, T], *given: P.args, **more: P.kwargs) -> T | None:
        """The row of a record; None of one that does not fit, and goes to the rejected ones. Raises SinkStopped."""
        try:
            return mapped(*given, **more)
        except NewMembers:
            raise
        except Misfit as error:
            if self._sink.refused == "stop":
                raise SinkStopped(f"{self.name}: {error}. {self._choices(error.index)}") from error
            shown = "" if error.key is None else error.key.decode("utf-8", "backslashreplace")
            self._reject(error.index, shown, error.reason)
            return None

    def _choices(self, index: int) -> str:
        return (
            f"Correct the settings or the store and start again; or raftlog sink skip {self.name} {index}; or set "
            f'refused = "reject"'
        )

    def _reject(self, index: int, key: str, reason: str) -> None:
        self._rejects.add(index, key, reason)
        self.progress.rejected += 1

    def _put(self, batch: SinkBatch) -> None:
        """Writes a batch, without the rows that the store refuses where these are rejected."""
        changes, send = batch.changes, getattr(self._store, "send", None)
        began = clock.monotonic()
        while True:
            self._at(SinkStep.MAPPED)
            try:
                (send or self._store.write)(changes, batch.expected, batch.next)
                break
            except RowsRefused as error:
                first = error.refusals[0].change
                if self._sink.refused == "stop":
                    raise SinkStopped(f"{self.name}: {error}. {self._choices(first.index)}") from error
                for refusal in error.refusals:
                    key = ", ".join(map(str, refusal.change.key))
                    self._reject(refusal.change.index, key, refusal.reason)
                changes = _without(changes, (refusal.change for refusal in error.refusals))
        self._at(SinkStep.WRITTEN)
        self._sent = batch.next
        if send is None:
            self._settle()
        self.progress.rows += len(changes.rows)
        self.progress.batches += 1
        self.progress.batch_s = clock.monotonic() - began

    def _settle(self) -> None:
        """Waits until a `SendingStore` has the newest batch."""
        if self._sent is not None:
            if hasattr(self._store, "settle"):
                self._store.settle()
            self.progress.position, self._sent = self._sent, None

    def _report(self, position: StorePosition) -> None:
        """Moves the group to where the store is, also back."""
        self._settle()
        assert self._group.owned is not None
        there = self._group.owned.position.next[SHARD]
        if there != position.next:
            self._group.commit(position.next, reset=position.next < there)
        self._reported_s = clock.monotonic()
        self._at(SinkStep.REPORTED)


def records_between(client: SyncClient, first: int, end: int) -> Iterator[Record]:
    """The records of the log from `first` on, before the index `end`, page by page. Raises ClientError."""
    while first < end:
        page = client.log_page(first, to=end, limit=PAGE_RECORDS)
        yield from page.records
        first = page.next if page.next > first else end


def start_of_rebuild(sink: SinkSettings, oldest: int) -> str:
    """The `start` from which a store can be filled again, from a log that begins at index `oldest`."""
    return '"state"' if sink.source.has_keys else f"{oldest} to have what the log has"


def learn_schemas(mapping: RowMapping, client: SyncClient) -> None:
    """Gives the mapping of an import's rows the schemas that the cluster keeps. Raises ClientError."""
    if (prefix := mapping.schema_prefix) is not None:
        mapping.learn((each.key, each.value) for each in client.range(prefix=prefix))


def _without(changes: RowChanges, refused: Iterable[RowChange]) -> RowChanges:
    left = {change.key for change in refused}
    return changes._replace(rows=tuple(row for row in changes.rows if row.key not in left))
