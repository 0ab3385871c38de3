"""Makes disks fail under a running node: errors, no space, slow, hanging; kills at a named step, and power cuts.

All faults come from outside, by the preload library that every node carries (docs/chaos.md). The proof is the
library's record of each call that it changed. Bytes that were not synced when a process ended are dropped or torn, as a
loss of power would do.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis, swallow
from raftlog.chaos.shim.driver import CallName
from raftlog.chaos.sim.network.topologies import alone
from raftlog.cluster.api.status import Status

FENCED: Final = 13  # how a node ends whose disk failed (docs/operations/run.md)
DOWN_S: Final = (0.3, 2.0)
LASTS_S: Final = (1.0, 4.0)
SLOW_MS: Final = (5, 150)
SLOW_ALL_MS: Final = 300
SLOW_ALL_S: Final = 1.0
"""Long enough for some writes to be answered."""

HIT_S: Final = 6.0
"""For the first call that meets a rule: every node that follows or leads syncs several times a second."""

ROOM_S: Final = 12.0
"""For the next segment to be allocated: small ones are filled in some seconds."""

HANDED_OVER_S: Final = 10.0
"""Longest time in seconds until a leader without disk space is no leader any more, while a majority of the voters
without it answers. It hands over at once where it can, and tries again after three seconds.
"""

ANSWERS_MS: Final = 500
"""A follower answers while its newest answer is at most this old: ten heartbeats, and less than the leader allows."""

ENTRIES: Final = "*/log/[0-9]*.seg"
"""Where entries are written. A segment that is only being made has another name: there no room is no reason to end."""

NTH: Final = (1, 30)
"""Which of the coming writes or syncs kills: several writes make one batch."""


def _inject(field: Field, node: int, call: CallName, **rule_options: Any) -> int:
    """A rule for that node's disk, as `Shim.inject` takes it."""
    rule = field.shim.inject(call, root=field.deployment.cluster.data(node), **rule_options)
    field.rules.append(rule)
    return rule


def _met(field: Field, rule: int, seconds: float = HIT_S) -> int:
    """Waits until the rule has met a call: how many by now. Raises FaultSkipped when none came."""
    if not field.wait(lambda: bool(field.shim.hits(rule)), seconds):
        raise FaultSkipped(f"no such call came within {seconds:g} s")
    return len(field.shim.hits(rule))


def _lose_power(field: Field, nodes: Sequence[int]) -> str:
    """What the loss of power at the end of these processes leaves; they must be gone."""
    losses = []
    for node in nodes:
        torn = random.Random(field.chance.getrandbits(32)) if field.chance.random() < 0.5 else None
        left = field.shim.restore_synced(field.deployment.cluster.data(node), torn=torn)
        how = "torn" if torn is not None else "dropped"
        losses.append(f"node {node}: {left.bytes_in_doubt} bytes of {left.files_in_doubt} files {how}")
    return "; ".join(losses)


def _up_again(field: Field, nodes: Sequence[int]) -> Callable[[], str]:
    def heal() -> str:
        field.forget()
        field.deployment.cluster.start(nodes)
        return f"started again: {field.up(nodes)}"

    return heal


def _failing(call: CallName, error: str, name: str = "*", times: int = 0) -> Callable[[Field], Injection]:
    """Every such call on files of that name (or the first `times` of them) fails from now on.

    The node fences itself and ends; its unsynced bytes are lost. Without room it goes on if only the footer of a full
    segment was to be written: it counts as full, and is sent no entry.
    """

    def inject(field: Field) -> Injection:
        node = field.leader_or_any()
        pid = field.running(node)
        since = field.deployment.cluster.log_file(node).stat().st_size
        rule = _inject(field, node, call, error=error, name=name, times=times)
        count = _met(field, rule)
        code = field.gone(node)
        count = len(field.shim.hits(rule)) or count
        waits = code is None and error == "ENOSPC" and _became_full(field, node, since)
        field.forget()
        if waits:
            proof = f"{count} {call} of pid {pid} met {error}; it waits for room"
            return Injection(f"node {node}: {call} {error}", proof, lambda: field.up([node]))
        if code != FENCED:
            ended = "goes on" if code is None else f"ended with {code}"
            field.problems.append(f"node {node} {ended} although {call} failed with {error}: it must end with {FENCED}")
            raise RuntimeError(f"node {node} {ended}")
        lost = _lose_power(field, [node]) if field.chance.random() < 0.5 else "its files stayed as they were"
        proof = f"{count} {call} of pid {pid} met {error}; it ended with {code}; {lost}"
        return Injection(f"node {node}: {call} {error}", proof, _up_again(field, [node]))

    return inject


