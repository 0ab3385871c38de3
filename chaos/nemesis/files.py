"""Damages files of a stopped node, wipes its disk, or puts an old copy of the disk in its place.

A node is stopped cleanly, its files are hit, and it starts again. In the newest segment, which every start reads,
damage must be seen: the node reports that it heals, and has healed in the end. With a damaged hard state or identity it
must refuse to start, with the exit code of damaged data. Damage elsewhere is seen only by readers, so the node's
answers are compared with another node's. A node that has not healed gets another disk (`members replace`), as
docs/operations/disks.md says. At most a minority of disks is lost at a time (`raftlog.chaos.deploy.disk_account`).
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from raftlog.chaos.deploy import membership
from raftlog.chaos.nemesis.damage import Area, Hit, flip, truncate
from raftlog.chaos.nemesis.fault import FaultSkipped, Field, Injection, Nemesis
from raftlog.cluster.api.records import LogPageJson, LogRecord
from raftlog.cluster.api.status import fingerprint

DATA: Final = 11  # how a node ends whose data folder is damaged, missing or another's (docs/operations/run.md)
LASTS_S: Final = (0.5, 2.0)
START_S: Final = 60.0
"""For a start to end in one way or the other, on a machine that may be busy."""

HEALED_S: Final = 60.0
"""Longest time in seconds for a node to heal once the fault is over: an election, and the missing entries."""

REFUSED_S: Final = 30.0
"""For a peer to refuse a node: it dials again every second."""

REFUSED: Final = "peer_refuses_this_node"
HEALING: Final = "healing"

COPY_AGE: Final = 2
"""Starts by which an old copy is behind: when it is started itself it still counts one less than the peers have met."""

TOLD_MAX: Final = 3_000
"""Records of a damaged segment that are compared."""

ASK_S: Final = 20.0

_page = msgspec.json.Decoder(LogPageJson).decode
Damage = Callable[[Path, Area, random.Random], Hit | None]


def _stop(field: Field) -> int:
    """Chooses a node whose disk may be lost and stops it cleanly: that writes the durable mark. Raises FaultSkipped."""
    cluster = field.deployment.cluster
    node = field.chance.choice(field.nodes)
    field.running(node)
    field.may_lose(node)
    if not field.wait(lambda: cluster.status(node) is not None, START_S):
        raise FaultSkipped(f"node {node} does not serve: it cannot be stopped cleanly")
    _stop_cleanly(field, node)
    return node


def _stop_cleanly(field: Field, node: int) -> None:
    """SIGTERM. Raises FaultSkipped, the node running, where it took so long that it was killed."""
    cluster = field.deployment.cluster
    code = cluster.stop_node(node)
    if code == -signal.SIGKILL:
        cluster.start_node(node)
        raise FaultSkipped(f"node {node} took so long to stop that it was killed: its newest mark may be missing")
    if code != 0:
        raise RuntimeError(f"node {node} ended with {code} at SIGTERM")


def _started(field: Field, node: int) -> int | None:
    """Starts a node: None once it serves, or the code with which it has ended. Raises RuntimeError for neither."""
    cluster = field.deployment.cluster
    cluster.start_node(node)
    if not field.wait(lambda: cluster.pid(node) is None or cluster.status(node) is not None, START_S):
        raise RuntimeError(f"node {node} neither serves nor ends within {START_S:g} s")
    return cluster.exit_code(node) if cluster.pid(node) is None else None


def _said(field: Field, node: int, event: str, key: str) -> str:
    """What the newest line of that event says in the node's own log, or nothing."""
    return next((str(each.get(key, "")) for each in field.log_lines(node) if each.get("event") == event), "")


def _damaged(areas: Sequence[Area], damage: Damage, *, refuses: bool | None) -> Callable[[Field], Injection]:
    """Hits one of these areas. `refuses`: the start must fail (True), must succeed (False), or either (None). Hit in
    the newest segment a node must heal, or say that nothing is left to heal from."""

    def inject(field: Field) -> Injection:
        deployment = field.deployment
        node = _stop(field)
        hit = None
        for area in field.chance.sample(areas, len(areas)):
            hit = damage(deployment.cluster.data(node), area, field.chance)
            if hit is not None:
                break
        deployment.changed_disk(node)
        if hit is None:
            deployment.cluster.start_node(node)
            raise FaultSkipped(f"node {node} has none of {', '.join(areas)} yet")
        deployment.disks.lose(node, hit.what)
        since = deployment.cluster.log_file(node).stat().st_size
        code = _started(field, node)
        if code is None:
            proof = f"{hit.what}; it serves: {_serves(field, node, hit)}"
        else:
            reason = _said(field, node, "not_started", "reason")
            proof = f"{hit.what}; it ended with {code}: {reason[:300]}"
            if code != DATA or not reason:
                field.problems.append(f"node {node} ended with {code} ({reason}) where {hit.what}: {DATA} was due")
        must_heal = area == "log" and "nothing before it is whole" not in proof
        if must_heal and (code is not None or not field.logged(node, "healing", since)):
            how = "serves, and does not say that it heals," if code is None else f"ended with {code}"
            field.problems.append(f"node {node} {how} where {hit.what}")
        elif area != "log" and refuses is not None and refuses != (code is not None):
            how = "serves" if code is None else f"ended with {code}"
            field.problems.append(f"node {node} {how} where {hit.what}")

        def heal() -> str:
            if must_heal and code is None and field.wait(lambda: _is_whole(field, node), HEALED_S):
                deployment.disks.replaced(node)
                return f"it has healed: {_compared(field, node, hit)}"
            if must_heal:
                field.problems.append(f"node {node} has not healed within {HEALED_S:g} s where {hit.what}")
            compared = _compared(field, node, hit) if code is None and hit.first else ""
            membership.replace(deployment, node)
            return "; ".join(part for part in (compared, "another disk has its place, and votes") if part)

        return Injection(f"node {node}: {hit.file.name}", proof, heal)

    return inject


