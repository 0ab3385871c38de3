"""What must hold after a run: every node writes and reads again, and all of them hold one and the same whole log.

The log is read from every node itself, past the proxies, and compared record by record; the digests of state and log
that each node works out for itself are compared too. A node that was mended by a snapshot, or built from one, fetches
the log before it from the others (docs/decisions/0012); that is awaited, so that each tells what is on its own disk.
Somebody must have the log from its first record on, and all must agree where they can.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from chaos.deployment import Deployment
from chaos.log_truth import LogTruth
from cluster.wire import ERRORS, Code, DigestAnswer, LogPage, LogRecord, Problem

SETTLE_S: Final = 60.0
PAGE_RECORDS: Final = 5_000
ASK_S: Final = 60.0
_MISSING: Final = re.compile(rb"^raftlog_backfill_missing (\S+)", re.MULTILINE)
FAILED: Final = b'"event":"failed"'
"""In the log of a node that met an error which is none of its surroundings'."""

_page = msgspec.json.Decoder(LogPage).decode
_problem = msgspec.json.Decoder(Problem).decode
_digest = msgspec.json.Decoder(DigestAnswer).decode


class NotSettledError(RuntimeError):
    """The nodes did not come to hold the same; the message says how they differ."""


@dataclass(slots=True)
class Aftermath:
    """What was found. Without a log (`log` None) nothing can be settled."""

    problems: list[str] = field(default_factory=list)
    log: LogTruth | None = None
    last_index: int = 0
    begins: dict[int, int] = field(default_factory=dict)  # node -> index of the first record that it tells
    digests: dict[int, dict[str, Any]] = field(default_factory=dict)


def examine(deployment: Deployment) -> Aftermath:
    """Reads and compares everything. All faults are healed, all nodes run, nobody writes."""
    found = Aftermath(failures(deployment.folder))
    try:
        last = found.last_index = _settled(deployment)
        _fetched(deployment)
        logs = {node: _records(deployment, node, last) for node in deployment.cluster.nodes}
    except (NotSettledError, OSError, msgspec.MsgspecError) as error:
        found.problems.append(str(error))
        return found
    compare(found, logs)
    log_from = min(last, max(found.begins.values()))
    for node in sorted(logs):
        found.digests[node] = _digests(deployment, node, last, log_from)
    if len({msgspec.json.encode(each) for each in found.digests.values()}) != 1:
        found.problems.append(f"the digests of the nodes differ: {found.digests}")
    return found


def compare(found: Aftermath, logs: Mapping[int, Sequence[LogRecord]]) -> None:
    """What the nodes tell of their logs up to `found.last_index`: no holes, equal records, and one has them all."""
    last = found.last_index
    found.begins = {node: records[0].index if records else last + 1 for node, records in sorted(logs.items())}
    whole = min(found.begins, key=lambda node: found.begins[node])
    if found.begins[whole] != 1:
        found.problems.append(f"no node tells the log from index 1 on: they begin at {found.begins}")
    for node, begin in found.begins.items():
        records = logs[node]
        of_whole = logs[whole][begin - found.begins[whole] :]
        if [record.index for record in records] != list(range(begin, last + 1)):
            hole = _hole(records, begin)
            found.problems.append(f"node {node} does not tell every index from {begin} to {last}: {hole}")
        elif records != of_whole:
            first = next((one for one, other in zip(records, of_whole, strict=False) if one != other), records[-1])
            found.problems.append(f"node {node} and node {whole} tell different records at index {first.index}")
    found.log = LogTruth(logs[whole])


def failures(folder: Path) -> list[str]:
    """The nodes that ended by an error of their own, such as an invariant that they found broken; from their logs."""
    told: list[str] = []
    for file in sorted(folder.glob("node-*.log*")):
        with file.open("rb") as lines:
            for line in lines:
                if FAILED in line:
                    told.append(f"{file.stem} ended by itself: {_reason(line)}")
                    break
    return told