def _became_full(field: Field, node: int, since: int) -> bool:
    """Whether a node says in its log, from that byte on, that its disk is full, and not that it has room again."""
    return bool(field.logged(node, "disk_full", since)) and not field.logged(node, "disk_has_room_again", since)


def _full(field: Field) -> Injection:
    """No room for the next segment: the process lives, does not go on leading, and goes on when there is room."""
    node = field.leader_or_any()
    pid = field.running(node)
    rule = _inject(field, node, "allocate", error="ENOSPC")
    count = _met(field, rule, ROOM_S)
    cluster = field.deployment.cluster
    could: list[bool] = []

    def has_handed_over() -> bool:
        status = cluster.status(node)
        if status is None or status.role != "leader":
            return True
        could.append(can_hand_over(status))
        return False

    if not field.wait(has_handed_over, HANDED_OVER_S) and all(could):
        field.problems.append(f"node {node} leads although its disk has been full for {HANDED_OVER_S:g} s")

    def heal() -> str:
        field.forget()
        if field.deployment.cluster.pid(node) != pid:
            field.problems.append(f"node {node} ended although its disk was only full: there it must wait for room")
            field.deployment.cluster.start_node(node)
        return field.up([node])

    return Injection(f"node {node}: no room", f"{count} allocations of pid {pid} met ENOSPC", heal)


def can_hand_over(leader: Status) -> bool:
    """Whether a majority of the voters without this leader answers it; of both sides, while the configuration is joint.

    Where the leader is needed for a majority, its full disk takes the entries of the reserve, and it goes on leading.
    """
    answering = {each.node for each in leader.followers if 0 <= each.last_contact_ms <= ANSWERS_MS}
    return all(2 * len(answering.intersection(side)) > len(side) for side in (leader.voters, leader.outgoing) if side)


def _slow(field: Field) -> Injection:
    """A disk on which every sync takes that much longer; whether its process dies meanwhile does not matter."""
    node = field.chance.choice(field.nodes)
    delay_ms = field.chance.randint(*SLOW_MS)
    rule = _inject(field, node, "fdatasync", delay_ms=delay_ms)
    _met(field, rule)

    def heal() -> str:
        count = len(field.shim.hits(rule))
        field.forget()
        return f"{count} syncs were late"

    return Injection(f"node {node}: every sync {delay_ms} ms longer", "the library recorded the first one", heal)


def _hanging(field: Field) -> Injection:
    """The leader's syncs do not come back; it has to step down, and when the disk moves again all of it is there."""
    node = field.leader()
    pid = field.running(node)
    rule = _inject(field, node, "sync", hang=True)
    since_ns = time.monotonic_ns()
    count = _met(field, rule)

    def heal() -> str:
        field.forget()
        field.deployment.cluster.start_node(node)
        return field.up([node])

    return Injection(f"leader {node}: syncs hang", f"{count} syncs of pid {pid} do not come back", heal, since_ns)


def _killed_at(call: CallName) -> Callable[[Field], Injection]:
    """SIGKILL before, in the middle of or after a call that is to come, and the power gone with the process."""

    def inject(field: Field) -> Injection:
        node = field.leader_or_any()
        pid, nth = field.running(node), field.chance.randint(*NTH)
        when: Literal["before", "half", "after"] = field.chance.choice(("before", "half", "after"))
        rule = field.shim.kill_at(call, nth, when=when, root=field.deployment.cluster.data(node))
        field.rules.append(rule)
        code = field.gone(node)
        if code is None:
            raise FaultSkipped(f"{call} {nth} did not come")
        met = len(field.shim.hits(rule))
        field.forget()
        if code != -signal.SIGKILL or met != 1:
            raise RuntimeError(f"node {node} ended with {code}, the library killed at {met} calls")
        proof = f"pid {pid} was killed {when} {call} {nth}; {_lose_power(field, [node])}"
        return Injection(f"node {node}: killed {when} {call} {nth}", proof, _up_again(field, [node]))

    return inject


