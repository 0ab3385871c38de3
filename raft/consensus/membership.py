"""Changes the members: proposes a change, puts it in force at its append, takes it back when its entry is cut.

Changes of the voters are always joint (thesis 4.3). A leader appends one configuration at a time, and only after it
committed an entry of its own term (pitfall 40: the single-server bug of 2015). So all configurations in a log are
committed except the newest, and a cut takes back at most one. `raftlog.raft.consensus.reconfiguration` has the later
steps of a change. Thesis chapter 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.raft import changes, versions
from raftlog.raft.changes import AddLearners, ChangeAddresses, MemberChange, Promote, Remove, Replace
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.raft.codec.configuration import decode_configuration, encode_configuration
from raftlog.raft.configuration import Configuration, Member
from raftlog.raft.consensus.progress import FollowerProgress, Mode
from raftlog.raft.consensus.roles import CatchUp, Leader
from raftlog.raft.consensus.state import State
from raftlog.raft.events import ConfigurationChanged
from raftlog.raft.quorum import majority
from raftlog.raft.refusals import ConfigurationRefused, WhyRefused
from raftlog.raft.types import NOBODY, Entry, EntryKind, NodeId

# ---------------------------------------------------------------------------------------------------------------
# On every node.


def unreadable(state: State, entries: Sequence[Entry]) -> str:
    """Why this program cannot follow a configuration among entries of a leader; "" if it can follow all. It takes none
    of them then, and goes on without (pitfall 71: newer data opened by older code)."""
    try:
        for entry in entries:
            if entry.kind is EntryKind.CONFIGURATION:
                versions.check(decode_configuration(entry.data), state.knows)
    except (Corrupt, UnknownVersion) as error:
        return str(error)
    return ""


def take_effect(state: State, entries: Sequence[Entry]) -> None:
    """Adopt each configuration among freshly appended `entries`, all of them readable, at once.

    Waiting for its commit would leave a window with two disjoint majorities (pitfall 50: a configuration in force only
    when applied).
    """
    for entry in entries:
        if entry.kind is EntryKind.CONFIGURATION:
            state.configurations.append((entry.index, decode_configuration(entry.data)))


def roll_back(state: State, after: int) -> None:
    """Entries after `after` were cut: the configuration before them is in force again (pitfall 41: a configuration that
    outlives its cut entry)."""
    configurations = state.configurations
    while configurations[-1][0] > after:
        configurations.pop()
        assert configurations, f"no configuration is known at or before {after}"


def forget(state: State) -> None:
    """Drop configurations that are no longer needed.

    A cut may need the newest committed one; a snapshot may need the one that was in force at the newest applied entry.
    """
    configurations = state.configurations
    while len(configurations) > 1 and configurations[1][0] <= state.log.applied:
        del configurations[0]


# ---------------------------------------------------------------------------------------------------------------
# On the leader.


def propose(state: State, role: Leader, change: MemberChange) -> int:
    """Begin a change; the index of the configuration that begins it, or of the one in force where it was begun
    before. Raises ConfigurationRefused: then nothing happened."""
    check_calm(state, role)
    now_in_force = state.configuration
    match change:
        case AddLearners(members, promote):
            if not (promote and _are_learners(now_in_force, members)):
                append(state, role, changes.after(now_in_force, change))
            for member in members if promote else ():
                _begin_catch_up(state, role, member.node, NOBODY)
        case Replace(old, member) if old == member.node:
            _check_second_step(state, member)
            append(state, role, changes.after(now_in_force, Remove((old,))))
            role.next_change = AddLearners((member,))
        case Replace(old, member):
            goal = now_in_force
            if not _are_learners(now_in_force, (member,)):
                goal = changes.after(now_in_force, AddLearners((member,)))
            changes.swapped(goal, old, member.node)  # would it be refused later? Then now
            if goal != now_in_force:
                append(state, role, goal)
            _begin_catch_up(state, role, member.node, old)
        case Promote(nodes):
            goal = changes.after(now_in_force, change)
            for node in nodes:
                _check_caught_up(state, role, node)
            append(state, role, goal)
        case Remove() | ChangeAddresses():
            append(state, role, changes.after(now_in_force, change))
    return state.configurations[-1][0]


def _check_second_step(state: State, member: Member) -> None:
    """A new disk under the same number comes in when the old one is out: what would be refused then is refused now."""
    changes.check_incarnation(state.configuration, member)
    if member.node == state.node:
        what = f"node {member.node} leads, with the disk that is to be replaced"
        raise ConfigurationRefused(WhyRefused.INVALID, what, "hand the leadership over first")


def check_calm(state: State, role: Leader) -> None:
    """Raises ConfigurationRefused unless this leader may append a configuration now.

    Only one configuration may be uncommitted. The leader also needs a committed entry of its term: until then the logs
    of others may hold a change that this leader does not know (pitfall 40: the single-server bug of 2015).
    """
    log = state.log
    index, configuration = state.configurations[-1]
    if log.term_at(log.committed) != state.term:
        what = f"this leader has committed nothing in its term {state.term} yet"
        raise ConfigurationRefused(WhyRefused.NOT_READY, what, "try again in a moment")
    if index > log.committed or configuration.outgoing or role.next_change is not None:
        what = f"the change that began with entry {index} is not finished"
        raise ConfigurationRefused(WhyRefused.OVERLAPS, what, "try again when it is; see the status")


def append(state: State, role: Leader, goal: Configuration) -> None:
    """Append what leads to `goal`: a joint configuration where the voters differ. Raises ConfigurationRefused where
    too few of the voters answer to ever commit it."""
    before = state.configuration
    following = changes.joined(before, goal)
    if following.outgoing:
        _check_quorum(state, role, following)
    put(state, role, following)


def put(state: State, role: Leader, following: Configuration) -> None:
    """Append that configuration; it is in force from here on."""
    before = state.configuration
    following = changes.with_removed(before, following)
    data = encode_configuration(following)
    entry = state.log.append_own(state.term, EntryKind.CONFIGURATION, 1, data, state.now)
    role.uncommitted_bytes += entry.size
    take_effect(state, (entry,))
    _align(state, role, before, following)
    event = ConfigurationChanged(entry.index, following.voters, following.outgoing, following.learners)
    state.out.events.append(event)


def _align(state: State, role: Leader, before: Configuration, following: Configuration) -> None:
    """A progress for every node that receives entries. A removed node keeps receiving them for a while, so that it
    hears of it; it counts for nothing.

    A new node begins with nothing proved, and with a new round. An answer to an older round came from an earlier disk
    with the same number (pitfall 20: a late reply moves the progress).
    """
    fresh = [member.node for member in following.members if before.member(member.node) is None]
    if fresh:
        role.round += 1
    everyone = sorted({*role.progress, *following.peers(state.node)})
    role.progress = {
        peer: role.progress[peer]
        if peer not in fresh and peer in role.progress
        else FollowerProgress(
            sent=state.log.last.index,
            contact_ms=state.now.monotonic_ms,
            round_first=role.round,
            heal_at=state.log.last.index,
            run=state.recall.run_of(peer),
        )
        for peer in everyone
    }
    role.catch_ups = {node: each for node, each in role.catch_ups.items() if node in following.learners}
    role.farewell_ms = None


def _begin_catch_up(state: State, role: Leader, node: NodeId, replaces: NodeId) -> None:
    now_ms = state.now.monotonic_ms
    role.catch_ups[node] = CatchUp(replaces, state.log.last.index, now_ms)
    role.catch_up_ms = now_ms


def _are_learners(configuration: Configuration, members: tuple[Member, ...]) -> bool:
    """Whether all of them are learners already, exactly so."""
    there = [
        configuration.member(member.node) == member and member.node in configuration.learners for member in members
    ]
    return bool(there) and all(there)


def _check_caught_up(state: State, role: Leader, node: NodeId) -> None:
    """A voter that lacks half the log would keep everyone waiting (pitfall 47: a slow new server that stalls
    commits)."""
    progress = role.progress[node]
    if progress.mode is not Mode.REPLICATE or progress.sent < state.log.last.index or not _answers(state, role, node):
        what = f"learner {node} has {progress.match} of {state.log.last.index} entries"
        mend = "add it with automatic promotion, or try again when it has caught up"
        raise ConfigurationRefused(WhyRefused.NOT_CAUGHT_UP, what, mend)


def _check_quorum(state: State, role: Leader, configuration: Configuration) -> None:
    """Raises ConfigurationRefused where a majority would need voters that do not answer."""
    for voters in (configuration.voters, configuration.outgoing):
        silent = [node for node in voters if not _answers(state, role, node)]
        if len(voters) - len(silent) < majority(len(voters)):
            raise ConfigurationRefused(
                WhyRefused.QUORUM_LOST,
                f"of the voters {list(voters)} too few answer: {silent} do not",
                "start those first, or remove one that does not answer",
            )


def _answers(state: State, role: Leader, node: NodeId) -> bool:
    if node == state.node:
        return True
    progress = role.progress.get(node)
    since_ms = state.now.monotonic_ms - state.options.election_timeout_max_ms
    return progress is not None and progress.contact_ms >= since_ms