def _newest(field: Field) -> Injection:
    """All nodes are killed at once, and a bit of the newest bytes of one of them flips.

    A bare majority with that node starts first. Whichever node they elect, no acknowledged write may be missing.
    """
    deployment, cluster = field.deployment, field.deployment.cluster
    node = field.chance.choice(field.nodes)
    field.may_lose(node)
    for each in field.nodes:
        field.running(each)
    cluster.kill(*field.nodes)
    hit = flip(cluster.data(node), "newest", field.chance)
    if hit is None:
        cluster.start(field.nodes)
        raise FaultSkipped(f"behind the newest durable mark of node {node} is nothing")
    deployment.changed_disk(node)
    deployment.disks.lose(node, hit.what)
    others = field.chance.sample([each for each in field.nodes if each != node], len(field.nodes) // 2)
    since = cluster.log_file(node).stat().st_size
    cluster.start([node, *others])
    if not field.wait(lambda: bool(field.logged(node, "healing", since)), START_S):
        field.problems.append(f"node {node} does not say that it heals where {hit.what}")

    def heal() -> str:
        cluster.start(field.nodes)
        if not field.wait(lambda: _is_whole(field, node), HEALED_S):
            field.problems.append(f"node {node} has not healed within {HEALED_S:g} s where {hit.what}")
        deployment.disks.replaced(node)
        return f"it has healed; the nodes {others} were started with it"

    return Injection(f"all nodes; node {node}: {hit.file.name}", hit.what, heal)


def _is_whole(field: Field, node: int) -> bool:
    status = field.deployment.cluster.status(node)
    return status is not None and status.role not in ("healing", "fenced") and status.applied == status.committed


def _serves(field: Field, node: int, hit: Hit) -> str:
    """Why a node may serve with such damage. With another identity it is another disk, whose word does not count."""
    if hit.file.name != "identity.json":
        return _said(field, node, "recovered", "notice")[:300] or "no start reads it"
    status = field.deployment.cluster.status(node)
    named = fingerprint(field.deployment.cluster.place(node).incarnation)
    if status is not None and status.disk != named:
        return f"as the disk {status.disk}, which no configuration names"
    return "the identity is the same"


def _compared(field: Field, node: int, hit: Hit) -> str:
    """Compares the records of a damaged node with another node's: it may refuse them; a wrong record is a problem."""
    cluster = field.deployment.cluster
    last = hit.first + TOLD_MAX
    returned, why = _records(field, node, hit.first, last)
    other = next((each for each in cluster.running if each != node and cluster.status(each) is not None), None)
    if other is None or not returned:
        return f"it returned {len(returned)} records from index {hit.first} on{why}"
    true, _ = _records(field, other, hit.first, last)
    there = {record.index: record for record in true}
    for record in returned:
        if record.index in there and there[record.index] != record:
            field.problems.append(
                f"node {node} returned {record} where node {other} returned {there[record.index]}: {hit.what}"
            )
            break
    return f"it returned {len(returned)} records from index {hit.first} on, as node {other} does{why}"


def _records(field: Field, node: int, first: int, last: int) -> tuple[list[LogRecord], str]:
    """The records that the node itself returns, and the reason if it stopped before the last one."""
    records: list[LogRecord] = []
    position = first
    while position <= last:
        target = f"/v1/log?from={position}&to={last + 1}&limit=500&internal=true&consistency=stale&format=json"
        try:
            status, body = field.deployment.cluster.ask(node, target, ASK_S)
        except OSError as error:
            return records, f", then {error}"
        if status != 200:
            return records, f", then {status}: {body[:160].decode(errors='replace')}"
        page = _page(body)
        records += page.records
        if page.next <= position:
            break
        position = page.next
    return records, ""


def _wiped(field: Field) -> Injection:
    """The disk is empty: the node must not start.

    Formatted again under its old identity, which an operator must not do, it must have no vote: it lost its promises.
    Its peers refuse it, or it heals, as a folder does that was made for a log that may be.
    """
    deployment, cluster = field.deployment, field.deployment.cluster
    is_formatted = field.chance.random() < 0.5
    node = _stop(field)
    if is_formatted:
        _meet_again(field, node)
    data = cluster.data(node)
    shutil.rmtree(data)
    deployment.disks.lose(node, "wiped")
    data.mkdir()
    if is_formatted:
        cluster.format_again(node)
    deployment.changed_disk(node)
    if is_formatted:
        return _must_have_no_vote(field, node, "wiped and formatted again", REFUSED, HEALING)
    return _must_have_no_vote(field, node, "wiped", REFUSED)


def _rolled_back(field: Field) -> Injection:
    """An old copy of the data folder is put back: the peers must refuse it, because it lost its newer promises."""
    deployment, cluster = field.deployment, field.deployment.cluster
    node = _stop(field)
    data = cluster.data(node)
    copy = data.with_name(f"{data.name}.copy-{field.number}")
    shutil.copytree(data, copy)
    try:
        for _ in range(COPY_AGE):
            _meet_again(field, node)
    except FaultSkipped:
        shutil.rmtree(copy)
        raise
    shutil.rmtree(data)
    copy.rename(data)
    deployment.disks.lose(node, "rolled back")
    deployment.changed_disk(node)
    return _must_have_no_vote(field, node, "rolled back", REFUSED)


def _meet_again(field: Field, node: int) -> None:
    """Starts a node once more, so that every peer meets it, and stops it cleanly.

    Peers know an old disk by the number of starts that they have met, as long as the peers live. Raises FaultSkipped,
    with the node running, if one of them did not meet it.
    """
    cluster = field.deployment.cluster
    others = [each for each in field.nodes if each != node]
    since = {each: cluster.log_file(each).stat().st_size for each in others}
    cluster.start_node(node)
    cluster.wait_ready([node], START_S)
    if not field.wait(lambda: all(_has_met(field, each, node, since[each]) for each in others), REFUSED_S):
        raise FaultSkipped(f"not every peer met node {node} again within {REFUSED_S:g} s")
    _stop_cleanly(field, node)


def _has_met(field: Field, peer: int, node: int, since: int) -> bool:
    """Whether a peer runs and says in its log, from that byte on, that it heard that node's hello."""
    if field.deployment.cluster.pid(peer) is None:
        return False
    return any(line.get("peer") == node for line in field.logged(peer, "peer_connected", since))


def _must_have_no_vote(field: Field, node: int, what: str, *events: str) -> Injection:
    """Starts that node. It must end with DATA, or log one of these events from then on."""
    deployment = field.deployment
    since = deployment.cluster.log_file(node).stat().st_size
    code = _started(field, node)
    if code is not None:
        proof = f"it ended with {code}: {_said(field, node, 'not_started', 'reason')[:300]}"
        if code != DATA:
            field.problems.append(f"node {node} ended with {code} after its disk was {what}: {DATA} was due")
    else:
        found: list[str] = []

        def has_said() -> bool:
            found.extend(event for event in events if field.logged(node, event, since))
            return bool(found)

        if not field.wait(has_said, REFUSED_S):
            field.problems.append(f"node {node} serves and logs none of {events}, although its disk was {what}")
        proof = f"it logs {found or 'nothing of it'}"

    def heal() -> str:
        membership.replace(deployment, node)
        return "another disk has its place, and votes"

    return Injection(f"node {node}: {what}", proof, heal)


_nemesis: Final = partial(Nemesis, lasts_s=LASTS_S, needs=frozenset(("housekeeping",)), is_heavy=True)

NEMESES: Final[tuple[Nemesis, ...]] = (
    _nemesis(
        "flip-log",
        "a bit of a stopped node's newest segment flips: it heals from the others",
        _damaged(["log"], flip, refuses=False),
    ),
    _nemesis(
        "flip-newest",
        "all nodes are killed, and a bit of what one of them wrote last flips: it heals",
        _newest,
        moves_leader=True,
    ),
    _nemesis(
        "flip-history",
        "a bit of a sealed segment or of its effects flips: no reader gets wrong data",
        _damaged(["history", "ledger"], flip, refuses=None),
    ),
    _nemesis(
        "flip-state",
        "bits of both slots of a stopped node's hard state flip: it does not start",
        _damaged(["hard-state"], flip, refuses=True),
    ),
    _nemesis(
        "flip-identity",
        "a bit of a stopped node's identity flips: it does not start, or its word does not count",
        _damaged(["identity"], flip, refuses=None),
    ),
    _nemesis(
        "flip-spare",
        "a bit of a rebuilt file flips: index, snapshot, old mark, one of two slots: it starts",
        _damaged(["index", "snapshot", "mark", "hard-state-slot"], flip, refuses=False),
    ),
    _nemesis(
        "truncate",
        "the end of a node's newest segment is gone: it heals; of its hard state: it does not start",
        _damaged(["log", "hard-state", "identity"], truncate, refuses=True),
    ),
    _nemesis("wiped-disk", "one node's disk comes back empty: it does not start, or its peers refuse it", _wiped),
    _nemesis("rolled-back-disk", "one node's disk comes back as an old copy: its peers refuse it", _rolled_back),
)
