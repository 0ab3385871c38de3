"""Encodes the first frames of a peer link: the hello, words, and the refusal with its reason; pure.

`raftlog.cluster.peers.dialled` sends hellos, `raftlog.cluster.peers.accepted` checks them. A connection is directed:
the dialling node sends a hello and then frames. The accepting node sends only short frames. They welcome the hello, say
that it is believed (`raftlog.cluster.peers.hello_proof`), or why it is refused, so that both nodes can log the reason.
Identity is not address (docs/promises.md): log id, node ids and the disk's incarnation are compared on every
connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from raftlog.raft import hello as hello_rule
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.frame import FRAME_HELLO, Frame, encode_frame
from raftlog.raft.hello import PeerProcess, Start, decode_start, encode_start
from raftlog.raft.types import NodeId
from raftlog.statemachine.versions import CLUSTER_VERSION

MAGIC: Final = "raftlog-peer"
PEER_VERSION_MIN: Final = 1
PEER_VERSION_MAX: Final = 1
"""The versions of the peer protocol that this code speaks: those of the frames and of a hello. Both ends use the newest
that both speak."""
SHARD: Final = 0
_REFUSED: Final = "raftlog-refused"
_CHALLENGE: Final = re.compile(r"(?:^| )challenge=([0-9a-f]{16})(?: |$)")
_ANSWER: Final = re.compile(r"(?:^| )answer=([0-9a-f]{16})(?: |$)")
_AT: Final = re.compile(r"(?:^| )at=([!-~]+)(?: |$)")
_AT_CHARS_MAX: Final = 300
"""Longest address in a hello: the longest host name and a port."""
_PROGRAM: Final = re.compile(r"(?:^| )program=([!-~]{1,40})(?: |$)")
_DISK: Final = re.compile(r"(?:^| )disk=([0-9]{1,18})(?: |$)")


class Purpose(IntEnum):
    """The use of a connection; bulk frames never delay a heartbeat."""

    CONSENSUS = 1  # `raftlog.raft.messages`
    BULK = 2  # forwarded requests, read indexes and their answers


class Word(StrEnum):
    """The words that two nodes send on a link beside the hello, each with a number."""

    WELCOME = "raftlog-welcome"  # by the accepting node: its newest version of the protocol
    BELIEVED = "raftlog-believed"  # by the accepting node: it believes the hello of this connection; 0
    ASK = "raftlog-ask"  # by the dialling node: its challenge again
    ANSWER = "raftlog-answer"  # by the dialling node: the challenge that came to its own address


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The dialling node, the dialled node, the disk and the cluster."""

    log: str
    sender: NodeId
    to: NodeId
    incarnation: str
    boot: int
    purpose: Purpose
    start: Start  # what the dialling process found on its disk
    knows: int = CLUSTER_VERSION  # the newest that it knows
    shard: int = SHARD
    version_min: int = PEER_VERSION_MIN
    version_max: int = PEER_VERSION_MAX
    challenge: int = 0  # challenge for the listener at this address; 0: none
    answer: int = 0  # the dialled node's challenge, if the sender knows it; 0: it does not
    at: str = ""  # host:port at which the configuration says that peers reach the sender; "": it names none
    program: str = ""  # the version of the sender's raftlog, for people; "": it does not say it
    disk_bytes: int = 0  # size of the disk that its data folder is on, for people; 0: it does not say it


_TYPES: Final = (str, int, int, int, str, int, str, int, int, str, int, int)


def encode_hello(hello: Hello) -> bytes:
    """The first frame of a connection."""
    return encode_frame(
        FRAME_HELLO,
        [
            MAGIC,
            hello.version_min,
            hello.version_max,
            hello.knows,
            hello.log,
            hello.shard,
            _words(hello),
            hello.sender,
            hello.to,
            hello.incarnation,
            hello.boot,
            int(hello.purpose),
        ],
    )


def decode_hello(frame: Frame) -> Hello:
    """The hello of a connection's first frame. Raises Corrupt."""
    values = frame.header
    if frame.kind != FRAME_HELLO or not values or values[0] != MAGIC:
        raise Corrupt("the first frame is no raftlog hello")
    if len(values) != len(_TYPES) or any(type(value) is not kind for value, kind in zip(values, _TYPES, strict=True)):
        raise Corrupt(f"hello of another form: {values!r:.200}")
    _, version_min, version_max, knows, log, shard, words, sender, to, incarnation, boot, purpose = values
    if purpose not in Purpose.__members__.values():
        raise Corrupt(f"hello for an unknown purpose {purpose!r}")
    said = str(words)
    challenge, answer = (_hex(pattern.search(said)) for pattern in (_CHALLENGE, _ANSWER))
    return Hello(
        log=str(log),
        sender=_int(sender),
        to=_int(to),
        incarnation=str(incarnation),
        boot=_int(boot),
        purpose=Purpose(_int(purpose)),
        shard=_int(shard),
        version_min=_int(version_min),
        version_max=_int(version_max),
        knows=_int(knows),
        start=decode_start(said),
        challenge=challenge,
        answer=answer,
        at="" if (found := _AT.search(said)) is None else found[1],
        program="" if (found := _PROGRAM.search(said)) is None else found[1],
        disk_bytes=0 if (found := _DISK.search(said)) is None else int(found[1]),
    )


def _words(hello: Hello) -> str:
    """What the process found, and what proves the hello. A reader passes over words that it does not know."""
    words = [encode_start(hello.start)]
    words += [
        f"{name}={value:016x}" for name, value in (("challenge", hello.challenge), ("answer", hello.answer)) if value
    ]
    if hello.at and len(hello.at) <= _AT_CHARS_MAX:
        words.append(f"at={hello.at}")
    text = " ".join(words)
    for name, fact in (("program", hello.program), ("disk", hello.disk_bytes)):
        if fact and len(text) + len(word := f" {name}={fact}") <= hello_rule.START_CHARS_MAX:
            text += word
    return text


def _hex(found: re.Match[str] | None) -> int:
    return int(found[1], 16) if found is not None else 0


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def refusal(
    hello: Hello, *, log: str, node: NodeId, met: PeerProcess, version: int, where: str = "?", is_removed: bool = False
) -> str | None:
    """The reason why node `node` refuses that hello, with the fix; None: it accepts it.

    `met` is the newest process of that disk that this process has met. A lower boot counter means that the disk was
    rolled back to an old copy; the same counter with another run means a clone. `version` is the cluster version in
    force here, `where` the address that the hello came from. `is_removed`: a configuration has removed its disk.
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
        sender=hello.sender,
        boot=hello.boot,
        knows=hello.knows,
        node=node,
        met=met,
        version=version,
        run=hello.start.run,
        where=where,
        is_removed=is_removed,
    )


def encode_refusal(reason: str) -> bytes:
    """The frame with the reason, which a node sends before it closes the connection."""
    return encode_frame(FRAME_HELLO, [_REFUSED, reason])


def decode_refusal(frame: Frame) -> str | None:
    """The reason in such a frame, or None if it is another frame."""
    match frame.header:
        case (str(magic), str(reason)) if frame.kind == FRAME_HELLO and magic == _REFUSED:
            return reason
        case _:
            return None


def encode_word(word: Word, number: int) -> bytes:
    """The frame of that word."""
    return encode_frame(FRAME_HELLO, [str(word), number])


def decode_word(frame: Frame) -> tuple[Word, int] | None:
    """The word and its number in such a frame, or None if it is another frame."""
    match frame.header:
        case (str(magic), int(number)) if frame.kind == FRAME_HELLO and magic in Word.__members__.values():
            return Word(magic), number
        case _:
            return None
