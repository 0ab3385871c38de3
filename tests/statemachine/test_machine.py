"""Tests the state machine as a whole: order, unknown operations, known operations, determinism."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.statemachine import versions
from raftlog.statemachine.answers import Answer, Reason
from raftlog.statemachine.commands import (
    BadParameter,
    Command,
    Limits,
    LogEntry,
    Operation,
    RequestBlock,
    Result,
    UnknownCommand,
    Version,
)
from raftlog.statemachine.digest import EMPTY, Inside, NotYet, TooOld
from raftlog.statemachine.effects import Effects, KeyChange, RequestEffect
from raftlog.statemachine.entries import BadEntry, OutOfOrder
from raftlog.statemachine.machine import HalfApplied, StateMachine
from raftlog.statemachine.store import FutureRevision, RevisionCompacted
from raftlog.statemachine.versions import CLUSTER_VERSION, UnknownClusterVersion
from tests.statemachine import mixture
from tests.statemachine.driver import Driver, appends, request, snapshot_bytes

ROOT = Path(__file__).resolve().parents[2]


def test_entries_without_requests_move_the_marks_and_nothing_else() -> None:
    """No-op, clock and configuration entries are applied too: index, clocks, and one plain effect."""
    machine = StateMachine()
    assert machine.apply(LogEntry(1, 1, 1, 50, 7)) == Effects(1, 1, (), True)
    assert (machine.applied_index, machine.applied_term, machine.time_ms, machine.clock_ms) == (1, 1, 50, 7)
    assert (machine.revision, machine.digest()) == (1, EMPTY)


def test_appends_change_no_key_and_no_revision() -> None:
    """An entry of plain appends has plain effects, however many records it holds."""
    driver = Driver()
    assert driver.entry(appends(1000), appends(), request(Operation.APPEND, b"k", b"v")) == Effects(1002, 1, (), True)
    assert driver.machine.revision == 1


def test_appends_with_keys_are_appends_all_the_same() -> None:
    """However a request of nothing but appends was taken apart, its effects are plain."""
    driver = Driver()
    append = Command(Operation.APPEND, b"k", b"v")
    assert driver.entry(RequestBlock(2, (append, append))).is_plain
    assert (driver.machine.revision, driver.machine.applied_index) == (1, 2)


def test_put_and_delete_and_their_effects() -> None:
    """The effect of a put or delete names the version that it replaced. Key and value are the command's own, so not
    explicit.
    """
    driver = Driver()
    assert driver.entry(request(Operation.PUT, b"a", b"1")).requests == (
        RequestEffect(Result.APPLIED, 2, changes=(KeyChange(b"a", b"1", 0, 2, 1, False),)),
    )
    assert driver.put(b"a", b"") == Answer(Result.APPLIED, 3, 2, 2)
    assert driver.machine.get(b"a") == Version(b"", 2, 3, 2, 2)
    effects = driver.entry(request(Operation.DELETE, b"a"))
    assert effects.requests[0].changes == (KeyChange(b"a", None, 2, 0, 0, False),)
    assert driver.delete(b"a") == Answer(Result.APPLIED, 4, 4, 4)
    assert driver.put(b"a", b"2").revision == 5


def test_compare_and_set_by_the_mod_revision() -> None:
    """A put or delete with the key's mod revision is applied; with any other it fails and returns the present one."""
    driver = Driver()
    assert driver.put(b"a", b"1", 0).result is Result.APPLIED
    failed = driver.put(b"a", b"2", 0)
    assert (failed.result, failed.current_mod, failed.revision) == (Result.COMPARE_FAILED, 2, 2)
    assert driver.put(b"a", b"2", 2).result is Result.APPLIED
    missing = driver.delete(b"b", 7)
    assert (missing.result, missing.current_mod) == (Result.COMPARE_FAILED, 0)
    assert driver.delete(b"a", 2).result is Result.COMPARE_FAILED
    assert driver.delete(b"a", 3).deleted == 1
    assert driver.delete(b"a", 0).result is Result.APPLIED
    assert driver.machine.revision == 4


