"""Decides whether a peer's process may speak: why its hello is refused.

Identity is not address (docs/promises.md). The configuration names the incarnation of every member's disk; votes and
acknowledgements of any other disk under that number do not count. The boot counter only rises, so a disk with a lower
counter than before was rolled back. A program that does not know the cluster version could not apply new entries
(pitfall 71: newer data opened by older code). The hello refuses it with that reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from raftlog.raft.codec.checks import INDEX_MAX, Corrupt
from raftlog.raft.types import NodeId

START_CHARS_MAX: Final = 512
"""Longest text of a `Start` in a hello: five times what this version writes, for words that later versions add."""

BOOT_JUMP_MAX: Final = 1_000_000
"""Most starts of a disk between two hellos of it: a node that crashes twice a second for six days comes so far."""

_START: Final = re.compile(
    r"run=([0-9a-f]{16}) last=([0-9]{1,19})@([0-9]{1,19}) term=([0-9]{1,19}) floor=([0-9]{1,19})( [a-z]+=[!-~]+)*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a process found on its disk when it started. A process says the same in each of its hellos."""

    run: int  # drawn at random when the process started, not 0: two processes with one boot counter differ in it
    last_index: int  # of the newest entry up to which the disk kept its promises: durable, or replaced by a leader
    last_term: int  # of that entry
    term: int  # of the hard state
    floor: int  # not 0: the node has no vote until it heals (raftlog.raft.wal.repair)


class PeerProcess(NamedTuple):
    """The newest process of a disk that this process has met."""

    boot: int = 0  # its boot counter
    run: int = 0  # 0: not known
    where: str = "?"  # the address that it dialled from, for people


NEVER_MET: Final = PeerProcess()


def encode_start(start: Start) -> str:
    """The text of a Start in a hello."""
    return f"run={start.run:016x} last={start.last_index}@{start.last_term} term={start.term} floor={start.floor}"


def decode_start(text: str) -> Start:
    """The Start of that text. Words behind those known here are passed over: a later version may say more.

    Raises Corrupt.
    """
    found = _START.fullmatch(text) if len(text) <= START_CHARS_MAX else None
    if found is None:
        raise Corrupt(f"a hello says of its process: {text!r:.200}")
    run = int(found[1], 16)
    last_index, last_term, term, floor = (int(found[group]) for group in range(2, 6))
    if run == 0 or max(run, last_index, last_term, term, floor) > INDEX_MAX or last_term > term:
        raise Corrupt(f"a hello says of its process: {text!r:.200}")
    return Start(run=run, last_index=last_index, last_term=last_term, term=term, floor=floor)


def removed(sender: NodeId) -> str:
    """Why a node that was removed is refused."""
    return (
        f"node {sender} was removed from this cluster: stop it. To take its machine in again, format an empty data "
        f"folder there, and add it with a new number"
    )


def refusal(
    *,
    sender: NodeId,
    boot: int,
    knows: int,
    node: NodeId,
    met: PeerProcess,
    version: int,
    run: int = 0,
    where: str = "?",
    is_removed: bool = False,
) -> str | None:
    """Why `node` refuses the hello of `sender`, with the fix; None: it accepts it.

    `met` is the process of the sender's disk with the highest boot counter that this process has met. `knows` is the
    newest cluster version that the sender knows, `version` the one in force here. `run` distinguishes two processes
    with one boot counter (0: not known); `where` is an address for people. `is_removed`: a
    configuration that counts has removed that disk (`raftlog.raft.consensus.state.State.has_removed`). Which
    messages of a disk count, the core decides: see `raftlog.raft.consensus.hearing`.
    """
    if is_removed:
        return removed(sender)
    if sender == node:
        return f"node {sender} is no other member of this cluster: it is this one"
    if boot < met.boot:
        return (
            f"node {sender} says it was started {boot} times, but {met.boot} were seen: its data folder is an old copy"
        )
    if boot == met.boot and run and met.run and run != met.run:
        return (
            f"two processes say that they are start {boot} of node {sender}: run {met.run:016x} from {met.where} came "
            f"first, run {run:016x} from {where} is refused: one data folder is a copy of the other, or an old copy. "
            f"Stop one of them, and let the node join again with an empty folder"
        )
    if met.boot and boot > met.boot + BOOT_JUMP_MAX:
        return (
            f"node {sender} says it was started {boot} times, and {met.boot} were seen: no disk is started more than "
            f"{BOOT_JUMP_MAX} times between two looks at it. If it was, start node {node} again"
        )
    if knows < version:
        return (
            f"node {sender} knows cluster versions up to {knows}, the cluster is at version {version}: start a newer "
            f"version of raftlog on node {sender}"
        )
    return None
