"""Records the events of a world: a digest for every run, and lines of text for the run under inspection.

`World` calls one `Trace`, which only hashes. `Recorder` also hands out each event as a line in fixed columns (after
TigerBeetle's simulator). Both give the same digest, so a seed that is looked at is known to be the seed that failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import xxhash

from raftlog.chaos.record.times import Stretch
from raftlog.chaos.sim.ground.outcome import Fault
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.roles import RoleName
from raftlog.raft.messages import (
    AppendEntries,
    AppendEntriesReply,
    InstallSnapshot,
    InstallSnapshotReply,
    Message,
    RequestVote,
    RequestVoteReply,
)
from raftlog.raft.types import NodeId

EVERYONE: Final = 0
"""The node of an event that is no single node's."""

EVENTS_KEPT: Final = 2_000
"""How many of the newest events a Recorder keeps."""

LINES_AT_ONCE: Final = 256
"""How many lines are hashed together: one call each would cost as much as making the line."""

DOWN: Final = "-"
ROLE_MARKS: Final = {
    RoleName.FOLLOWER: ".",
    RoleName.PRE_CANDIDATE: "p",
    RoleName.CANDIDATE: "C",
    RoleName.LEADER: "L",
}
"""How the column `cluster` shows a node; DOWN when it does not run."""


class Trace:
    """Hashes the events of a world, and keeps nothing. Times are virtual microseconds; messages have numbers.

    Everything said becomes part of the digest, so only say what the seed alone decides.
    """

    def __init__(self) -> None:
        self._hash = xxhash.xxh64()
        self._lines: list[str] = []

    def _add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) >= LINES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._hash.update("\n".join([*self._lines, ""]).encode())
        self._lines.clear()

    def line(self, now_us: int, node: NodeId, what: str, *words: object) -> None:
        """Something happened at `node` (EVERYONE: at no single one); `words` are numbers and text."""
        self._add(f"{now_us} {node} {what} {words}" if words else f"{now_us} {node} {what}")

    def sent(self, number: int, now_us: int, message: Message) -> None:
        """A message left its sender. `number` is new; each copy of it arrives or is lost under that number."""
        self._add(f"{now_us} > {number} {type(message).__name__} {message.sender} {message.to} {message.term}")

    def delivered(self, number: int, now_us: int) -> None:
        self._add(f"{now_us} < {number}")

    def lost(self, number: int, now_us: int, why: str) -> None:
        self._add(f"{now_us} x {number} {why}")

    def state(self, now_us: int, node: NodeId, core: RaftCore | None) -> None:
        """The state of `node` after one of its turns; None when its process has ended, or has not begun."""
        if core is None:
            self._add(f"{now_us} {node} down")
            return
        state = core.state
        log = state.log
        last = log.last
        self._add(f"{now_us} {node} {state.term} {state.vote} {log.applied} {log.committed} {last.index} {last.term}")

    def fault(self, fault: Fault) -> None:
        """The nemesis did something."""
        self._add(f"{fault.now_us} ! {fault.number} {fault.kind} {fault.nodes} {fault.detail} {fault.lasts_us}")

    def digest(self) -> str:
        """16 hex digits over all events so far."""
        self._flush()
        return self._hash.hexdigest()


class View(NamedTuple):
    """A node as its last `state` showed it."""

    mark: str  # of ROLE_MARKS, or DOWN
    term: int
    applied: int
    committed: int
    first: int
    persisted: int
    last: int


NEVER_SEEN: Final = View(DOWN, 0, 0, 0, 0, 0, 0)


