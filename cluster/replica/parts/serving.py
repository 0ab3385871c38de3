"""Answers the questions of peers about the log, always from this node's own disk.

`raftlog.cluster.replica.parts.link_events` hands the questions over; `raftlog.cluster.replica.log.peer_log` asks
them.
A fenced node does not answer: if its state differs from the majority's, its ledger has wrong effects.
"""

from __future__ import annotations

import asyncio

from raftlog.cluster.api.errors import ApiError
from raftlog.cluster.files.errors import DiskError
from raftlog.cluster.protocol.log_frames import SLICE_BYTES_MAX, PeerLogReply, Question, QuestionKind, encode_log_reply
from raftlog.cluster.replica.log.peer_log import BUSY, SERVED_MAX
from raftlog.cluster.replica.state import ReplicaState
from raftlog.raft.types import GENESIS, NodeId


def take(replica: ReplicaState, peer: NodeId, question: Question) -> None:
    """Begins to answer that question. A peer with too many questions under way gets the answer busy."""
    served = replica.served.count
    if served[peer] >= SERVED_MAX:
        _reply(replica, peer, _had(replica, question, BUSY))
        return
    served[peer] += 1
    replica.driver.spawn(_serve(replica, peer, question))


async def _serve(replica: ReplicaState, peer: NodeId, question: Question) -> None:
    try:
        had = await _answer(replica, question)
    except (ApiError, DiskError, OSError, asyncio.CancelledError) as error:
        had = _had(replica, question, str(error) or "it is being stopped")
    except Exception as error:  # a defect in one answer must not end the node
        had = _had(replica, question, f"it could not answer: {type(error).__name__}: {error}")
        replica.logger.error("peer_answer_failed", peer=peer, exc_info=error)
    finally:
        replica.served.count[peer] -= 1
    _reply(replica, peer, had)


async def _answer(replica: ReplicaState, question: Question) -> PeerLogReply:
    disk, reader, life = replica.disk, replica.reader, replica.life
    if life.is_fenced or life.is_stopping:
        return _had(replica, question, "it is fenced" if life.is_fenced else "it is being stopped")
    match question.what:
        case QuestionKind.PIECE:
            piece = disk.backfill.piece(question.first)
            if piece is not None:
                return _had(replica, question)._replace(first=piece[0], before=piece[1])
        case QuestionKind.SLICE:
            raw = await reader.own(question.first, question.last, min(question.bytes_max, SLICE_BYTES_MAX))
            if raw.next > raw.first:
                return _had(replica, question)._replace(slice=raw)
        case QuestionKind.TIME:
            begins = disk.oldest
            first = await reader.own_time(question.first)
            # a snapshot that was installed meanwhile, or older segments that came back: the search may not have seen
            # what lies before the later one of the two
            return _had(replica, question)._replace(first=first, begins=max(begins, disk.oldest))
        case QuestionKind.STATE:
            return _had(replica, question, "files of its own are damaged" if replica.is_damage_known else "")
    return _had(replica, question, f"its disk has no index {question.first}: it begins at {disk.oldest}")


def _had(replica: ReplicaState, question: Question, reason: str = "") -> PeerLogReply:
    applied, oldest = replica.applier.applied, replica.machine.oldest
    return PeerLogReply(question.number, reason, oldest, replica.disk.oldest, applied, 0, GENESIS)


def _reply(replica: ReplicaState, peer: NodeId, had: PeerLogReply) -> None:
    replica.links.send_bulk(peer, encode_log_reply(had))
    replica.links.flush()
