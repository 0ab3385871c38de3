"""Defines a nemesis: a name, a duration, and a function that breaks something and returns its repair.

`inject` returns once the fault is there, with a proof and with the function that removes it. A proof is the toxics that
the server itself lists, the state letter of a process, an exit code, or the failure of a connection of our own.
`inject` raises `FaultSkipped` when the fault has no target. Any other error may leave half of the fault: it counts as
indeterminate. After both, the runner removes the placed parts by `Field.forget`.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal

from raftlog.chaos.deploy.deployment import Deployment, peer_proxy
from raftlog.chaos.deploy.toxiproxy import Stream, ToxiproxyError
from raftlog.chaos.shim.driver import Shim
from raftlog.cluster.node.local_cluster import LocalClusterError

Lane = Literal["network", "quality", "process", "sink"]
"""Of one lane there is one fault at a time: shapes of the network, quality of its links, nodes, runners of the sink."""

Need = Literal["shim", "spare", "housekeeping", "ages"]
"""What a deployment is to be made with for a nemesis: the preload library, a number for one more node, small segments
and many snapshots, or small segments and retention by age."""

LEADER_WAIT_S: Final = 2.0
UP_S: Final = 15.0
GONE_S: Final = 20.0
"""For a process to end by itself after a fault that ends it, on a machine that may be busy."""


TURN_S: Final = 45.0
"""Longest wait in seconds for the last turn of a fault that repeats."""


class FaultSkipped(Exception):
    """This fault cannot be done here, or not now; the message says why."""


@dataclass(frozen=True, slots=True)
class Toxic:
    """One toxic to place."""

    proxy: str
    kind: str
    stream: Stream = "upstream"
    attributes: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Field:
    """The cluster under attack, as one fault sees it."""

    deployment: Deployment
    number: int
    chance: random.Random
    placed: list[tuple[str, str]] = field(default_factory=list)  # proxy and toxic
    disabled: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)  # set when the fault is to end, for what repeats
    rules: list[int] = field(default_factory=list)  # of the preload library
    problems: list[str] = field(default_factory=list)  # states that must never occur, independent of the histories

    @property
    def nodes(self) -> list[int]:
        """All nodes."""
        return self.deployment.cluster.nodes

    def leader(self) -> int:
        """The node that leads now. Raises FaultSkipped when there is none for a while."""
        try:
            return self.deployment.cluster.leader(LEADER_WAIT_S)
        except LocalClusterError:
            raise FaultSkipped(f"no leader within {LEADER_WAIT_S:g} s") from None

    def leader_or_any(self) -> int:
        """A node; every second time the leader, if there is one."""
        if self.chance.random() < 0.5:
            try:
                return self.leader()
            except FaultSkipped:
                pass
        return self.chance.choice(self.nodes)

    def up(self, nodes: Iterable[int]) -> str:
        """Waits until these nodes answer for themselves, though perhaps not for the cluster: the end of a fault that
        had taken them away. What came of it."""
        end = time.monotonic() + UP_S
        waiting = set(nodes)
        while waiting and time.monotonic() < end:
            waiting -= {node for node in waiting if self.deployment.cluster.status(node) is not None}
            time.sleep(0.02)
        return f"nodes {sorted(waiting)} do not answer after {UP_S:g} s" if waiting else "all answer"

    @property
    def shim(self) -> Shim:
        """The preload library that every node carries. Raises FaultSkipped."""
        if self.deployment.shim is None:
            raise FaultSkipped(self.deployment.no_shim)
        return self.deployment.shim

    def running(self, node: int) -> int:
        """The pid of a node. Raises FaultSkipped when it does not run."""
        pid = self.deployment.cluster.pid(node)
        if pid is None:
            raise FaultSkipped(f"node {node} does not run")
        return pid

    def may_lose(self, node: int) -> None:
        """Raises FaultSkipped where that node's disk may not be lost now."""
        if (refusal := self.deployment.disks.refusal(node, self.nodes)) is not None:
            raise FaultSkipped(refusal)

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Waits for something; whether it came."""
        end = time.monotonic() + seconds
        while not (came := condition()) and time.monotonic() < end:
            time.sleep(0.02)
        return came

    def gone(self, node: int, seconds: float = GONE_S) -> int | None:
        """Waits until a node has ended by itself: its exit code, or None when it has not."""
        self.wait(lambda: self.deployment.cluster.pid(node) is None, seconds)
        return self.deployment.cluster.exit_code(node)

    def log_lines(self, node: int) -> Iterator[dict[str, Any]]:
        """The events at the end of a node's own log, the newest first."""
        for line in reversed(self.deployment.cluster.tail(node).splitlines()):
            with suppress(ValueError):  # the first may be half a line
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event

    def logged(self, node: int, event: str, since: int) -> list[dict[str, Any]]:
        """The lines of that event in a node's log, from that byte on."""
        with self.deployment.cluster.log_file(node).open("rb") as log:
            log.seek(since)
            lines = [line for line in log.read().splitlines() if f'"{event}"'.encode() in line and line.endswith(b"}")]
        return [event_line for line in lines if (event_line := json.loads(line)).get("event") == event]

    def minority(self) -> list[int]:
        """Some nodes, fewer than half: all that may go without the others losing their majority."""
        return sorted(self.chance.sample(self.nodes, (len(self.nodes) - 1) // 2))

    # Toxics.

    def place(self, toxics: Iterable[Toxic]) -> str:
        """Places them, asks the server which there are, and returns that as proof."""
        wanted = list(toxics)
        for number, each in enumerate(wanted):
            name = f"f{self.number}-{number}"
            self.deployment.toxiproxy.add_toxic(each.proxy, name, each.kind, each.stream, dict(each.attributes))
            self.placed.append((each.proxy, name))
        return self.proof()

    def proof(self) -> str:
        """What the server lists of this fault. Raises ToxiproxyError when anything is missing."""
        there = self.deployment.toxiproxy.toxics()
        missing = [f"{proxy}/{name}" for proxy, name in self.placed if name not in there.get(proxy, [])]
        missing += [f"{proxy}/disabled" for proxy in self.disabled if "disabled" not in there.get(proxy, [])]
        if missing:
            raise ToxiproxyError(f"Toxiproxy does not list {', '.join(missing)}")
        count = len(self.placed) + len(self.disabled)
        proxies = sorted({proxy for proxy, _ in self.placed} | set(self.disabled))
        return f"Toxiproxy lists {count} of {count}: {shortened(proxies)}"

    def disable(self, proxies: Iterable[str]) -> str:
        """Closes these proxies' connections and refuses new ones; the proof that it is so."""
        for proxy in proxies:
            self.deployment.toxiproxy.disable(proxy)
            self.disabled.append(proxy)
        return self.proof()

    def forget(self) -> None:
        """Removes every toxic and every rule of this fault, and opens the links that it closed. A proxy that hangs
        leaves no other part of the fault in place: its ToxiproxyError, the last one, is raised after all others.
        """
        if self.rules and self.deployment.shim is not None:
            self.deployment.shim.heal(*self.rules)
            self.rules.clear()
        toxiproxy = self.deployment.toxiproxy
        with ExitStack() as every:
            for proxy in self.disabled:
                every.callback(toxiproxy.enable, proxy)
            for proxy, name in self.placed:
                every.callback(toxiproxy.remove_toxic, proxy, name)
            self.placed.clear()
            self.disabled.clear()


@dataclass(frozen=True, slots=True)
class Injection:
    """An installed fault: its target, the proof that it took effect, and the function that removes it.

    `heal` may return a sentence about the effects seen while the fault lasted.
    """

    target: str
    proof: str
    heal: Callable[[], str | None]
    since_ns: int = field(default_factory=time.monotonic_ns)  # when it took effect, as far as known


@dataclass(frozen=True, slots=True)
class Nemesis:
    """One kind of fault. `moves_leader`: whether it is meant to cost the leader its place. `is_heavy`: it takes several
    starts of a node, so it comes less often than the others where both are asked for."""

    name: str
    says: str
    inject: Callable[[Field], Injection]
    _: KW_ONLY
    lane: Lane = "process"
    needs_others_up: bool = False  # it waits for what the other nodes do: no fault of a node begins before it is there
    lasts_s: tuple[float, float]
    moves_leader: bool = False
    nodes_min: int = 3
    needs: frozenset[Need] = frozenset()
    is_heavy: bool = False


def peers(pairs: Iterable[tuple[int, int]]) -> list[str]:
    """The proxies of ordered pairs of peers."""
    return [peer_proxy(sender, to) for sender, to in pairs]


def swallow(pairs: Iterable[tuple[int, int]]) -> list[Toxic]:
    """Toxics by which nothing of what goes over those links arrives; their connections stay open."""
    return [Toxic(proxy, "timeout", "upstream", (("timeout", 0),)) for proxy in peers(pairs)]


def repeated(
    field: Field, target: str, proof: str, turn: Callable[[], bool], last: Callable[[], str | None], done: str
) -> Injection:
    """A fault that goes on in a thread of its own: `turn` after `turn` until it ends or `turn` says that it is done.
    `last` undoes it; `done` names the turns."""
    turns = [0]
    failed: list[str] = []

    def run() -> None:
        try:
            while not field.ended.is_set() and turn():
                turns[0] += 1
        except Exception as error:  # reported when the fault ends
            failed.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, name=target, daemon=True)
    thread.start()

    def heal() -> str:
        field.ended.set()
        thread.join(TURN_S)
        return "; ".join(part for part in (f"{done} {turns[0]} times", last(), *failed) if part)

    return Injection(target, proof, heal)


def shortened(words: Sequence[str], most: int = 8) -> str:
    """The first of them, and how many more there are."""
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest} more" if rest > 0 else "")