class Recorder(Trace):
    """Hands each event as a line to `show` as it comes, and keeps what a page draws: roles, faults, newest events."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self.show = show
        self.stretches: list[Stretch] = []
        self.faults: list[Fault] = []
        self.events: deque[tuple[int, NodeId, str]] = deque(maxlen=EVENTS_KEPT)
        self._views: dict[NodeId, View] = {}
        self._cluster = ""  # one mark for each node
        self._messages: dict[int, tuple[str, NodeId, NodeId]] = {}  # name, sender, to
        show(header())

    def line(self, now_us: int, node: NodeId, what: str, *words: object) -> None:
        super().line(now_us, node, what, *words)
        self._show(now_us, node, " ".join([what, *map(str, words)]))

    def sent(self, number: int, now_us: int, message: Message) -> None:
        super().sent(number, now_us, message)
        self._messages[number] = (type(message).__name__, message.sender, message.to)
        text = f"-> {message.to} {describe(message)} #{number}"
        self._show(now_us, message.sender, text)

    def delivered(self, number: int, now_us: int) -> None:
        super().delivered(number, now_us)
        name, sender, to = self._messages[number]
        self._show(now_us, to, f"<- {sender} {name} #{number}")

    def lost(self, number: int, now_us: int, why: str) -> None:
        super().lost(number, now_us, why)
        name, sender, to = self._messages[number]
        self._show(now_us, to, f"x  {sender} {name} #{number} lost: {why}")

    def state(self, now_us: int, node: NodeId, core: RaftCore | None) -> None:
        """As there. A line comes only with a new role or term."""
        super().state(now_us, node, core)
        before = self._views.setdefault(node, NEVER_SEEN)
        if core is None:
            view = before._replace(mark=DOWN)
        else:
            status = core.status()
            log = core.state.log
            mark = ROLE_MARKS[status.role]
            last = status.last.index
            view = View(mark, status.term, status.applied, status.commit, log.first, status.persisted, last)
        self._views[node] = view
        self._cluster = "".join(self._views[each].mark for each in sorted(self._views))
        if (view.mark, view.term) != (before.mark, before.term):
            name = "down" if core is None else core.status().role.value
            self._show(now_us, node, f"is {name} in term {view.term}")
            self.end(now_us, node)
            self.stretches.append(Stretch(node, name, view.term, now_us * 1_000, now_us * 1_000))

    def end(self, now_us: int, node: NodeId) -> None:
        """The node's newest stretch ends now."""
        last = next((each for each in reversed(self.stretches) if each.node == node), None)
        if last is not None:
            last.until_ns = now_us * 1_000

    def fault(self, fault: Fault) -> None:
        super().fault(fault)
        self.faults.append(fault)
        whom = ", ".join(map(str, fault.nodes)) or "everyone"
        lasting = f" for {fault.lasts_us / 1e6:.3f} s" if fault.lasts_us else ""
        text = f"FAULT {fault.number} {fault.kind} on {whom}{lasting} {fault.detail}".rstrip()
        self._show(fault.now_us, fault.nodes[0] if len(fault.nodes) == 1 else EVERYONE, text)

    def _show(self, now_us: int, node: NodeId, text: str) -> None:
        """A line in fixed columns: when, which node, every node's role, and of this node term, commit and log range."""
        self.events.append((now_us, node, text))
        when = f"{now_us / 1e6:.6f}"
        if node == EVERYONE:
            self.show(_columns(when, "*", self._cluster, "", "", "", text))
            return
        view = self._views.get(node, NEVER_SEEN)
        commit, log = f"{view.applied}/{view.committed}", f"{view.first}..{view.persisted}/{view.last}"
        self.show(_columns(when, str(node), self._cluster, str(view.term), commit, log, text))


def header() -> str:
    return _columns("time", "n", "cluster", "term", "applied/commit", "log first..persisted/last", "what")


def _columns(when: str, node: str, cluster: str, term: str, commit: str, log: str, what: str) -> str:
    return f"{when:>11}  {node}  {cluster:<9}  {term:>4}  {commit:>14}  {log:>25}  {what}"


def describe(message: Message) -> str:
    """A message as words: its name, its term, and the fields that matter to the protocol."""
    name = type(message).__name__
    match message:
        case AppendEntries():
            entries = f" +{len(message.entries)} to {message.entries[-1].index}" if message.entries else ""
            after = f"after {message.prev_index}@{message.prev_term}"
            return f"{name} t{message.term} {after}{entries} commit {message.commit} round {message.round}"
        case AppendEntriesReply():
            hint = f"hint {message.hint_index}@{message.hint_term}"
            match = f"match {message.match} after {message.prev_index}"
            said = match if message.success else f"no {message.prev_index}, {hint}"
            return f"{name} t{message.term} {said} round {message.round}"
        case RequestVote():
            pre = " pre" if message.pre else ""
            return f"{name} t{message.term}{pre} last {message.last_index}@{message.last_term}"
        case RequestVoteReply():
            pre = " pre" if message.pre else ""
            said = "granted" if message.granted else "refused"
            return f"{name} t{message.term}{pre} {said} for t{message.request_term}"
        case InstallSnapshot():
            mark = f"{message.snapshot_index}@{message.snapshot_term}"
            return f"{name} t{message.term} {mark} bytes {message.offset}+{len(message.data)} of {message.total}"
        case InstallSnapshotReply():
            mark = f"{message.snapshot_index}@{message.snapshot_term}"
            return f"{name} t{message.term} {mark} {'has' if message.accepted else 'refuses'} {message.offset}"
        case _:
            return f"{name} t{message.term}"