def test_delete_range_deletes_all_its_keys_as_one_revision() -> None:
    """Every key of [start, end) goes, explicitly named; hitting nothing is no revision; no end: to the last key."""
    driver = Driver()
    for key in (b"a", b"b", b"c"):
        driver.put(key, b"v")
    effects = driver.entry(request(Operation.DELETE_RANGE, b"a", b"c"))
    assert effects.requests[0].changes == (KeyChange(b"a", None, 1, 0, 0, True), KeyChange(b"b", None, 2, 0, 0, True))
    assert driver.machine.revision == 5
    assert driver.delete_range(b"a", b"c") == Answer(Result.APPLIED, 5, 5, 5)
    assert driver.delete_range(b"", b"").deleted == 1
    assert driver.machine.range(b"", None, 1)[1] == 0


def test_a_range_too_large_to_delete_at_once_is_refused_whole() -> None:
    """The time of one apply is bounded: more keys than `request_keys_max` are refused by name."""
    driver = Driver(Limits(request_keys_max=2))
    for key in (b"a", b"b", b"c"):
        driver.put(key, b"v")
    assert driver.delete_range(b"", b"").reason is Reason.TOO_MANY_KEYS
    assert driver.delete_range(b"a", b"c").deleted == 2


@pytest.mark.parametrize(
    "one",
    [
        request(Operation.PUT, None, b"v"),
        request(Operation.PUT, b"", b"v"),
        request(Operation.PUT, b"k" * 4097, b"v"),
        request(Operation.PUT, b"k", None),
        request(Operation.PUT, b"k", b"v", -1),
        request(Operation.DELETE, None),
        request(Operation.DELETE, b""),
        request(Operation.DELETE, b"k", b"v"),
        request(Operation.DELETE, b"k", None, -1),
        request(Operation.DELETE_RANGE, None, b""),
        request(Operation.DELETE_RANGE, b"a", None),
        request(Operation.TXN, None, None),
        request(Operation.TXN, None, b"\x93\x01\x90\x90"),
        request(Operation.COMPACT),
        request(Operation.COMPACT, argument=0),
        request(Operation.TRIM),
        request(Operation.TRIM, argument=0),
        request(Operation.DIGEST_POINT, b"k"),
        request(Operation.DIGEST_POINT, None, b"v"),
        RequestBlock(2, (Command(Operation.PUT, b"a", b"1"), Command(Operation.PUT, b"b", b"1"))),
        RequestBlock(2, (Command(Operation.APPEND, b"a", b"1"), Command(Operation.PUT, b"b", b"1"))),
        RequestBlock(2, (Command(Operation.VOID), Command(Operation.SESSION_OPEN))),
    ],
)
def test_malformed_requests_are_refused_and_change_nothing(one: RequestBlock) -> None:
    """Bad input has an outcome of its own, the same on every node; it never stops one."""
    driver = Driver()
    answer = driver.answer(one)
    assert (answer.result, answer.reason) == (Result.REFUSED, Reason.MALFORMED)
    assert (answer.first, answer.last) == (1, one.count)
    assert (driver.machine.revision, driver.machine.digest()) == (1, EMPTY)


def test_compaction_moves_the_oldest_revision_and_no_other() -> None:
    """It makes no revision; a repetition changes nothing and is no error; beyond the newest it is refused."""
    driver = Driver()
    for number in range(5):
        driver.put(b"a", b"%d" % number)
    assert driver.compact(4) == Answer(Result.APPLIED, 6, 6, 6)
    assert (driver.machine.compacted_revision, driver.machine.revision) == (4, 6)
    assert driver.compact(4).result is Result.APPLIED
    assert driver.compact(2).result is Result.APPLIED
    assert driver.machine.compacted_revision == 4
    beyond = driver.compact(7)
    assert (beyond.result, beyond.reason) == (Result.REFUSED, Reason.FUTURE_REVISION)
    with pytest.raises(RevisionCompacted):
        driver.machine.range(b"", None, 1, 3)
    with pytest.raises(FutureRevision):
        driver.machine.get(b"a", 7)