def _reason(line: bytes) -> str:
    try:
        event: Any = msgspec.json.decode(line)
        return str(event["exception"]).strip().splitlines()[-1]
    except (msgspec.MsgspecError, KeyError, TypeError, IndexError):
        return line.decode("utf-8", "replace").strip()[:300]


def _settled(deployment: Deployment) -> int:
    """The index that all nodes have applied, after none had more."""
    cluster = deployment.cluster
    end = time.monotonic() + SETTLE_S
    while True:
        told = {node: cluster.status(node) for node in cluster.nodes}
        marks = {(each.applied, each.committed, each.last) if each is not None else None for each in told.values()}
        if len(marks) == 1 and (mark := marks.pop()) is not None and len(set(mark)) == 1:
            return mark[0]
        if time.monotonic() > end:
            shown = {
                node: None if each is None else f"{each.role} of term {each.term}: last {each.last}, "
                f"committed {each.committed}, applied {each.applied}"
                for node, each in told.items()
            }  # fmt: skip
            raise NotSettledError(f"{SETTLE_S:g} s after the last fault the nodes do not hold the same: {shown}")
        time.sleep(0.05)


def _fetched(deployment: Deployment) -> None:
    """Returns once every disk has all that may be read; where one tells damage, which may keep it from that, at the end
    of the patience too."""
    end = time.monotonic() + SETTLE_S
    for node in deployment.cluster.nodes:
        while missing := _missing(deployment, node):
            if time.monotonic() > end:
                told = [deployment.cluster.status(each) for each in deployment.cluster.nodes]
                if any(each is not None and each.scrub.damage for each in told):
                    return
                raise NotSettledError(f"{SETTLE_S:g} s after that node {node} still lacks {missing} older records")
            time.sleep(0.1)


def _missing(deployment: Deployment, node: int) -> int:
    """Records that may be read and are not on the disk of that node."""
    _, body = deployment.cluster.ask(node, "/metrics", ASK_S)
    found = _MISSING.search(body)
    return int(float(found[1])) if found is not None else 0


def _records(deployment: Deployment, node: int, last: int) -> list[LogRecord]:
    """All that the node tells, from the oldest record that may be read."""
    records: list[LogRecord] = []
    position = 1
    end = time.monotonic() + SETTLE_S
    while position <= last:
        target = (
            f"/v1/log?from={position}&to={last + 1}&limit={PAGE_RECORDS}&internal=true&consistency=stale"
            f"&min_index={last}&format=json"
        )
        status, body = deployment.cluster.ask(node, target, ASK_S)
        if (
            status == ERRORS[Code.COMPACTED].status
            and not records
            and (oldest := _problem(body).oldest) is not None
            and oldest > position
        ):
            position = oldest
            continue
        if status == ERRORS[Code.DEADLINE].status and time.monotonic() < end:
            time.sleep(0.1)  # it passes the read on, and the others are only just there again
            continue
        if status != 200:
            raise NotSettledError(f"node {node} does not tell its log from index {position} on: {body[:300]!r}")
        page = _page(body)
        if page.next <= position:
            raise NotSettledError(f"node {node} tells nothing at index {position}")
        records += page.records
        position = page.next
    return records


def _hole(records: Sequence[LogRecord], begin: int) -> str:
    for should, record in enumerate(records, start=begin):
        if record.index != should:
            return f"index {should} is missing or there twice"
    return f"it ends at {begin + len(records) - 1}"


def _digests(deployment: Deployment, node: int, last: int, log_from: int) -> dict[str, Any]:
    """Digests of the state, and of the log from there on, as this node works them out."""
    status, body = deployment.cluster.ask(node, f"/v1/digest?index={last}&log_from={log_from}", ASK_S)
    if status != 200:
        return {"refused": body[:300].decode("utf-8", "replace")}
    told = _digest(body)
    return {
        "index": told.index,
        "revision": told.revision,
        "state": None if told.state is None else msgspec.to_builtins(told.state),
        "log": None if told.log_digest is None else msgspec.to_builtins(told.log_digest),
    }
