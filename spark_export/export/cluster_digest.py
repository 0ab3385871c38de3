"""Asks the cluster for the digest of a range of its log, and of the state at its end."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from raftlog.cluster.api.errors import Code
from raftlog.cluster.api.status import DIGEST_FORMAT, DigestAnswer, SetDigestHex
from raftlog.spark_export.errors import NotCheckedError, UsageError
from raftlog.spark_export.fetch.door import PATIENCE_S, NodeRotation, RefusedError, TrimmedError, ask

PART_RECORDS: Final = 200_000
"""A node hashes some 100,000 records a second beside its work, and no request may last more than two minutes."""
_PART_S: Final = 100.0

_digest: Final = msgspec.json.Decoder(DigestAnswer).decode
EMPTY: Final = SetDigestHex(0, "0" * 16, "0", "0")


class Part(msgspec.Struct, frozen=True):
    """The digest of the log rows `first` to `last`."""

    first: int
    last: int
    log: SetDigestHex

    @property
    def cell(self) -> int:
        """Which stretch of PART_RECORDS indexes it lies in."""
        return cell_of(self.first)


class Digests(msgspec.Struct, frozen=True):
    """Digest of the log rows of a range, as a whole and in parts, and of the state at its end.

    None: the cluster no longer has it, or the range ends inside an entry, where no state exists.
    """

    term: int  # of the range's last record
    revision: int
    log: SetDigestHex
    state: SetDigestHex | None
    parts: tuple[Part, ...] = ()
    format: int = DIGEST_FORMAT


def cell_of(index: int) -> int:
    """The number of the stretch of PART_RECORDS indexes that holds `index`.

    No part crosses the ends of its stretch, so this number identifies a part in any range.
    """
    return (index - 1) // PART_RECORDS


def followed(before: Digests, after: Digests) -> Digests:
    """The digests of two ranges of which the second begins where the first ends."""
    parts = [*before.parts]
    for part in after.parts:
        if parts and parts[-1].cell == part.cell:
            last = parts.pop()
            part = Part(last.first, part.last, merged((last.log, part.log)))
        parts.append(part)
    return Digests(after.term, after.revision, merged((before.log, after.log)), after.state, tuple(parts))


def merged(digests: Iterable[SetDigestHex]) -> SetDigestHex:
    """The digest of all the rows of these."""
    count = xor = low = high = 0
    for digest in digests:
        count += digest.count
        xor ^= int(digest.xor, 16)
        low += int(digest.sum_low, 16)
        high += int(digest.sum_high, 16)
    return SetDigestHex(count, f"{xor:016x}", f"{low:x}", f"{high:x}")


def check_end(nodes: NodeRotation, index: int) -> None:
    """Raises UsageError where `index` is known to lie inside an entry: no state exists there to compare with."""
    try:
        ask(nodes, "/v1/digest", {"index": index, "min_index": index}, _digest)
    except TrimmedError:
        return  # too old to know
    except RefusedError as error:
        if error.problem.code is Code.INSIDE_ENTRY and error.problem.nearest is not None:
            before, after = error.problem.nearest
            raise UsageError(
                f"index {index} lies inside an entry (records that were committed together): end the export at "
                f"{before} or {after}"
            ) from error
        raise


def cluster_digests(
    endpoints: tuple[str, ...], log_id: str, first: int, last: int, *, patience_s: float = PATIENCE_S
) -> Digests:
    """Asked in parts, of every node at once, from the newest on. Raises DataLossError for a range that is no longer
    kept, or another log."""
    if first > last:
        raise UsageError(f"there is nothing to digest in [{first}, {last}]")
    starts = [first, *range((cell_of(first) + 1) * PART_RECORDS + 1, last + 1, PART_RECORDS)]
    ranges = list(zip(starts, [*(start - 1 for start in starts[1:]), last], strict=True))

    def asked(number: int) -> DigestAnswer:
        return _answer(NodeRotation(endpoints, patience_s, number), log_id, *ranges[number])

    asking = ThreadPoolExecutor(len(endpoints), "raftlog-digests")
    try:
        waiting = [asking.submit(asked, number) for number in reversed(range(len(ranges)))]
        answers = [each.result() for each in reversed(waiting)]
    finally:
        asking.shutdown(wait=False, cancel_futures=True)
    parts = [Part(*each, answer.log_digest or EMPTY) for each, answer in zip(ranges, answers, strict=True)]
    newest = answers[-1]
    return Digests(newest.term, newest.revision, merged(part.log for part in parts), newest.state, tuple(parts))


def range_digest(
    endpoints: tuple[str, ...], log_id: str, first: int, last: int, *, patience_s: float = PATIENCE_S
) -> SetDigestHex:
    """The digest of the log rows of a range of at most PART_RECORDS records, to find out which one of them is wrong."""
    return _answer(NodeRotation(endpoints, patience_s), log_id, first, last).log_digest or EMPTY


def _answer(rotation: NodeRotation, log_id: str, first: int, last: int) -> DigestAnswer:
    query: dict[str, object] = {"index": last, "log_from": first, "min_index": last}
    answer = ask(rotation, "/v1/digest", query, _digest, wait_s=_PART_S, log_id=log_id)
    if answer.format != DIGEST_FORMAT:
        raise NotCheckedError(
            f"the cluster's digests are of format {answer.format}, this raftlog knows {DIGEST_FORMAT}: use the "
            "cluster's version of raftlog"
        )
    return answer