def test_a_trim_moves_the_oldest_index_forward_and_never_above_itself() -> None:
    """Whatever order trims come in, a repetition among them; it changes neither revision nor digest of the state."""
    driver = Driver()
    for number in range(5):
        driver.put(b"a", b"%d" % number)
    before = (driver.machine.revision, driver.machine.digest())
    assert driver.machine.oldest == 1
    assert driver.trim(4) == Answer(Result.APPLIED, 6, 6, 6)
    assert driver.trim(4).result is Result.APPLIED
    assert driver.trim(2).result is Result.APPLIED
    assert driver.machine.oldest == 4
    beyond = driver.trim(10)  # its own index is 9
    assert (beyond.result, beyond.reason) == (Result.REFUSED, Reason.FUTURE_INDEX)
    assert driver.machine.oldest == 4
    assert driver.trim(10).result is Result.APPLIED
    assert driver.machine.oldest == 10
    assert (driver.machine.revision, driver.machine.digest()) == before


def test_pitfall_80_no_change_is_lost_at_the_edge_of_a_compaction() -> None:
    """Guard: changes come from effects, which a compaction does not change. `index_of` refuses the compacted revision
    itself by name: a watch begins after a readable revision, or not at all. No change is missing between the state read
    at a revision and the changes after it, also when the last change was a delete.
    """
    driver = Driver()
    driver.put(b"a", b"1")
    driver.put(b"b", b"1")
    gone = driver.entry(request(Operation.DELETE, b"a"))
    assert gone.requests[0].changes[0].is_delete
    deleted_at = driver.machine.revision
    driver.put(b"b", b"2")
    driver.compact(deleted_at)
    state = {key: one.value for key, one in driver.machine.range(b"", None, 9, deleted_at)[0]}
    assert driver.machine.index_of(deleted_at + 1) == 4
    with pytest.raises(RevisionCompacted) as compacted:
        driver.machine.index_of(deleted_at)
    assert compacted.value.oldest == deleted_at + 1
    assert driver.machine.index_of(driver.machine.revision + 1) == driver.machine.applied_index + 1
    replica = StateMachine()
    for effects in driver.replay(replica)[3:]:
        for row in effects.requests:
            for change in row.changes:
                state[change.key] = change.value or b""
    assert state == {b"b": b"2"}
    assert driver.machine.range(b"", None, 9)[1] == 1


def test_pitfall_59_an_entry_is_applied_once_and_in_order() -> None:
    """Guard: `StateMachine._check` compares the entry's start with the applied index, which is part of the same state
    and the same snapshot. A lower entry is not silently skipped, a gap is not silently jumped, clocks and terms do not
    go back; nothing changes."""
    driver = Driver()
    driver.entry(appends(3))
    driver.put(b"a", b"1")
    before = snapshot_bytes(driver.machine)
    put = (request(Operation.PUT, b"a", b"2"),)
    for machine in (driver.machine, StateMachine.restore([before])):
        for index, count in ((4, 1), (3, 3), (6, 1), (5, 2), (4, 0)):
            with pytest.raises(OutOfOrder):
                machine.apply(LogEntry(index, 1, count, 0, 0, put * count))
        with pytest.raises(OutOfOrder, match="term"):
            machine.apply(LogEntry(5, 0, 1, 0, 0, put))
        assert snapshot_bytes(machine) == before
        machine.apply(LogEntry(5, 2, 1, 0, 9, put))
        with pytest.raises(OutOfOrder, match="clock"):
            machine.apply(LogEntry(6, 2, 1, 0, 8, put))


