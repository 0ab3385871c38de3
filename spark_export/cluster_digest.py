"""What the cluster itself says that a range of its log, and the state at its end, hash to."""

from collections.abc import Iterable
from typing import Final

import msgspec

from cluster.wire import Code, DigestAnswer, SetDigest
from spark_export.door import PATIENCE_S, RefusedError, TrimmedError, ask
from spark_export.errors import DataLossError, NotCheckedError, UsageError

PART_RECORDS: Final = 200_000
"""A node hashes some 100,000 records a second beside its work, and no request may last more than two minutes."""
_PART_S: Final = 100.0
FORMAT: Final = 1
"""Of the digests: which columns in which order, and how they are hashed."""

EMPTY: Final = SetDigest(0, "0" * 16, "0", "0")


class Digests(msgspec.Struct, frozen=True):
    """Digest of the log rows of a range, and of the state at its end; None: no longer remembered."""

    term: int  # of the range's last record
    revision: int
    log: SetDigest
    state: SetDigest | None
    format: int = FORMAT


def merged(digests: Iterable[SetDigest]) -> SetDigest:
    """The digest of all the rows of these."""
    count = xor = low = high = 0
    for digest in digests:
        count += digest.count
        xor ^= int(digest.xor, 16)
        low += int(digest.sum_low, 16)
        high += int(digest.sum_high, 16)
    return SetDigest(count, f"{xor:016x}", f"{low:x}", f"{high:x}")


def check_end(endpoints: tuple[str, ...], index: int, *, patience_s: float = PATIENCE_S) -> None:
    """Raises UsageError where `index` is known to lie inside an entry: no state exists there to compare with."""
    try:
        ask(endpoints, "/v1/digest", {"index": index, "min_index": index}, DigestAnswer, patience_s=patience_s)
    except TrimmedError:
        return  # too old to tell
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
    """Asked in parts, from the newest on. Raises DataLossError for a range that is no longer kept, or another log."""
    parts: list[SetDigest] = []
    newest: DigestAnswer | None = None
    end = last
    while end >= first:
        start = max(first, end - PART_RECORDS + 1)
        query: dict[str, object] = {"index": end, "log_from": start, "min_index": end}
        answer = ask(endpoints, "/v1/digest", query, DigestAnswer, patience_s=patience_s, wait_s=_PART_S)
        if answer.log != log_id:
            raise DataLossError(f"the endpoints serve log {answer.log}, not {log_id}: this is another cluster's")
        if answer.format != FORMAT:
            raise NotCheckedError(f"the cluster's digests are of format {answer.format}, this raftlog knows {FORMAT}")
        newest = newest or answer
        parts.append(answer.log_digest or EMPTY)
        end = start - 1
    if newest is None:
        raise UsageError(f"there is nothing to digest in [{first}, {last}]")
    return Digests(newest.term, newest.revision, merged(parts), newest.state, newest.format)
