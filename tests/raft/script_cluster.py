"""Builds the cluster of a story: real cores, disks that sync on a command, and a wire on which messages wait.

Nothing happens by chance. Messages arrive when a command delivers them, time passes when a command says so, and node n
draws its timeouts n * 10 ms above the least. After every input it checks the invariants of
raft/consensus/invariants.py, one leader per term, and that nodes apply the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.invariants import InvariantBroken, check_log, check_state, check_step, observe
from raftlog.raft.events import BecameLeader
from raftlog.raft.hello import Start
from raftlog.raft.messages import Message
from raftlog.raft.options import Options
from raftlog.raft.ready import Fetch, SyncBatch, SyncQueue
from raftlog.raft.types import NEVER_REPLACED, Entry, HardState, NodeId, ReplacedEnd
from tests.raft.lab import at, log_of, next_ready, start_core
from tests.raft.script_text import batch_text, entries_text, event_text, message_text


@dataclass(slots=True)
class Node:
    """One node: its disk, and the core while it runs."""

    number: NodeId
    hard_state: HardState
    disk: list[Entry]  # durable entries
    commit: int  # what a start may take as committed: the state machine's snapshot
    replaced: ReplacedEnd = NEVER_REPLACED
    tail: int | None = None  # how many entries a start has in memory; None: all
    core: RaftCore | None = None
    queue: SyncQueue = field(default_factory=SyncQueue)
    under_way: SyncBatch | None = None  # a slow disk's write
    is_slow: bool = False
    is_stalled: bool = False
    applied: list[Entry] = field(default_factory=list)


class Cluster:
    """What a story's commands act on; `told` gathers the lines that they show."""

    def __init__(self, members: Configuration, options: Options, *, has_runs: bool = False) -> None:
        self.members = members
        self.has_runs = has_runs  # processes name their start, and peers recall their promises
        self.starts: dict[NodeId, Start] = {}
        self.options = options
        self.now_ms = 0
        self.told: list[str] = []
        self.wire: list[Message] = []
        self.cuts: dict[tuple[NodeId, NodeId], bool] = {}
        self.held: dict[tuple[NodeId, NodeId], bool] = {}
        self.is_settling = False  # then only arrivals are shown, not departures
        self._leaders: dict[int, NodeId] = {}
        self._applied: dict[int, int] = {}
        self.nodes = {
            number: Node(number, HardState(1), log_of(members), 1) for number in [each.node for each in members.members]
        }
        for number in self.nodes:
            self.start(number)
        self.told.clear()

    def say(self, line: str) -> None:
        """Write one line of output."""
        self.told.append(line)

    def running(self, number: NodeId) -> RaftCore:
        """The core of a node that is up. Raises ValueError."""
        core = self.nodes[number].core
        if core is None:
            raise ValueError(f"node {number} is down")
        return core

    def cores(self) -> list[RaftCore]:
        """All that run, in order."""
        return [node.core for node in self.nodes.values() if node.core is not None]

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, number: NodeId) -> None:
        """(Re)start a node from its durable files."""
        node = self.nodes[number]
        node.hard_state = replace(node.hard_state, boot=node.hard_state.boot + 1)
        node.queue, node.under_way, node.applied = SyncQueue(), None, []
        node.core = start_core(
            number,
            self.options,
            node.hard_state,
            node.disk,
            members=self.members,
            commit=node.commit,
            tail=node.tail,
            now_ms=self.now_ms,
            run=100 * number + node.hard_state.boot if self.has_runs else 0,
            kept=node.replaced.kept(node.disk[-1].mark),
        )
        last_term, last_index = node.core.state.recall.kept
        if self.has_runs:
            self.starts[number] = Start(
                run=node.core.state.recall.run,
                last_index=last_index,
                last_term=last_term,
                term=node.hard_state.term,
                floor=node.hard_state.floor,
            )
        self.pump(number)

    def hello(self, number: NodeId) -> None:
        """That process connects to every other one that runs, and they to it."""
        for other in [each for each, node in self.nodes.items() if each != number and node.core is not None]:
            for one, to in ((number, other), (other, number)):
                self.feed(to, partial(self._say_hello, one))

    def _say_hello(self, number: NodeId, core: RaftCore) -> None:
        core.link_opened(number, f"{number:032x}", 1, at(self.now_ms), self.starts.get(number))

    def crash(self, number: NodeId, *, is_cut: bool = False) -> None:
        """Stop a node; what its disk had not confirmed is lost, but for a cut if `is_cut`."""
        node = self.nodes[number]
        self.running(number)
        if is_cut and node.under_way is not None:
            self._write(node, node.under_way._replace(entries=()))
        if not node.queue.is_empty or node.under_way is not None:
            batches = [batch for batch in (node.under_way, node.queue.take()) if batch is not None]
            lost = "; ".join(text for batch in batches if (text := batch_text(batch)))
            unsent = sum(len(batch.messages) for batch in batches)
            self.say(f"{number} loses {lost or 'nothing on disk'}, and {unsent} messages that waited for it")
        node.core = None

    # -- inputs ------------------------------------------------------------------------------------------------

    def feed(self, number: NodeId, action: Callable[[RaftCore], None]) -> None:
        """One input for a core, and everything that it wants done. A failed assertion halts the node."""
        core = self.running(number)
        before = observe(core.state)
        try:
            action(core)
            self.pump(number)
        except AssertionError as halt:
            self.say(f"{number} HALTS: {halt}")
            self.nodes[number].core = None
            return
        check_step(number, before, observe(core.state))

    def tick(self, number: NodeId) -> None:
        """Give a node the time."""
        self.feed(number, lambda core: core.tick(at(self.now_ms)))

    def arrive(self, message: Message) -> None:
        """A message reaches its addressee, or is lost if that node is down."""
        self.wire.remove(message)
        line = f"{message.sender} -> {message.to}  {message_text(message)}"
        if message.to not in self.nodes or self.nodes[message.to].core is None:
            self.say(f"{line}  (lost: {message.to} is down)")
            return
        self.say(line)
        self.feed(message.to, lambda core: core.step(message, at(self.now_ms)))

    def settle(self) -> None:
        """Deliver until nothing moves; held messages and messages to stalled nodes stay under way."""
        self.is_settling = True
        while message := next((each for each in self.wire if self.is_free(each)), None):
            self.arrive(message)
        self.is_settling = False

    def is_free(self, message: Message) -> bool:
        """Whether it arrives without being named."""
        to = self.nodes.get(message.to)
        return (message.sender, message.to) not in self.held and not (to is not None and to.is_stalled)

    def pass_time(self, ms: int, *, is_delivering: bool) -> None:
        """Time goes on: every node ticks when it wants to, unless it stalls."""
        end_ms = self.now_ms + ms
        if is_delivering:
            self.settle()
        while True:
            live = [node for node in self.nodes.values() if node.core is not None and not node.is_stalled]
            due_ms = min((node.core.next_deadline_ms() for node in live if node.core), default=end_ms + 1)
            if due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            told = len(self.told)
            for node in live:
                if node.core is not None and node.core.next_deadline_ms() <= self.now_ms:
                    self.is_settling = is_delivering
                    self.tick(node.number)
                    self.is_settling = False
            if is_delivering:
                self.settle()
            if len(self.told) > told:
                self.told.insert(told, f"-- {self.now_ms} ms")
        self.now_ms = end_ms

    # -- outputs -----------------------------------------------------------------------------------------------

    def pump(self, number: NodeId) -> None:
        """Carry out what a core wants, in the order of raft/ready.py."""
        node, core = self.nodes[number], self.running(number)
        while True:
            while (ready := next_ready(core)) is not None:
                for event in ready.events:
                    self.say(f"{number} {event_text(event)}")
                    if isinstance(event, BecameLeader) and self._leaders.setdefault(event.term, number) != number:
                        raise InvariantBroken(number, "one leader per term", "figure 3", event.term)
                self.send(ready.messages)
                node.queue.add(ready)
                self._apply(node, core, ready.committed)
                for read in ready.reads:
                    self.say(f"{number} may answer read {read.context} from what index {read.index} left")
                for failed in ready.reads_failed:
                    self.say(f"{number} fails read {failed.context}")
                for fetch in ready.fetches:
                    self._fetch(node, core, fetch)
                check_state(core.state)
                check_log(core.state.log, number)
            if node.under_way is not None or node.queue.is_empty:
                return
            node.under_way = node.queue.take()
            if node.is_slow:
                if text := batch_text(node.under_way):
                    self.say(f"{number} begins to write {text}")
                return
            self._sync(node, core)

    def sync(self, number: NodeId) -> None:
        """A slow disk confirms the write that is under way, and begins the next."""
        node = self.nodes[number]
        if node.under_way is None:
            raise ValueError(f"the disk of node {number} has nothing to do")
        self.feed(number, lambda core: self._sync(node, core))

    def _sync(self, node: Node, core: RaftCore) -> None:
        batch = node.under_way
        assert batch is not None
        node.under_way = None
        self._write(node, batch)
        if (text := batch_text(batch)) and (node.is_slow or not self.is_settling):
            self.say(f"{node.number} has on disk {text}")
        self.send(batch.messages)
        if batch.last is not None:
            core.persisted(batch.last.term, batch.last.index, at(self.now_ms))

    @staticmethod
    def _write(node: Node, batch: SyncBatch) -> None:
        node.hard_state = batch.hard_state or node.hard_state
        if batch.cut_after is not None:
            node.replaced = ReplacedEnd(*node.replaced.kept(node.disk[-1].mark), batch.cut_after)
            node.disk = [entry for entry in node.disk if entry.index <= batch.cut_after]
        assert not batch.entries or batch.entries[0].before == node.disk[-1].index, (
            "entries follow the last one on disk"
        )
        node.disk += batch.entries

    def _apply(self, node: Node, core: RaftCore, committed: tuple[Entry, ...]) -> None:
        if not committed:
            return
        for entry in committed:
            if self._applied.setdefault(entry.index, entry.mark.header_crc) != entry.mark.header_crc:
                raise InvariantBroken(node.number, "state machine safety", "figure 3", entry.index)
        node.applied += committed
        self.say(f"{node.number} applies {entries_text(committed)}")
        core.applied(committed[-1].index)

    def _fetch(self, node: Node, core: RaftCore, fetch: Fetch) -> None:
        entries: list[Entry] = []
        size = 0
        for entry in node.disk:
            if fetch.after < entry.index <= fetch.to and (not entries or size + entry.size <= fetch.bytes_max):
                entries.append(entry)
                size += entry.size
        self.say(f"{node.number} reads from disk {entries_text(entries)}")
        core.fetched(fetch, tuple(entries), at(self.now_ms))

    def send(self, messages: Iterable[Message]) -> None:
        """Put messages on the wire; a cut link swallows them."""
        for message in messages:
            is_cut = (message.sender, message.to) in self.cuts
            if not is_cut:
                self.wire.append(message)
            if not self.is_settling:
                lost = "  (lost: cut)" if is_cut else ""
                self.say(f"{message.sender} sends {message.to}  {message_text(message)}{lost}")