def test_an_apply_that_broke_off_is_not_taken_for_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an error breaks an apply off half-way, neither the next entry nor a snapshot takes the half for a whole."""
    driver = Driver()
    driver.put(b"a", b"1")

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("raftlog.statemachine.store.Store.commit", fail)
    with pytest.raises(MemoryError):
        driver.put(b"a", b"2")
    monkeypatch.undo()
    with pytest.raises(HalfApplied, match="entry 2"):
        driver.put(b"a", b"2")
    with pytest.raises(HalfApplied, match="entry 2"):
        driver.machine.snapshot()


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (LogEntry(2, 1, 1, 0, 0, (request(44, b"k"),)), UnknownCommand),
        (LogEntry(3, 1, 2, 0, 0, (request(2, b"k", b"v"), request(43, None, b"\x92\x02\x01"))), UnknownCommand),
        (LogEntry(2, 1, 1, 0, 0, (request(0),)), UnknownCommand),
        (
            LogEntry(4, 1, 3, 0, 0, (request(2, b"k", b"v"), RequestBlock(2, (Command(1), Command(99)))), None),
            UnknownCommand,
        ),
        (LogEntry(3, 1, 2, 0, 0, (request(2, b"k", b"v"), request(5, None, b"\x94\x02\x90\x90\x90"))), UnknownCommand),
        (LogEntry(2, 1, 1, 0, 9, (), (("no_such_limit", 1),)), BadParameter),
        (LogEntry(2, 1, 1, 0, 9, (), (("sessions_max", 0),)), BadParameter),
        (LogEntry(3, 1, 2, 0, 0, (request(2, b"k", b"v"),)), BadEntry),
        (LogEntry(3, 1, 2, 0, 0, (RequestBlock(2, (Command(1),)),)), BadEntry),
    ],
)
def test_pitfall_77_an_unknown_operation_stops_the_node_before_any_change(
    entry: LogEntry, error: type[Exception]
) -> None:
    """Guard: `StateMachine._check`, the version gate. Nodes of different versions must not do different things with
    one entry: an unknown operation, transaction or parameter raises, never skips, and leaves the state as it was."""
    driver = Driver()
    driver.put(b"a", b"1")
    before = snapshot_bytes(driver.machine)
    with pytest.raises(error):
        driver.machine.apply(entry)
    assert snapshot_bytes(driver.machine) == before
    driver.put(b"k", b"v")


def test_pitfall_77_every_process_computes_the_same_state_and_effects() -> None:
    """Guard: no set, hash, clock or chance in `statemachine` (tests/house/rules.py forbids them). Two processes with
    different hash seeds and this one get the same bytes from the same entries: effects, answers and snapshot."""
    program = "from tests.statemachine.mixture import fingerprint; print(fingerprint(300))"
    told = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env={"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout.decode()
        for seed in ("1", "2")
    ]
    assert told[0] == told[1] == f"{mixture.fingerprint(300)}\n"


def test_the_state_is_golden() -> None:
    """A fixed log gives these bytes for ever; another result is another version of the log's meaning."""
    driver = mixture.driven(60)
    assert hashlib.sha256(snapshot_bytes(driver.machine)).hexdigest() == GOLDEN_SNAPSHOT
    assert driver.machine.digest().as_hex() == GOLDEN_DIGEST


GOLDEN_SNAPSHOT = "e23a33370a746fc9212c383762c6beba4fb67ab85fbbbfdaf141b10d4f0d1358"
GOLDEN_DIGEST = (7, "33b8afc022b14c8a", "34d535068", "211a35cb4")


