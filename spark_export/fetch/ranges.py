"""Defines a range of the log and the request for it, as query planning needs them, without Arrow or numpy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.raw import RAW_SIZE, decode_raw_header
from raftlog.spark_export.errors import DataLossError
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.door import NodeRotation, RetryableError, TrimmedError

if TYPE_CHECKING:
    from raftlog.spark_export.fetch.options import SourceOptions


@dataclass(frozen=True, slots=True)
class Range:
    """Records [start, stop) of one log, and where to read them."""

    endpoints: tuple[str, ...]
    log_id: str
    start: int
    stop: int
    turn: int = 0  # which endpoint is first: spreads tasks over the nodes
    patience_s: float = door.PATIENCE_S
    folders: tuple[str, ...] = ()  # data folders that may be on the machine of the task: `local_log`

    @classmethod
    def of(cls, options: "SourceOptions", log_id: str, start: int, stop: int, turn: int = 0) -> "Range":
        """Those records as the options of a query say to read them."""
        return cls(options.endpoints, log_id, start, stop, turn, options.patience_s, options.folders)

    @property
    def nodes(self) -> NodeRotation:
        """The nodes, to be asked for one thing."""
        return NodeRotation(self.endpoints, self.patience_s, self.turn)


def bytes_end(wanted: Range, bytes_max: int) -> int:
    """How far into the range `bytes_max` bytes of log and effects reach, at least one record. It asks for the head of
    each chunk alone, of about a mebibyte, and takes the records within one to be of equal size."""
    rotation = wanted.nodes
    position, left = wanted.start, bytes_max
    while position < wanted.stop:
        try:
            with door.answering(rotation.url, "/v1/log", query(wanted, position), log_id=wanted.log_id) as answer:
                head = decode_raw_header(answer.read(RAW_SIZE))
            if not head.first <= position < head.next:
                raise RetryableError(f"has nothing from index {position} on yet")
        except (RetryableError, Corrupt, TrimmedError) as error:
            rotation.failure(f"the log from index {position} on", error)
            continue
        rotation.success()
        size = head.segment_bytes + head.ledger_bytes
        fitting = min(head.next, position + (head.next - head.first) * left // size)
        if fitting < head.next:
            return min(max(fitting, wanted.start + 1), wanted.stop)
        left -= size
        position = head.next
    return wanted.stop


def query(wanted: Range, position: int) -> dict[str, object]:
    """What asks a node for the raw log from there to the end of the range."""
    return {
        "format": "raw",
        "from": position,
        "to": wanted.stop,
        "consistency": "stale",
        "min_index": wanted.stop - 1,
    }


def trimmed(position: int, oldest: int | None) -> DataLossError:
    """The error for an index that is no longer kept."""
    begins = "" if oldest is None else f": the log begins at index {oldest} now"
    start = "earliest" if oldest is None else f"{oldest} or startingOffsets=earliest"
    return DataLossError(
        f"index {position} is no longer kept{begins}. Nothing was skipped. Start at startingOffsets={start}, take the "
        f"older records from an export, or set failOnDataLoss=false to begin at the oldest index whatever it is."
    )
