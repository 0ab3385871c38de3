"""Defines the commands of a story: one function per command, named as in the story.

A command is a row of words: plain ones (`campaign 1`), links (`1>2`, `1>` from 1, `>2` to 2) and options (`count=3`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from raftlog.raft import messages
from raftlog.raft.changes import MemberChange, Promote, Remove
from raftlog.raft.configuration import Configuration
from raftlog.raft.consensus.core import RaftCore
from raftlog.raft.consensus.roles import Leader
from raftlog.raft.messages import Message
from raftlog.raft.options import Options
from raftlog.raft.refusals import ProposalRefused
from raftlog.raft.types import EntryKind, HardState, Mark, NodeId, Now
from tests.raft.lab import at, configuration, extend, log_of
from tests.raft.script_cluster import Cluster
from tests.raft.script_text import entries_text, message_text, progress_text, status_text
from tests.raft.script_words import COMMANDS, Words, command, parse, parse_log


class Story:
    """The cluster of one story; `do` carries out a command and gives the lines that it shows."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None

    def do(self, line: str) -> list[str]:
        """Carry out one command. Raises ValueError for an unknown command, and InvariantBroken."""
        is_quiet = line.startswith("quietly ")
        name, words = parse(line.removeprefix("quietly "))
        if name == "cluster":
            self._cluster = make_cluster(words)
            return []
        if self._cluster is None:
            raise ValueError("a story begins with `cluster`")
        if name not in COMMANDS:
            raise ValueError(f"{name!r} is no command; these are: {', '.join(sorted(COMMANDS))}")
        try:
            COMMANDS[name](self._cluster, words)
        except ProposalRefused as refusal:
            self._cluster.say(f"refused: {type(refusal).__name__}: {refusal}")
        told, self._cluster.told = self._cluster.told, []
        return [] if is_quiet else told


def make_cluster(words: Words) -> Cluster:
    """`cluster nodes=3 learners=4,5 heartbeat_ms=60 …`: any field of raftlog.raft.options may be set. With `runs=yes`
    processes ask each other about their promises, once they are connected (`hello`)."""
    given = dict(words.options)
    nodes = int(given.pop("nodes", "3"))
    learners = [int(node) for node in given.pop("learners", "").split(",") if node]
    has_runs = given.pop("runs", "no") == "yes"
    options = Options(**{name: int(value) for name, value in given.items()})
    members: Configuration = configuration(nodes, learners=learners)
    return Cluster(members, options, has_runs=has_runs)


# -- nodes and their disks -----------------------------------------------------------------------------------------


@command("node")
def _node(cluster: Cluster, words: Words) -> None:
    """`node 2 log=1,2,3x4 term=3 vote=1 commit=2 tail=1`: start it with these entries on disk, after entry 1@1."""
    node = cluster.nodes[words.node()]
    node.disk = log_of(cluster.members, *parse_log(words.options.get("log", "")))
    term = words.number("term", node.disk[-1].term)
    node.hard_state = HardState(term, words.number("vote"), node.hard_state.boot)
    node.commit = words.number("commit", 1)
    node.tail = words.number("tail") if "tail" in words.options else None
    cluster.start(words.node())
    cluster.told.clear()


@command("crash")
def _crash(cluster: Cluster, words: Words) -> None:
    """`crash 1 2`: these nodes stop; what their disks had not confirmed is lost, but for a cut with `torn=cut`."""
    for word in words.plain:
        cluster.crash(int(word), is_cut="torn" in words.options)


@command("restart")
def _restart(cluster: Cluster, words: Words) -> None:
    """`restart 1 tail=2`: start it from its disk, with so many entries in memory."""
    for word in words.plain:
        node = cluster.nodes[int(word)]
        node.tail = words.number("tail") if "tail" in words.options else None
        cluster.start(int(word))


@command("hello")
def _hello(cluster: Cluster, words: Words) -> None:
    """`hello 1 2`: these processes connect to all others, and those to them."""
    for word in words.plain:
        cluster.hello(int(word))


@command("rollback")
def _rollback(cluster: Cluster, words: Words) -> None:
    """`rollback 2 after=3 term=2 vote=0 floor=0`: the disk of a stopped node gets an earlier content, and the floor."""
    node = cluster.nodes[words.node()]
    if node.core is not None:
        raise ValueError(f"node {node.number} runs")
    node.disk = [entry for entry in node.disk if entry.index <= words.number("after")]
    term = words.number("term", node.disk[-1].term)
    node.hard_state = HardState(term, words.number("vote"), node.hard_state.boot, words.number("floor"))


