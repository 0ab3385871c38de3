"""Checks the nodes after a run: every node writes and reads again, and all of them hold the same whole log.

The log is read from every node itself, past the proxies, and compared record by record. The digests of state and log
that each node computes for itself are compared too. A node that was repaired by a snapshot, or built from one, fetches
the older log from the others (docs/decisions/0012). The check waits for that, so that each node serves its own disk. At
least one node must have the log from its first record on, and all nodes must agree on records that they share.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from raftlog.chaos.deploy.deployment import Deployment
from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.workloads.tracer import Tracer
from raftlog.cluster.api.errors import ERRORS, Code, Problem
from raftlog.cluster.api.records import LogPageJson, LogRecord
from raftlog.cluster.api.status import DigestAnswer

SETTLE_S: Final = 60.0
PAGE_RECORDS: Final = 5_000
ASK_S: Final = 60.0
DIGEST_TRIES: Final = 3
_MISSING: Final = re.compile(rb"^raftlog_backfill_missing (\S+)", re.MULTILINE)
FAILED: Final = b'"event":"failed"'
"""In the log of a node that met an error which is none of its surroundings'."""

_page = msgspec.json.Decoder(LogPageJson).decode
_problem = msgspec.json.Decoder(Problem).decode
_digest = msgspec.json.Decoder(DigestAnswer).decode


class NotSettledError(RuntimeError):
    """The nodes did not come to hold the same; the message says how they differ."""


@dataclass(slots=True)
class Aftermath:
    """The findings. Without a log (`log` None) nothing can be settled."""

    problems: list[str] = field(default_factory=list)
    log: LogTruth | None = None
    last_index: int = 0
    begins: dict[int, int] = field(default_factory=dict)  # node -> index of the first record that it returns
    untold: int = 0  # first index that was trimmed before anybody read it; 0: there is none
    digests: dict[int, dict[str, Any]] = field(default_factory=dict)


def examine(deployment: Deployment, tracer: Tracer) -> Aftermath:
    """Reads and compares everything, also with the records that were read during the run.

    The caller has healed all faults; all nodes run, and no client writes.
    """
    found = Aftermath(failures(deployment.folder))
    try:
        last, logs = _logs(deployment, tracer)
    except (NotSettledError, OSError, msgspec.MsgspecError) as error:
        found.problems.append(str(error))
        return found
    found.last_index = last
    compare(found, logs, tracer)
    found.problems += tracer.problems + tracer.direct.late
    for _ in range(DIGEST_TRIES):  # retention goes on trimming after the load
        log_from = min(last, max(*found.begins.values(), *_oldest(deployment)))
        found.digests = {node: _digests(deployment, node, last, log_from) for node in sorted(logs)}
        if not any("refused" in each for each in found.digests.values()):
            break
    if len({msgspec.json.encode(each) for each in found.digests.values()}) != 1:
        found.problems.append(f"the digests of the nodes differ: {found.digests}")
    return found


def _oldest(deployment: Deployment) -> list[int]:
    """The oldest index that may be read, by the status of each node."""
    statuses = [deployment.cluster.status(node) for node in deployment.cluster.nodes]
    return [each.oldest for each in statuses if each is not None]


def compare(found: Aftermath, logs: Mapping[int, Sequence[LogRecord]], tracer: Tracer) -> None:
    """Compares the logs of the nodes up to `found.last_index`: no holes, all that may be read, and the
    records that any answer had before. Without gaps that is the truth, `found.log`."""
    last = found.last_index
    found.begins = {node: records[0].index if records else last + 1 for node, records in sorted(logs.items())}
    for node, begin in found.begins.items():
        records = logs[node]
        if [record.index for record in records] != list(range(begin, last + 1)):
            hole = _hole(records, begin)
            found.problems.append(f"node {node} does not have every index from {begin} to {last}: {hole}")
    _know(logs, tracer)
    beyond = [index for index in tracer.truth if index > last]
    if beyond:
        gave = tracer.truth[min(beyond)]
        found.problems.append(f"the nodes hold nothing after index {last}; an answer had given {gave}")
    truth = LogTruth([tracer.truth[index] for index in sorted(tracer.truth)])
    if (first := min(found.begins.values())) > truth.trimmed_before:
        found.problems.append(
            f"no node has the log from index {truth.trimmed_before} on, up to which it was trimmed: they begin at "
            f"{found.begins}"
        )
    found.untold = next((index for index in range(1, first) if index not in tracer.truth), 0)
    found.log = None if found.untold else truth


