"""Every property of the simulator raises at the breach that it is there for, and at nothing less."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.chaos.sim.disk.files import MemoryFiles
from raftlog.chaos.sim.invariants.clients.consumer_groups import ConsumerGroups
from raftlog.chaos.sim.invariants.clients.exactly_once import ExactlyOnce
from raftlog.chaos.sim.invariants.clients.read_linearizability import ReadLinearizability
from raftlog.chaos.sim.invariants.durability import durable_first, files_stay, made_snapshots, persist_then_promise
from raftlog.chaos.sim.invariants.elections import configuration_safety
from raftlog.chaos.sim.invariants.elections.check_quorum import CheckQuorum
from raftlog.chaos.sim.invariants.elections.election_safety import ElectionSafety
from raftlog.chaos.sim.invariants.elections.monotonic_term import MonotonicTerm
from raftlog.chaos.sim.invariants.elections.one_vote import OneVote
from raftlog.chaos.sim.invariants.elections.pre_vote import PreVote
from raftlog.chaos.sim.invariants.log import (
    committed_is_durable,
    leader_completeness,
    log_matching,
    marks_at_ends,
    one_oldest,
    snapshot_safety,
)
from raftlog.chaos.sim.invariants.log.equal_effects import EqualEffects
from raftlog.chaos.sim.invariants.log.leader_append_only import LeaderAppendOnly
from raftlog.chaos.sim.invariants.log.one_oldest import OneOldest
from raftlog.chaos.sim.invariants.log.state_machine_safety import StateMachineSafety
from raftlog.chaos.sim.invariants.peers.progress_is_true import ProgressIsTrue
from raftlog.cluster.records.entries import log_entry
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.configuration import Configuration
from raftlog.raft.messages import TimeoutNow
from raftlog.raft.types import GENESIS, Entry, EntryKind, HardState, Mark
from raftlog.raft.wal.formats import LogIdentity
from raftlog.raft.wal.snapshot_files import SnapshotPlan
from raftlog.raft.wal.storage import StepKind
from raftlog.statemachine.answers import Answer, encode_answer
from raftlog.statemachine.commands import ConsumerGroup, Operation, Result
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.effects import Effects, RequestEffect
from raftlog.statemachine.machine import StateMachine
from tests.sim.world.property_lab import (
    ENTRIES,
    FIRST,
    OTHER,
    SECOND,
    THIRD,
    THREE,
    Case,
    Disk,
    appends,
    asks,
    configuration,
    grants,
    known,
    log_of,
    of_configuration,
    replies,
    sealed,
    sees,
)

# -- a check, its arguments in a legal case, and those of the smallest breach


def breach_election() -> Case:
    property = ElectionSafety()
    property.became_leader(1, 5)
    return property.became_leader, (2, 6), (2, 5)


def breach_append_only() -> Case:
    property = LeaderAppendOnly()
    property.leads(1, 2, log_of(FIRST, SECOND))
    return property.leads, (1, 2, log_of(*ENTRIES)), (1, 2, log_of(FIRST, SECOND, OTHER))


def breach_append_only_shorter() -> Case:
    property = LeaderAppendOnly()
    property.leads(1, 2, log_of(FIRST, SECOND))
    return property.leads, (1, 2, log_of(*ENTRIES)), (1, 2, log_of(FIRST, SECOND))


def breach_matching() -> Case:
    seen = known()
    forged = sealed(SECOND.mark, 2, data=b"")
    forged = replace(forged, mark=replace(forged.mark, header_crc=0))
    return log_matching.appended, (seen, 2, [THIRD, OTHER]), (seen, 2, [forged])


def breach_matching_at_start() -> Case:
    seen = known()
    return log_matching.started, (seen, 1, log_of(*ENTRIES)), (seen, 1, log_of(FIRST, SECOND, OTHER))


def breach_completeness() -> Case:
    seen = known(committed=3)
    return leader_completeness.became_leader, (seen, 1, 4, log_of(*ENTRIES)), (seen, 1, 4, log_of(FIRST, SECOND))


def breach_machine() -> Case:
    seen, property = known(committed=3), StateMachineSafety()
    property.restored(seen, 1, 1, 1)
    return property.applied, (seen, 1, SECOND), (seen, 1, OTHER)


def breach_machine_order() -> Case:
    seen, property = known(committed=3), StateMachineSafety()
    property.restored(seen, 1, 1, 1)
    property.restored(seen, 2, 1, 1)
    return property.applied, (seen, 1, SECOND), (seen, 2, THIRD)


def breach_durable_quorum() -> Case:
    log = log_of(*ENTRIES, committed=6)
    enough = known(Disk(), Disk(), Disk([FIRST]))
    too_few = known(Disk(), Disk([FIRST]), Disk([FIRST]))
    return committed_is_durable.commit_rose, (enough, 1, log, THREE), (too_few, 1, log, THREE)


def breach_durable_quorum_of_both_sides() -> Case:
    log = log_of(*ENTRIES, committed=6)
    disks = [Disk(), Disk(), Disk([FIRST]), Disk([FIRST]), Disk([FIRST])]
    return (
        committed_is_durable.commit_rose,
        (known(*disks), 1, log, configuration(1, 2, outgoing=(1, 2, 3))),
        (known(*disks), 1, log, configuration(3, 4, outgoing=(1, 2, 3))),
    )


def breach_still_held() -> Case:
    seen = known(Disk(), Disk(), Disk([FIRST]), committed=3)
    lost = known(Disk(), Disk(), Disk([FIRST]), committed=3)
    lost.lost = {1: frozenset(), 2: frozenset()}
    return committed_is_durable.still_held, (seen, 1), (lost, 1)


def breach_marks() -> Case:
    seen = known()
    return marks_at_ends.appends, (seen, appends()), (seen, appends(prev_index=4))


def breach_announced() -> Case:
    seen = known(committed=2)
    return marks_at_ends.appends, (seen, appends(commit=5)), (seen, appends(commit=6))


def breach_hints() -> Case:
    seen = known()
    fields = {"success": False, "match": 0, "hint_term": 1}
    return marks_at_ends.replies, (seen, replies(**fields, hint_index=5)), (seen, replies(**fields, hint_index=3))


def breach_term() -> Case:
    property = MonotonicTerm()
    property.promises(1, 4)
    return property.started, (1, 4), (1, 3)


def breach_vote() -> Case:
    property = OneVote()
    property.votes_for(1, 4, 2)
    return property.votes_for, (1, 5, 3), (1, 4, 3)


def breach_vote_forgotten() -> Case:
    property = OneVote()
    property.votes_for(1, 4, 2)
    return property.started, (1, 4, 2), (1, 4, 0)


def breach_synced() -> Case:
    log = log_of(*ENTRIES)
    return durable_first.persisted_moved, (1, log, Disk().view), (1, log, Disk([FIRST, SECOND]).view)


def breach_promised_vote() -> Case:
    return persist_then_promise.votes, (1, 2, 3, HardState(2, 3)), (1, 2, 3, HardState(2, 0))


def breach_promised_leadership() -> Case:
    return persist_then_promise.leads, (appends(), HardState(2, 1)), (appends(), HardState(1, 1))


def breach_promised_entries() -> Case:
    return persist_then_promise.acknowledges, (replies(), Disk().view), (replies(), Disk([FIRST, SECOND]).view)


def breach_promised_term() -> Case:
    return persist_then_promise.acknowledges, (replies(), Disk().view), (replies(term=3), Disk().view)


def progress_of(*disks: Disk, answers: Sequence[int]) -> Callable[..., object]:
    """Looks at leader 1 of term 2, whose match indexes it takes, after these answers: both of node 2, node 3…"""
    property = ProgressIsTrue()
    for node, match in enumerate(answers, 2):
        property.answers(replies(sender=node, match=match))

    def leads(*matches: int) -> None:
        progress = {node: SimpleNamespace(match=match, round_first=0) for node, match in enumerate(matches, 2)}
        role: Any = SimpleNamespace(progress=progress)
        property.leads(known(*disks), 1, 2, role, log_of(*ENTRIES))

    return leads


def breach_progress() -> Case:
    leads = progress_of(Disk(), Disk(), Disk([FIRST]), answers=(6, 6))
    return leads, (6, 1), (6, 6)


def breach_progress_back() -> Case:
    leads = progress_of(Disk(), Disk(), Disk(), answers=(6,))
    return leads, (6,), (5,)


def breach_progress_unanswered() -> Case:
    leads = progress_of(Disk(), Disk(), Disk(), answers=(5,))
    return leads, (5,), (6,)


def breach_pre_vote() -> Case:
    seen, property = known(), PreVote()
    property.grants(grants(2))
    return property.campaigns, (seen, asks()), (seen, asks(term=4))


def breach_handed_over() -> Case:
    seen, property = known(), PreVote()
    property.hands_over(TimeoutNow(sender=2, to=1, term=2, last_index=6))
    return property.campaigns, (seen, asks(transfer=True)), (seen, asks(transfer=True, sender=3))


def breach_quorum() -> Case:
    options = SimpleNamespace(election_timeout_max_ms=600, heartbeat_ms=60)

    property = CheckQuorum()

    def looked_at(heartbeat_ms: int, contact_ms: int) -> None:
        contacts = {2: SimpleNamespace(contact_ms=contact_ms), 3: SimpleNamespace(contact_ms=0)}
        role: Any = SimpleNamespace(progress=contacts, heartbeat_ms=heartbeat_ms, quorum_since_ms=0)
        now = SimpleNamespace(monotonic_ms=5_000)
        state: Any = SimpleNamespace(node=1, now=now, options=options, configuration=THREE)
        property.leads(state, role)

    return looked_at, (1, 4_400), (2, 4_300)


def breach_reads() -> Case:
    property = ReadLinearizability(known(committed=2))
    property.began(1, 7)
    property.began(1, 8)
    return property.ready, (1, 7, 5), (1, 8, 1)


def breach_effects() -> Case:
    property = EqualEffects()
    property.applied(1, 5, Effects(5, 2), (0,))
    return property.applied, (2, 5, Effects(5, 2), (0,)), (3, 5, Effects(5, 3), (0,))


def breach_digests() -> Case:
    property = EqualEffects()
    property.applied(1, 5, Effects(5, 2), (0,))
    return property.restored, (2, 5, (0,)), (2, 5, (1,))


def breach_snapshots() -> Case:
    property = EqualEffects()
    property.saved(1, 5, b"a")
    return property.saved, (2, 5, b"a"), (2, 5, b"b")


def in_session(before: Mark, sequence: int) -> Entry:
    """A put of session 1."""
    data = encode_block([BlockRecord(Operation.PUT, b"k", b"v")], session=1, sequence=sequence)
    return sealed(before, 1, kind=EntryKind.COMMANDS, data=data)


def session_of(ttl_ms: int = 1_000) -> tuple[ExactlyOnce, Mark]:
    """A twin that knows session 1, in which sequence 1 was applied at index 2."""
    property = ExactlyOnce()
    data = encode_block([BlockRecord(Operation.SESSION_OPEN, argument=ttl_ms)])
    opened = sealed(GENESIS, 1, kind=EntryKind.COMMANDS, data=data)
    property.applied(1, opened, did(1, Result.APPLIED))
    put = in_session(opened.mark, 1)
    property.applied(1, put, did(2, Result.APPLIED))
    return property, put.mark


def did(index: int, result: Result, first: int = 0) -> Effects:
    """Effects of one request."""
    return Effects(index, 1, (RequestEffect(result, 1, first_answer_index=first),))


def breach_twice() -> Case:
    property, mark = session_of()
    return (
        property.applied,
        (1, in_session(mark, 1), did(3, Result.REPEATED, 2)),
        (1, in_session(mark, 1), did(3, Result.APPLIED)),
    )


def breach_never() -> Case:
    property, mark = session_of()
    return (
        property.applied,
        (1, in_session(mark, 3), did(3, Result.APPLIED)),
        (1, in_session(mark, 2), did(3, Result.REPEATED, 2)),
    )


def breach_expired() -> Case:
    late = replace(in_session(session_of()[1], 2), clock_ms=1_000)
    return (
        ExactlyOnce.applied,
        (session_of()[0], 1, late, did(3, Result.EXPIRED)),
        (session_of(1_001)[0], 1, late, did(3, Result.EXPIRED)),
    )


def breach_overlapping() -> Case:
    learning = replace(THREE, learners=(4,))
    change = of_configuration(THIRD.mark, 2, learning)
    again = of_configuration(change.mark, 2, replace(THREE, learners=(4, 5)))
    seen = known(committed=3)
    log = log_of(*ENTRIES, change, again)
    return configuration_safety.appended, (seen, 1, change, log_of(*ENTRIES, change)), (seen, 1, again, log)


def breach_disjoint() -> Case:
    joint = of_configuration(THIRD.mark, 2, configuration(4, 5, outgoing=(1, 2, 3)))
    jump = of_configuration(THIRD.mark, 2, configuration(4, 5))
    return (
        configuration_safety.appended,
        (known(committed=3), 1, joint, log_of(*ENTRIES, joint)),
        (known(committed=3), 1, jump, log_of(*ENTRIES, jump)),
    )


def breach_hasty() -> Case:
    learning = replace(THREE, learners=(4,))
    change = of_configuration(THIRD.mark, 2, learning)
    return (
        configuration_safety.appended,
        (known(committed=3), 1, change, log_of(*ENTRIES, change)),
        (known(committed=2), 1, change, log_of(*ENTRIES, change)),
    )


def breach_in_force() -> Case:
    learning = replace(THREE, learners=(4,))
    change = of_configuration(THIRD.mark, 2, learning)
    seen = known(committed=3)
    seen.add_configuration(change)
    state: Any = SimpleNamespace(node=1, log=log_of(*ENTRIES, change), configurations=[(1, THREE), (7, learning)])
    stale: Any = SimpleNamespace(node=1, log=log_of(*ENTRIES, change), configurations=[(1, THREE)])
    return configuration_safety.in_force, (seen, state), (seen, stale)


def breach_compacted() -> Case:
    seen = known(committed=2)
    log = log_of(*ENTRIES, committed=6, applied=6)
    return snapshot_safety.compacted, (seen, 1, SECOND.mark, log), (seen, 1, THIRD.mark, log)


def breach_installed() -> Case:
    seen, mark = known(committed=2), SECOND.mark
    kept, cut = log_of(*ENTRIES, committed=5), log_of(FIRST, SECOND, committed=5)
    return snapshot_safety.installed, (seen, 1, mark, (1, 6), True, kept), (seen, 1, mark, (1, 6), True, cut)


def breach_oldest() -> Case:
    seen = OneOldest()
    seen.stands(1, 7, 7)
    return seen.stands, (2, 7, 7), (2, 7, 6)


def breach_deleted() -> Case:
    return one_oldest.kept, (1, 5, 5, 0), (1, 6, 5, 0)


def breach_deleted_behind_a_snapshot() -> Case:
    return one_oldest.kept, (1, 10, 5, 9), (1, 11, 5, 9)


LOG = LogIdentity(b"l" * 16)


def written(files: MemoryFiles, mark: Mark, index: int, value: Configuration = THREE) -> MemoryFiles:
    """The files with a snapshot of that mark under its name."""
    plan = SnapshotPlan(LOG, mark.index)
    for operation in (*plan.begin(), *plan.finish(mark, value, index)):
        files.carry_out(operation)
    return files


def breach_snapshot_of_another_log() -> Case:
    seen, forged = known(committed=2), sealed(FIRST.mark, 1, 4, data=b"forged").mark
    good, bad = written(MemoryFiles(), SECOND.mark, 1), written(MemoryFiles(), forged, 1)
    return made_snapshots.named, (seen, 1, LOG, good, 5), (seen, 1, LOG, bad, 5)


def breach_snapshot_with_an_older_configuration() -> Case:
    changed = of_configuration(SECOND.mark, 1, configuration(1, 2))
    seen = known(committed=2)
    seen.add_configuration(changed)
    seen.chain[changed.index, 1] = changed.mark.header_crc
    seen.committed.append((changed.index, 1))
    good = written(MemoryFiles(), changed.mark, changed.index, configuration(1, 2))
    bad = written(MemoryFiles(), changed.mark, 1)
    return made_snapshots.named, (seen, 1, LOG, good, changed.index), (seen, 1, LOG, bad, changed.index)


def breach_newest_snapshot_removed() -> Case:
    files = written(MemoryFiles(), SECOND.mark, 1)
    return made_snapshots.removed, (1, files, 1), (1, files, 6)


def gone(part: int, last: int, core_first: int = 11, snapshots: tuple[int, ...] = (30, 20)) -> None:
    """The segment from 1 to `last` goes, at a node that has applied up to 15."""
    files_stay.deleted(1, part, 1, last, oldest=11, core_first=core_first, applied=15, snapshots=snapshots)


def breach_needed_by_the_core() -> Case:
    return gone, (StepKind.COMPACT, 10), (StepKind.COMPACT, 10, 10)


def breach_covered_once() -> Case:
    return gone, (StepKind.COMPACT, 10), (StepKind.COMPACT, 10, 11, (30,))


def breach_applied_and_gone() -> Case:
    return gone, (StepKind.CUT, 20), (StepKind.INSTALL, 20)


def group_entry(before: Mark, command: ConsumerCommand) -> Entry:
    """An entry with one command of group g."""
    data = encode_block([BlockRecord(Operation.CONSUMER, b"g", encode_consumer(command))])
    return sealed(before, 1, kind=EntryKind.COMMANDS, data=data)


def group_of() -> tuple[ConsumerGroups, StateMachine, Mark]:
    """A twin and a machine that know a group claimed at index 1, moved to 2 at index 2, and claimed again at 3."""
    property, machine, mark = ConsumerGroups(), StateMachine(), GENESIS
    for command in (
        ConsumerCommand(ConsumerAction.CLAIM),
        ConsumerCommand(ConsumerAction.COMMIT, 1, 2),
        ConsumerCommand(ConsumerAction.CLAIM),
    ):
        entry = group_entry(mark, command)
        property.applied(1, entry, machine.apply(log_entry(entry)), machine)
        mark = entry.mark
    return property, machine, mark


def moved(index: int, consumer: ConsumerGroup) -> Effects:
    """Effects of a command that left the group so."""
    answer = encode_answer(Answer(Result.APPLIED, 1, index, index, consumer=consumer))
    return Effects(index, 1, (RequestEffect(Result.APPLIED, 1, answer=answer),))


def breach_fenced_owner() -> Case:
    property, machine, mark = group_of()
    late = group_entry(mark, ConsumerCommand(ConsumerAction.COMMIT, 1, 3))
    return (
        property.applied,
        (1, late, machine.apply(log_entry(late)), machine),
        (1, late, moved(4, ConsumerGroup(3, 1, b"", 0, 0)), machine),
    )


def breach_position_back() -> Case:
    property, machine, mark = group_of()
    back = group_entry(mark, ConsumerCommand(ConsumerAction.COMMIT, 3, 1))
    return (
        property.applied,
        (1, back, machine.apply(log_entry(back)), machine),
        (1, back, moved(4, ConsumerGroup(1, 3, b"", 0, 0)), machine),
    )


def breach_groups_lost() -> Case:
    property, machine, _ = group_of()
    return property.restored, (1, 3, machine), (1, 3, StateMachine())


CASES = [name for name in globals() if name.startswith("breach_")]


@pytest.mark.parametrize("name", CASES)
def test_a_property_sees_its_breach_and_nothing_less(name: str) -> None:
    """What the rule allows passes; the smallest breach of it raises InvariantBroken with its section."""
    sees(*globals()[name]())


def test_the_header_crc_is_what_tells_entries_apart() -> None:
    """Two entries of one index and term with other bytes have other CRCs."""
    assert sealed(SECOND.mark, 2, data=b"").mark.header_crc != OTHER.mark.header_crc
