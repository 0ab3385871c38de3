"""The first words on a peer link: the hello, why one is refused, and how that is said; pure.

DESIGN section 5, peer link. A connection is directed: who dialled sends a hello and then frames, who accepted sends
nothing, but for one last frame with the reason when it refuses the hello, so that both sides can log it. Identity is
not address (promise 8): log id, node ids and the disk's incarnation are compared on every connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from raft import hello as hello_rule
from raft.codec import FRAME_HELLO, Corrupt, Frame, encode_frame
from raft.hello import Met, Start, decode_start, encode_start
from raft.types import NodeId

MAGIC: Final = "raftlog-peer"
PEER_VERSION_MIN: Final = 1
PEER_VERSION_MAX: Final = 4
"""2: nodes ask each other about the log on their disks (`cluster.peer_log_frames`). 3: it tells the cluster version.
4: nodes tell each other more about their disks; each use says what, and is sent only to peers that speak it."""
STARTS_VERSION: Final = 4
"""From this version on a hello says what its process found on its disk at its start (`raft.hello.Start`)."""
CLUSTER_VERSIONS: Final = {1: 1, 2: 1, 3: 2, 4: 2}
"""Version of the peer protocol -> the newest cluster version that whoever speaks it knows. A new cluster version takes
a new version of the protocol: a hello of another form would be refused by those who are still to be upgraded."""
SHARD: Final = 0
_REFUSED: Final = "raftlog-refused"


class Purpose(IntEnum):
    """What a connection carries: bulk never delays a heartbeat."""

    CONSENSUS = 1  # `raft.messages`
    BULK = 2  # forwards, read indexes and their answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who dials whom, with which disk, in which cluster."""

    log: str
    sender: NodeId
    to: NodeId
    incarnation: str
    boot: int
    purpose: Purpose
    shard: int = SHARD
    version_min: int = PEER_VERSION_MIN
    version_max: int = PEER_VERSION_MAX
    start: Start | None = None  # of the process that dials; None: its program is too old to say it

    @property
    def knows(self) -> int:
        """The newest cluster version that its sender knows, as far as it can be told here."""
        return max(known for spoken, known in CLUSTER_VERSIONS.items() if spoken <= max(self.version_max, 1))


_TYPES: Final = (str, int, int, str, int, str, int, int, str, int, int)


def encode_hello(hello: Hello) -> bytes:
    """The first frame of a connection."""
    return encode_frame(
        FRAME_HELLO,
        [
            MAGIC, hello.version_min, hello.version_max, hello.log, hello.shard,
            encode_start(hello.start) if hello.start is not None else "",
            hello.sender, hello.to, hello.incarnation, hello.boot, int(hello.purpose),
        ],
    )  # fmt: skip


def decode_hello(frame: Frame) -> Hello:
    """The hello of a connection's first frame. Raises Corrupt."""
    values = frame.header
    if frame.kind != FRAME_HELLO or not values or values[0] != MAGIC:
        raise Corrupt("the first frame is no raftlog hello")
    if len(values) != len(_TYPES) or any(type(value) is not kind for value, kind in zip(values, _TYPES, strict=True)):
        raise Corrupt(f"hello of another form: {values!r:.200}")
    _, version_min, version_max, log, shard, said, sender, to, incarnation, boot, purpose = values
    if purpose not in Purpose.__members__.values():
        raise Corrupt(f"hello for an unknown purpose {purpose!r}")
    start = decode_start(str(said)) if said and _int(version_max) >= STARTS_VERSION else None
    return Hello(
        log=str(log), sender=_int(sender), to=_int(to), incarnation=str(incarnation), boot=_int(boot),
        purpose=Purpose(_int(purpose)), shard=_int(shard), version_min=_int(version_min),
        version_max=_int(version_max), start=start,
    )  # fmt: skip


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def refusal(hello: Hello, *, log: str, node: NodeId, met: Met, version: int, where: str = "?") -> str | None:
    """Why that hello cannot be taken by node `node`, with the mend; None: it can.

    `met` is the newest process of that disk that this process has met: a lower boot counter is a disk that was rolled
    back to an old copy, the same one with another run is a clone. `version` is the cluster version in force here,
    `where` the address that the hello came from.
    """
    if hello.version_max < PEER_VERSION_MIN or hello.version_min > PEER_VERSION_MAX:
        return (
            f"it speaks peer protocol {hello.version_min} to {hello.version_max}, "
            f"here {PEER_VERSION_MIN} to {PEER_VERSION_MAX}: upgrade the older one"
        )
    if hello.log != log:
        return f"it belongs to log {hello.log}, this node to log {log}: two clusters share an address"
    if hello.shard != SHARD:
        return f"it asks for shard {hello.shard}, here is only {SHARD}"
    if hello.to != node:
        return f"it wants node {hello.to}, this is node {node}: an address names the wrong node"
    return hello_rule.refusal(
        sender=hello.sender, boot=hello.boot, knows=hello.knows, node=node, met=met, version=version,
        run=hello.start.run if hello.start is not None else 0, where=where,
    )  # fmt: skip


def encode_refusal(reason: str) -> bytes:
    """The last words of a node that refuses a hello."""
    return encode_frame(FRAME_HELLO, [_REFUSED, reason])


def decode_refusal(frame: Frame) -> str | None:
    """The reason in such a frame, or None when it is something else."""
    match frame.header:
        case (str(magic), str(reason)) if frame.kind == FRAME_HELLO and magic == _REFUSED:
            return reason
        case _:
            return None
