"""Proves that an export is what the cluster committed: compares its files with the cluster's digests.

Makes two passes. The first covers every column: counts, order, contiguity and the log digest. The second covers the
changes: the state. The tasks of an engine make the first one with numpy; Spark makes the second in its built-in
functions. When a digest differs, the rows are found: their indexes, and the files that changed.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raftlog.cluster.api.status import SetDigestHex
from raftlog.cluster.api.text import counted
from raftlog.spark_export.errors import NotCheckedError
from raftlog.spark_export.export import delta
from raftlog.spark_export.export.cells import Cell, cells
from raftlog.spark_export.export.cluster_digest import EMPTY, Digests, merged
from raftlog.spark_export.export.engine import Engine, Rows, UnreadableError
from raftlog.spark_export.export.manifest import (
    DATA,
    INTERNAL,
    FileEntry,
    Manifest,
    contradictions,
    internal_files,
    range_of,
    read_manifest,
    read_next,
)
from raftlog.spark_export.export.place import Place, StorePlace
from raftlog.spark_export.export.wrong_rows import RangeDigest, altered_rows, name_rows

_OUT_OF_PLACE: Final = ("missing", "duplicated", "order")

Step = Callable[[str], None]
"""Receives the name of each step."""


@dataclass(slots=True)
class Report:
    """The checks that were made and the faults that were found. Without `findings` the export is proved, except for the
    points in `unproved`.
    """

    manifest: Manifest
    source: str  # where the digests come from
    findings: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    rows: int = 0
    log: SetDigestHex = EMPTY
    state: SetDigestHex | None = None

    @property
    def is_right(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.findings


def verify(
    engine: Engine,
    folder: Place,
    digests: Digests | Future[Digests] | None,
    source: str,
    step: Step = lambda _: None,
    range_digest: RangeDigest | None = None,
) -> Report:
    """Checks the export in `folder` against `digests` (None: the manifest's own), which may arrive while the files are
    read. `range_digest` is asked only where rows are wrong, to name them. Raises NotCheckedError, and what `digests`
    raise."""
    manifest = read_manifest(folder)
    if (following := read_next(folder)) is not None and following.replaces:
        raise NotCheckedError(f"a compaction of {folder} was interrupted: run `raftlog export compact {folder}` again")
    report = Report(manifest, source)
    report.findings += contradictions(manifest)
    paths = _visible(folder, manifest, report)
    if not paths:
        return report
    log = engine.rows(paths)
    try:
        step("reading every column")
        seen = cells(engine, paths, is_dense=manifest.layout.records == "all")
        if isinstance(digests, Future):
            digests = digests.result()
        due = digests or manifest.digests
        wrong = _check_log(folder, seen, report, due)
        if any(finding.startswith(_OUT_OF_PLACE) for finding in report.findings):
            step("looking for the wrong rows")
            report.findings += name_rows(seen, manifest)
        elif wrong and range_digest is not None:
            step("looking for the rows that are altered")
            report.findings += altered_rows(seen, wrong, range_digest)
        step("folding the rows to the state")
        _check_state(log, report, due.state)
    except UnreadableError as error:
        report.findings += changed_files(engine, folder, manifest)
        if not report.findings:
            raise NotCheckedError(f"{folder} could not be read: {error}") from error
        return report
    if report.findings:
        report.findings += changed_files(engine, folder, manifest)
    if digests is not None and manifest.digests.log != digests.log:
        report.findings.append("altered: the manifest's log digest is not the cluster's")
    return report


def _visible(folder: Place, manifest: Manifest, report: Report) -> list[Place]:
    """The files that a reader of the export sees, and those of `internal/`.

    A file in `log/` that is not in the manifest is a finding too: other readers would read it. The exception is the
    batch that is being put in place now.
    """
    if manifest.layout.table == "delta":
        return [*delta.files(folder, manifest), *internal_files(folder, manifest)]
    listed = {name: entry for entry in manifest.files for name in entry.names}
    present: dict[str, Place]
    if isinstance(folder, StorePlace):  # readers go by the manifest: other objects are in no reader's way
        present = {name: folder / name for name in folder.listed() if name in listed}
    else:
        found = [path for part in (DATA, INTERNAL) for path in (folder / part).glob("**/*") if path.is_file()]
        present = {path.relative_to(folder).as_posix(): path for path in found}
    following = read_next(folder)
    added = following.added if following is not None else ()
    coming = {name for entry in added for name in entry.names} - set(listed)
    for name in sorted(listed.keys() - present.keys()):
        lost = listed[name]
        report.findings.append(f"missing: file {name} is not there, indexes {lost.first} to {lost.last}")
    for name in sorted(present.keys() - listed.keys() - coming):
        report.findings.append(f"duplicated: file {name} is not in the manifest")
    if coming & present.keys():
        report.unproved.append(
            f"log: a batch after index {manifest.last} is being put in place, or was interrupted; it is left out here"
        )
    ours = {name for name in present if range_of(Path(name).name) and name not in coming}
    return [present[name] for name in sorted(ours)]


def _check_log(folder: Place, seen: list[Cell], report: Report, due: Digests) -> list[tuple[int, int]]:
    """Checks counts, order, contiguity and times per file, and the digest over every column of every row.

    Compares the digests in the parts that the cluster gave, and returns the ranges whose digests differ.
    """
    report.rows = sum(row.rows for row in seen)
    report.log = merged(row.digest for row in seen)
    if report.manifest.layout.table == "parquet":
        _check_files(folder, seen, report)
    records = report.manifest.records
    if report.rows != records.total:
        kind = "missing" if report.rows < records.total else "duplicated"
        report.findings.append(f"{kind}: {counted(report.rows, 'row')}, {records.total:,} due")
    elif (user := sum(row.user for row in seen)) != records.user:
        report.findings.append(f"altered: there are {user} user records, {records.user} are due")
    if report.log == due.log:
        return []
    report.findings.append(
        f"altered: the log digest of the rows is {shown(report.log)}, {report.source} says {shown(due.log)}"
    )
    wrong = []
    for part in due.parts:
        found = merged(row.digest for row in seen if row.cell == part.cell)
        if found != part.log:
            wrong.append((part.first, part.last))
            report.findings.append(f"altered: the rows of indexes {part.first} to {part.last} have another digest")
    return wrong


def _check_files(folder: Place, seen: list[Cell], report: Report) -> None:
    by_file: dict[str, list[Cell]] = {}
    for cell in seen:
        by_file.setdefault(cell.file, []).append(cell)
    for entry in report.manifest.files:
        due = [(entry.name, entry.rows, entry.user)]
        if entry.internal is not None:
            due.append((entry.internal.name, entry.internal.rows, 0))
        found = []
        for name, rows, user in due:
            cells = by_file.get(str((folder / name).resolve()), [])
            report.findings += _wrong_in_file(entry, name, rows, user, cells)
            found += cells
        times = [
            min((cell.time_min_ms or 0 for cell in found), default=0),
            max((cell.time_max_ms or 0 for cell in found), default=0),
        ]
        if found and times != [entry.time_min_ms, entry.time_max_ms]:
            report.findings.append(f"altered: {entry.name} has other first and last times than the manifest says")


def _wrong_in_file(entry: FileEntry, name: str, due: int, due_user: int, cells: list[Cell]) -> list[str]:
    """The faults in the number and the order of the rows of one file, a sentence each."""
    if not cells:
        return [f"missing: {name} has no rows, {due} are due"] if due else []
    count, user = sum(cell.rows for cell in cells), sum(cell.user for cell in cells)
    first, last = min(cell.index_min or 0 for cell in cells), max(cell.index_max or 0 for cell in cells)
    wrong = []
    if count != due:
        wrong.append(f"{'missing' if count < due else 'duplicated'}: {name} has {counted(count, 'row')}, {due:,} due")
    elif not all(cell.is_in_order for cell in cells) or first < entry.first or last > entry.last:
        wrong.append(f"order: the rows of {name} are not the indexes {entry.first} to {entry.last}")
    if user != due_user:
        wrong.append(f"altered: {name} has {user} user records, {due_user} are due")
    return wrong


def _check_state(log: Rows, report: Report, due: SetDigestHex | None) -> None:
    manifest = report.manifest
    if manifest.first != 1:
        report.unproved.append(
            f"state: it is not provable, because the export begins at index {manifest.first}, not at 1"
        )
        return
    if due is None and manifest.digests.state is not None:
        due = manifest.digests.state
        report.unproved.append(
            f"state: the cluster no longer remembers its digest at index {manifest.last}; compared with the one in the "
            f"manifest, which the export received from the cluster"
        )
    if due is None:
        report.unproved.append(f"state: the cluster does not know its digest at index {manifest.last}")
        return
    report.state = log.state()
    if report.state != due:
        report.findings.append(
            f"altered: the rows fold to the state digest {shown(report.state)}, {report.source} says {shown(due)}"
        )


_FILES_NAMED: Final = 3


def changed_files(engine: Engine, folder: Place, manifest: Manifest) -> list[str]:
    """Names files whose bytes are not those that were written; each is read by a task."""
    sums = {entry.name: entry.sha256 for entry in manifest.files}
    sums |= {entry.internal.name: entry.internal.sha256 for entry in manifest.files if entry.internal is not None}
    names = [name for name in sums if (folder / name).exists()]
    if not names:
        return []
    paths = [(folder / name).resolve() for name in names]

    def sha256(number: int) -> bytes:
        from raftlog.spark_export.export.parquet import sha256_of

        return sha256_of(paths[number]).encode()

    found = engine.run(sha256, len(paths))
    changed = [name for name, each in zip(names, found, strict=True) if each.decode() != sums[name]]
    return [f"altered: {name} is not the file that the export wrote (SHA-256)" for name in changed[:_FILES_NAMED]]


def shown(digest: SetDigestHex) -> str:
    """A digest for people: its count, xor and both sums."""
    return f"{digest.count}/{digest.xor}/{digest.sum_low}/{digest.sum_high}"