def test_pitfall_77_apply_goes_by_the_cluster_version_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never by what this code could do: a configuration entry raises the version. The value of a digest point is of
    the version and of the limits too, since both decide what apply does. Other configurations leave it, a newer one
    than this code knows is refused before anything is changed, and a restored machine goes on alike.

    Guard: `StateMachine._digest_point` in statemachine/machine.py.
    """
    older, newer, limited = Driver(), Driver(), Driver()
    for driver, limits in ((older, ()), (newer, ()), (limited, (("sessions_max", 7),))):
        driver.put(b"a", b"1")
        driver.entry(parameters=limits, version=1)
        driver.entry(request(Operation.DIGEST_POINT))
    assert older.machine.point == newer.machine.point != limited.machine.point
    before = snapshot_bytes(newer.machine)
    with pytest.raises(UnknownClusterVersion, match=f"at version {CLUSTER_VERSION + 1}, this code knows up to"):
        newer.entry(parameters=(), version=CLUSTER_VERSION + 1)
    assert snapshot_bytes(newer.machine) == before
    monkeypatch.setattr(versions, "CLUSTER_VERSION", CLUSTER_VERSION + 1)
    older.entry(parameters=())
    newer.entry(parameters=(), version=CLUSTER_VERSION + 1)
    assert (older.machine.version, newer.machine.version) == (1, CLUSTER_VERSION + 1)
    restored = StateMachine.restore(newer.machine.snapshot())
    for driver in (older, newer):
        driver.entry(request(Operation.DIGEST_POINT))
    restored.apply(newer.entries[-1])
    assert older.machine.digest() == newer.machine.digest()
    assert older.machine.point != newer.machine.point
    assert restored.point == newer.machine.point


def test_the_mixture_shows_every_result_and_operation() -> None:
    """The log that the determinism tests use is worth it: each operation and each result occurs."""
    driver = mixture.driven(300)
    operations = {command.operation for entry in driver.entries for one in entry.requests for command in one.commands}
    assert operations >= set(Operation) - {Operation.APPEND, Operation.ACCESS}
    results = {row.result for effects in driver.replay(StateMachine(mixture.LIMITS)) for row in effects.requests}
    assert results == set(Result)


def test_parameters_of_a_configuration_entry_set_the_limits() -> None:
    """From that entry on, on every node and in every snapshot; limits that it does not name stay."""
    driver = Driver()
    for number in range(9):
        driver.put(b"a", b"%d" % number)
    driver.entry(parameters=(("history_revisions_max", 2), ("sessions_max", 1)))
    assert driver.machine.compacted_revision == 8
    driver.entry(parameters=(("digests_kept", 3),))
    assert driver.machine.limits == Limits(history_revisions_max=2, sessions_max=1, digests_kept=3)
    driver.open()
    assert driver.answer(request(Operation.SESSION_OPEN, argument=5_000)).reason is Reason.SESSIONS_FULL
    assert StateMachine.restore(driver.machine.snapshot()).limits == driver.machine.limits


def test_digests_are_those_of_the_ends_of_entries() -> None:
    """digest_at answers for the newest ends, of plain entries too; index 0 is the empty state."""
    driver = Driver(Limits(digests_kept=4))
    assert driver.machine.digest_at(0) == EMPTY
    driver.put(b"a", b"1")
    one = driver.machine.digest()
    driver.entry(appends(5))
    driver.delete(b"a")
    assert driver.machine.digest() == EMPTY
    assert [driver.machine.digest_at(index) for index in (0, 1, 6, 7)] == [EMPTY, one, one, EMPTY]
    with pytest.raises(Inside) as inside:
        driver.machine.digest_at(3)
    assert (inside.value.before, inside.value.after) == (1, 6)
    with pytest.raises(NotYet):
        driver.machine.digest_at(8)
    driver.entry()
    with pytest.raises(TooOld):
        driver.machine.digest_at(0)


def test_entries_are_counted_from_the_newest_digest_point_on() -> None:
    """The leader appends the next point by this count: all entries before there was one, and after one only those
    that came later, of which no more are known than digests are kept. A point that is refused is none.

    Guard: `entries_since_point` of statemachine/machine.py.
    """
    driver = Driver(Limits(digests_kept=5))
    driver.put(b"a", b"1")
    driver.entry(appends(10))
    assert driver.machine.entries_since_point() == 2  # entries, not records
    driver.entry(request(Operation.DIGEST_POINT))
    assert driver.machine.entries_since_point() == 0
    taken = driver.machine.point
    assert driver.answer(request(Operation.DIGEST_POINT, b"k")).reason is Reason.MALFORMED
    assert (driver.machine.point, driver.machine.entries_since_point()) == (taken, 1)
    for _ in range(9):
        driver.entry(appends())
    assert driver.machine.entries_since_point() == 5
    driver.entry(request(Operation.DIGEST_POINT))
    assert driver.machine.entries_since_point() == 0


def test_mixed_entries_have_a_row_for_each_request() -> None:
    """Where one request is not plain every request has its row, in order, with the revision after it."""
    driver = Driver()
    effects = driver.entry(appends(2), request(Operation.PUT, b"a", b"1"), appends(3))
    assert [(row.result, row.revision, len(row.changes)) for row in effects.requests] == [
        (Result.APPLIED, 1, 0),
        (Result.APPLIED, 2, 1),
        (Result.APPLIED, 2, 0),
    ]
    version = driver.machine.get(b"a")
    assert version is not None
    assert version.index == 3