@command("disk")
def _disk(cluster: Cluster, words: Words) -> None:
    """`disk 1 slow`: writes wait for `sync 1`; `disk 1 fast`: they are durable at once again."""
    cluster.nodes[words.node()].is_slow = {"slow": True, "fast": False}[words.plain[1]]


@command("sync")
def _sync(cluster: Cluster, words: Words) -> None:
    """`sync 1`: the write under way is done, and the next begins."""
    cluster.sync(words.node())


@command("stall")
def _stall(cluster: Cluster, words: Words) -> None:
    """`stall 1`: the process stands still; time passes, messages wait before it."""
    cluster.nodes[words.node()].is_stalled = True


@command("wake")
def _wake(cluster: Cluster, words: Words) -> None:
    """`wake 1`: it goes on."""
    cluster.nodes[words.node()].is_stalled = False


# -- time ----------------------------------------------------------------------------------------------------------


@command("campaign")
def _campaign(cluster: Cluster, words: Words) -> None:
    """`campaign 1`: time jumps to that node's timeout, and no other node gets a tick."""
    core = cluster.running(words.node())
    if isinstance(core.state.role, Leader):
        raise ValueError("it leads already")
    cluster.now_ms = max(cluster.now_ms, core.next_deadline_ms())
    cluster.tick(words.node())


@command("elect")
def _elect(cluster: Cluster, words: Words) -> None:
    """`elect 1`: `campaign 1`, and everything settles, which must make it the leader."""
    _campaign(cluster, words)
    cluster.settle()
    if not isinstance(cluster.running(words.node()).state.role, Leader):
        raise ValueError("it did not win")


@command("tick")
def _tick(cluster: Cluster, words: Words) -> None:
    """`tick 1`: that node looks at the clock."""
    cluster.tick(words.node())


@command("heartbeat")
def _heartbeat(cluster: Cluster, words: Words) -> None:
    """`heartbeat 1`: time jumps to that leader's next heartbeat, and only it looks at the clock."""
    cluster.now_ms = max(cluster.now_ms, cluster.running(words.node()).next_deadline_ms())
    cluster.tick(words.node())


@command("wait")
def _wait(cluster: Cluster, words: Words) -> None:
    """`wait 100`: milliseconds pass, nodes run their timers, messages stay under way."""
    cluster.pass_time(int(words.plain[0]), is_delivering=False)


@command("run")
def _run(cluster: Cluster, words: Words) -> None:
    """`run 1000`: milliseconds pass, nodes run their timers, messages arrive."""
    cluster.pass_time(int(words.plain[0]), is_delivering=True)


@command("jump")
def _jump(cluster: Cluster, words: Words) -> None:
    """`jump 100`: the clock goes on, and no node gets a tick."""
    cluster.now_ms += int(words.plain[0])


# -- messages ------------------------------------------------------------------------------------------------------


def _ends(link: str) -> tuple[str, str]:
    sender, _, to = link.partition(">")
    return sender, to


def _chosen(cluster: Cluster, words: Words) -> list[Message]:
    """Messages under way, chosen by links, by the type's name and by `nth=1`; without a link, those that are free."""
    links = [_ends(word) for word in words.plain if ">" in word]
    names = [word for word in words.plain if ">" not in word]

    def is_meant(message: Message) -> bool:
        if names and type(message).__name__ not in names:
            return False
        ends = ({"", str(message.sender)}, {"", str(message.to)})
        if not links:
            return cluster.is_free(message)
        return any(sender in ends[0] and to in ends[1] for sender, to in links)

    found = [message for message in cluster.wire if is_meant(message)]
    return [found[words.number("nth") - 1]] if "nth" in words.options else found


def _some(cluster: Cluster, words: Words) -> Iterable[Message]:
    chosen = _chosen(cluster, words)
    if not chosen:
        raise ValueError(f"no such message is under way: {[message_text(message) for message in cluster.wire]}")
    return chosen


@command("deliver")
def _deliver(cluster: Cluster, words: Words) -> None:
    """`deliver 1>2 AppendEntries nth=2`: the chosen messages under way arrive; no answer to them yet."""
    for message in _some(cluster, words):
        cluster.arrive(message)