def _power(field: Field, nodes: Sequence[int]) -> Injection:
    cluster, _ = field.deployment.cluster, field.shim
    nodes = [node for node in nodes if cluster.pid(node) is not None]
    if not nodes:
        raise FaultSkipped("no node runs")
    since_ns = time.monotonic_ns()
    cluster.kill(*nodes)
    return Injection(f"nodes {nodes}", _lose_power(field, nodes), _up_again(field, nodes), since_ns)


def _power_cut_slow(field: Field, *, slow_leader: bool) -> Injection:
    """All nodes lose power while the syncs of some take long: nothing that was acknowledged may rest on those alone.

    The followers' are slow; or the leader's, with one follower cut off. Those that hold less are started first.
    """
    leader = field.leader()
    followers = [node for node in field.nodes if node != leader]
    for node in field.nodes:
        field.running(node)
    whole = followers[: len(field.nodes) // 2] if slow_leader else [leader]
    slow = [leader] if slow_leader else followers
    if slow_leader:
        cut_off = [pair for node in followers if node not in whole for pair in alone(field.nodes, node)]
        field.place(swallow(cut_off))
    rules = [_inject(field, node, "fdatasync", delay_ms=SLOW_ALL_MS) for node in slow]
    _met(field, rules[0])
    field.ended.wait(SLOW_ALL_S)
    cut = _power(field, field.nodes)
    met = sum(len(field.shim.hits(rule)) for rule in rules)
    field.forget()

    def heal() -> str:
        cluster = field.deployment.cluster
        first = [node for node in field.nodes if node not in whole]
        cluster.start(first)
        field.wait(lambda: any((status := cluster.status(node)) and status.role == "leader" for node in first), HIT_S)
        cluster.start(whole)
        return f"nodes {first} started before {whole}: {field.up(field.nodes)}"

    target = f"all nodes; the syncs of nodes {slow} took {SLOW_ALL_MS} ms longer"
    return Injection(target, f"{met} syncs were late; {cut.proof}", heal, cut.since_ns)


_nemesis: Final = partial(Nemesis, lasts_s=DOWN_S, needs=frozenset(("shim", "housekeeping")))

NEMESES: Final = (
    _nemesis("sync-error", "one node's fdatasync fails with EIO: it fences itself", _failing("fdatasync", "EIO")),
    _nemesis("write-error", "one node's pwrite fails with EIO: it fences itself", _failing("pwrite", "EIO", ENTRIES)),
    _nemesis(
        "write-full",
        "one node's pwrite fails with ENOSPC: it fences itself, or waits",
        _failing("pwrite", "ENOSPC", ENTRIES),
    ),
    _nemesis(
        "disk-full", "one node has no room for the next segment: it waits, and does not lead", _full, lasts_s=LASTS_S
    ),
    _nemesis(
        "slow-disk",
        f"one node's syncs take {SLOW_MS[0]} to {SLOW_MS[1]} ms longer",
        _slow,
        lasts_s=LASTS_S,
        lane="quality",
    ),
    _nemesis("hanging-disk", "the leader's syncs do not come back", _hanging, lasts_s=(2.0, 4.0), moves_leader=True),
    _nemesis("kill-at-write", "killed before, in or after a write, unsynced bytes lost", _killed_at("pwrite")),
    _nemesis("kill-at-sync", "killed before, in or after a sync, unsynced bytes lost", _killed_at("fdatasync")),
    _nemesis(
        "power-cut",
        "as many as may go lose power, unsynced bytes lost",
        lambda field: _power(field, field.minority()),
    ),
    _nemesis(
        "power-cut-all",
        "all nodes lose power at once, unsynced bytes lost",
        lambda field: _power(field, field.nodes),
        moves_leader=True,
    ),
    _nemesis(
        "power-cut-slow",
        "all nodes lose power while the followers' syncs are slow",
        partial(_power_cut_slow, slow_leader=False),
        moves_leader=True,
    ),
    _nemesis(
        "power-cut-leader",
        "all nodes lose power while the leader's syncs are slow and a minority is cut off",
        partial(_power_cut_slow, slow_leader=True),
        moves_leader=True,
    ),
    _nemesis(
        "sync-error-once",
        "one fdatasync fails with EIO and none after it: the node fences itself all the same",
        _failing("fdatasync", "EIO", ENTRIES, times=1),
    ),
)