def failures(folder: Path) -> list[str]:
    """The nodes that ended by an error of their own, such as an invariant that they found broken; from their logs."""
    ended: list[str] = []
    for file in sorted(folder.glob("node-*.log*")):
        with file.open("rb") as lines:
            for line in lines:
                if FAILED in line:
                    ended.append(f"{file.stem} ended by itself: {_reason(line)}")
                    break
    return ended


def _reason(line: bytes) -> str:
    try:
        event: Any = msgspec.json.decode(line)
        return str(event["exception"]).strip().splitlines()[-1]
    except (msgspec.MsgspecError, KeyError, TypeError, IndexError):
        return line.decode("utf-8", "replace").strip()[:300]


def _logs(deployment: Deployment, tracer: Tracer) -> tuple[int, dict[int, list[LogRecord]]]:
    """The index that all nodes have applied, and the log of every node up to it.

    A trim by the leader's retention is an entry too. Where it comes while the logs are read, they are read again up to
    it: it is what says that the older records may be gone.
    """
    end = time.monotonic() + SETTLE_S
    last = _settled(deployment)
    _fetched(deployment)
    while True:
        logs = {node: _records(deployment, node, last) for node in deployment.cluster.nodes}
        newest = _settled(deployment)
        if newest == last:
            return last, logs
        if time.monotonic() > end:
            raise NotSettledError(f"{SETTLE_S:g} s after the load new entries still come: index {last}, then {newest}")
        _know(logs, tracer)  # a trim may have taken some of these records since
        last = newest


def _know(logs: Mapping[int, Sequence[LogRecord]], tracer: Tracer) -> None:
    """Adds what each node returned to the truth."""
    for node, records in logs.items():
        tracer.know(f"node {node}, after the run,", records)


def _settled(deployment: Deployment) -> int:
    """The index that all nodes have applied, after none had more."""
    cluster = deployment.cluster
    end = time.monotonic() + SETTLE_S
    while True:
        statuses = {node: cluster.status(node) for node in cluster.nodes}
        marks = {(each.applied, each.committed, each.last) if each is not None else None for each in statuses.values()}
        if len(marks) == 1 and (mark := marks.pop()) is not None and len(set(mark)) == 1:
            return mark[0]
        if time.monotonic() > end:
            shown = {
                node: None
                if each is None
                else f"{each.role} of term {each.term}: last {each.last}, "
                f"committed {each.committed}, applied {each.applied}"
                for node, each in statuses.items()
            }
            raise NotSettledError(f"{SETTLE_S:g} s after the last fault the nodes do not hold the same: {shown}")
        time.sleep(0.05)


def _fetched(deployment: Deployment) -> None:
    """Waits until every disk has all records that may be read.

    A node that reports damage may be unable to fetch them; for it the wait ends with the patience.
    """
    end = time.monotonic() + SETTLE_S
    for node in deployment.cluster.nodes:
        while missing := _missing(deployment, node):
            if time.monotonic() > end:
                statuses = [deployment.cluster.status(each) for each in deployment.cluster.nodes]
                if any(each is not None and each.scrub.damage for each in statuses):
                    return
                raise NotSettledError(f"{SETTLE_S:g} s after that node {node} still lacks {missing} older records")
            time.sleep(0.1)


def _missing(deployment: Deployment, node: int) -> int:
    """Records that may be read and are not on the disk of that node."""
    _, body = deployment.cluster.ask(node, "/metrics", ASK_S)
    found = _MISSING.search(body)
    return int(float(found[1])) if found is not None else 0


def _records(deployment: Deployment, node: int, last: int) -> list[LogRecord]:
    """All records that the node returns, from the oldest record that may be read."""
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
            and (oldest := _problem(body).oldest) is not None
            and oldest > position
        ):
            records.clear()  # trimmed meanwhile: the log begins there now
            position = oldest
            continue
        if status == ERRORS[Code.DEADLINE].status and time.monotonic() < end:
            time.sleep(0.1)  # it passes the read on, and the others are only just there again
            continue
        if status != 200:
            raise NotSettledError(f"node {node} does not return its log from index {position} on: {body[:300]!r}")
        page = _page(body)
        if page.next <= position:
            raise NotSettledError(f"node {node} returns nothing at index {position}")
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
    answer = _digest(body)
    return {
        "index": answer.index,
        "revision": answer.revision,
        "state": None if answer.state is None else msgspec.to_builtins(answer.state),
        "log": None if answer.log_digest is None else msgspec.to_builtins(answer.log_digest),
    }