@command("drop")
def _drop(cluster: Cluster, words: Words) -> None:
    """`drop 1>2`: the chosen messages under way are lost."""
    for message in _some(cluster, words):
        cluster.wire.remove(message)
        cluster.say(f"{message.sender} -> {message.to}  {message_text(message)}  (lost)")


@command("duplicate")
def _duplicate(cluster: Cluster, words: Words) -> None:
    """`duplicate 1>2`: the chosen messages under way will arrive once more."""
    cluster.wire += _some(cluster, words)


@command("settle")
def _settle(cluster: Cluster, words: Words) -> None:
    """`settle`: messages arrive, and the answers to them, until nothing is under way."""
    del words
    cluster.settle()


@command("wire")
def _wire(cluster: Cluster, words: Words) -> None:
    """`wire`: the messages under way."""
    del words
    for message in cluster.wire:
        cluster.say(f"{message.sender} ... {message.to}  {message_text(message)}")


@command("inject")
def _inject(cluster: Cluster, words: Words) -> None:
    """`inject 9>1 TimeoutNow term=3 last_index=4`: a message that no node of the cluster sent arrives; `log=2,2`: with
    these entries after the addressee's entry at prev_index."""
    (sender, to), kind = _ends(words.plain[0]), words.plain[1]
    fields: dict[str, object] = {name: int(value) for name, value in words.options.items() if name != "log"}
    if "log" in words.options:
        mark = _mark(cluster, int(to), words.number("prev_index"))
        fields["entries"] = tuple(extend(mark, *parse_log(words.options["log"])))
    fields |= dict.fromkeys(words.plain[2:], True)
    for name in ("success", "granted"):
        if name in getattr(messages, kind).__dataclass_fields__:
            fields.setdefault(name, False)
    message = getattr(messages, kind)(sender=int(sender), to=fields.pop("to", int(to)), **fields)
    cluster.say(f"{sender} -> {to}  {message_text(message)}")
    cluster.feed(int(to), lambda core: core.step(message, at(cluster.now_ms)))


# -- links ---------------------------------------------------------------------------------------------------------


@command("cut")
def _cut(cluster: Cluster, words: Words) -> None:
    """`cut 1>2`, `cut 1-2` (both ways): from now on messages there are lost."""
    for word in words.plain:
        a, b = word.replace("-", ">").split(">")
        cluster.cuts[int(a), int(b)] = True
        if "-" in word:
            cluster.cuts[int(b), int(a)] = True


@command("isolate")
def _isolate(cluster: Cluster, words: Words) -> None:
    """`isolate 1 2`: these and the others are cut off from each other, both ways."""
    inside = [int(word) for word in words.plain]
    for a in cluster.nodes:
        for b in cluster.nodes:
            if (a in inside) != (b in inside):
                cluster.cuts[a, b] = True


@command("topology")
def _topology(cluster: Cluster, words: Words) -> None:
    """`topology 1-2 2-3`: only these links exist."""
    kept = [tuple(int(end) for end in word.split("-")) for word in words.plain]
    cluster.cuts = {
        (a, b): True for a in cluster.nodes for b in cluster.nodes if (a, b) not in kept and (b, a) not in kept
    }


@command("heal")
def _heal(cluster: Cluster, words: Words) -> None:
    """`heal`: no cuts any more."""
    del words
    cluster.cuts.clear()


@command("hold")
def _hold(cluster: Cluster, words: Words) -> None:
    """`hold 1>2`: messages there stay under way until a command names them."""
    for word in words.plain:
        sender, to = _ends(word)
        cluster.held[int(sender), int(to)] = True


@command("release")
def _release(cluster: Cluster, words: Words) -> None:
    """`release`: no link is held any more; held messages arrive with the next `settle`."""
    del words
    cluster.held.clear()


@command("link-opened")
def _link_opened(cluster: Cluster, words: Words) -> None:
    """`link-opened 2>1`: node 2 sees that node 1 connected to it."""
    _tell_links(cluster, words, lambda core, peer, now: core.link_opened(peer, f"{peer:032x}", 1, now))


@command("link-closed")
def _link_closed(cluster: Cluster, words: Words) -> None:
    """`link-closed 2>1`: node 2 sees that its connection to 1 closed."""
    _tell_links(cluster, words, lambda core, peer, now: core.link_closed(peer, now))


