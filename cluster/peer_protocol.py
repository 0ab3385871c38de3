"""The first words on a peer link: the hello, why one is refused, and how that is said; pure.

DESIGN section 5, peer link. A connection is directed: the dialling node sends a hello and then frames. The accepting
node sends short frames alone: that it speaks PROOF_VERSION, that it believes the hello (`cluster.peer_proof`), or the
reason why it refuses it, so that both sides can log it. Identity is not address (promise 8): log id, node ids and the
disk's incarnation are compared on every connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum
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
WINDOW_VERSION: Final = 4
"""From this version of the protocol on a node takes several chunks of a snapshot before it has answered the first."""
STARTS_VERSION: Final = 4
"""From this version on a hello says what its process found on its disk at its start (`raft.hello.Start`)."""
PROOF_VERSION: Final = 4
"""From this version on a node shows that a hello is its own: the frames of `Word`, and two numbers in the hello."""
CLUSTER_VERSIONS: Final = {1: 1, 2: 1, 3: 2, 4: 2}
"""Version of the peer protocol -> the newest cluster version that whoever speaks it knows. A new cluster version takes
a new version of the protocol: a hello of another form would be refused by those who are still to be upgraded."""
SHARD: Final = 0
_REFUSED: Final = "raftlog-refused"
_CHALLENGE: Final = re.compile(r"(?:^| )challenge=([0-9a-f]{16})(?: |$)")
_ANSWER: Final = re.compile(r"(?:^| )answer=([0-9a-f]{16})(?: |$)")


class Purpose(IntEnum):
    """What a connection carries: bulk never delays a heartbeat."""

    CONSENSUS = 1  # `raft.messages`
    BULK = 2  # forwards, read indexes and their answers


class Word(StrEnum):
    """What two nodes of PROOF_VERSION say on a link beside the hello, each with a number."""

    WELCOME = "raftlog-welcome"  # by the accepting node: its newest version of the protocol
    BELIEVED = "raftlog-believed"  # by the accepting node: it believes the hello of this connection; 0
    ASK = "raftlog-ask"  # by the dialling node: its challenge once more
    ANSWER = "raftlog-answer"  # by the dialling node: the challenge that it was told at its own address


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
    challenge: int = 0  # for the listener at this address; 0: none
    answer: int = 0  # the challenge that the node which is dialled has said to the sender; 0: it has not yet

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
            _words(hello),
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
    words = str(said) if _int(version_max) >= STARTS_VERSION else ""
    start = decode_start(words) if words.startswith("run=") else None
    challenge, answer = (_hex(pattern.search(words)) for pattern in (_CHALLENGE, _ANSWER))
    return Hello(
        log=str(log), sender=_int(sender), to=_int(to), incarnation=str(incarnation), boot=_int(boot),
        purpose=Purpose(_int(purpose)), shard=_int(shard), version_min=_int(version_min),
        version_max=_int(version_max), start=start, challenge=challenge, answer=answer,
    )  # fmt: skip


def _words(hello: Hello) -> str:
    """What nodes say of themselves since STARTS_VERSION, in the element that was reserved before."""
    words = [encode_start(hello.start)] if hello.start is not None else []
    words += [
        f"{name}={value:016x}" for name, value in (("challenge", hello.challenge), ("answer", hello.answer)) if value
    ]
    return " ".join(words)


def _hex(found: re.Match[str] | None) -> int:
    return int(found[1], 16) if found is not None else 0


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


def encode_word(word: Word, number: int) -> bytes:
    """A frame with that word."""
    return encode_frame(FRAME_HELLO, [str(word), number])


def decode_word(frame: Frame) -> tuple[Word, int] | None:
    """The word and its number in such a frame, or None when it is something else."""
    match frame.header:
        case (str(magic), int(number)) if frame.kind == FRAME_HELLO and magic in Word.__members__.values():
            return Word(magic), number
        case _:
            return None