@command("link-dialled")
def _link_dialled(cluster: Cluster, words: Words) -> None:
    """`link-dialled 2>1`: node 2 has dialled node 1 again, and got through."""
    _tell_links(cluster, words, lambda core, peer, now: core.link_dialled(peer, now))


@command("link-refused")
def _link_refused(cluster: Cluster, words: Words) -> None:
    """`link-refused 2>1`: node 2 has dialled node 1, and was refused."""
    _tell_links(cluster, words, lambda core, peer, now: core.link_refused(peer, now))


def _tell_links(cluster: Cluster, words: Words, news: Callable[[RaftCore, NodeId, Now], None]) -> None:
    for word in words.plain:
        number, peer = (int(end) for end in _ends(word))
        cluster.feed(number, lambda core, peer=peer: news(core, peer, at(cluster.now_ms)))  # type: ignore[misc]


# -- requests ------------------------------------------------------------------------------------------------------


@command("propose")
def _propose(cluster: Cluster, words: Words) -> None:
    """`propose 1 a count=3`, `propose 1 bytes=1000`: append at that node."""
    data = b"." * words.number("bytes") if "bytes" in words.options else " ".join(words.plain[1:]).encode() or b"x"

    def propose(core: RaftCore) -> None:
        proposed = core.propose(EntryKind.COMMANDS, words.number("count", 1), data, at(cluster.now_ms))
        where = str(proposed.last) if proposed.first == proposed.last else f"{proposed.first} to {proposed.last}"
        cluster.say(f"{words.node()} takes it at index {where} in term {proposed.term}")

    cluster.feed(words.node(), propose)


@command("read")
def _read(cluster: Cluster, words: Words) -> None:
    """`read 1 7 8`: linearizable reads, called 7 and 8, at node 1, in one turn."""

    def read(core: RaftCore) -> None:
        for context in words.plain[1:]:
            core.read(int(context), at(cluster.now_ms))

    cluster.feed(words.node(), read)


@command("transfer")
def _transfer(cluster: Cluster, words: Words) -> None:
    """`transfer 1 to=2`: node 1 hands over its leadership, without `to=` to the voter that has most."""

    def transfer(core: RaftCore) -> None:
        cluster.say(f"{words.node()} will hand over to {core.transfer(words.number('to'), at(cluster.now_ms))}")

    cluster.feed(words.node(), transfer)


@command("change")
def _change(cluster: Cluster, words: Words) -> None:
    """`change 1 promote=4`, `change 1 remove=2,3`: node 1 changes the members."""
    ((what, nodes),) = words.options.items()
    kind = Promote if what == "promote" else Remove
    change: MemberChange = kind(tuple(int(node) for node in nodes.split(",")))

    def propose(core: RaftCore) -> None:
        index = core.propose_configuration(change, at(cluster.now_ms))
        cluster.say(f"{words.node()} begins the change with entry {index}")

    cluster.feed(words.node(), propose)


def _mark(cluster: Cluster, number: NodeId, index: int) -> Mark:
    mark = cluster.running(number).state.log.mark_at(index)
    assert mark is not None, index
    return mark


# -- looking -------------------------------------------------------------------------------------------------------


def _named(cluster: Cluster, words: Words) -> list[NodeId]:
    return [int(word) for word in words.plain] or list(cluster.nodes)


@command("status")
def _status(cluster: Cluster, words: Words) -> None:
    """`status`, `status 1 2`: each node in one line."""
    for number in _named(cluster, words):
        core = cluster.nodes[number].core
        cluster.say(f"{number} is down" if core is None else status_text(core.status()))


@command("log")
def _log(cluster: Cluster, words: Words) -> None:
    """`log`, `log 1 2`: the log on these nodes' disks."""
    for number in _named(cluster, words):
        cluster.say(f"{number} has {entries_text(cluster.nodes[number].disk)}")


@command("applied")
def _applied(cluster: Cluster, words: Words) -> None:
    """`applied`: what each node has applied since it started."""
    for number in _named(cluster, words):
        cluster.say(f"{number} has applied {entries_text(cluster.nodes[number].applied)}")


@command("progress")
def _progress(cluster: Cluster, words: Words) -> None:
    """`progress 1`: how that leader sees each follower."""
    role = cluster.running(words.node()).state.role
    for node, progress in role.progress.items() if isinstance(role, Leader) else ():
        cluster.say(progress_text(node, progress))
