"""Holds an export under a prefix of an object store, where the manifest is the one commit: there is no rename, no lock.

    PREFIX/manifest.json                            the content of the export, and what counts
    PREFIX/log/…index-FIRST-LAST-WRITER.parquet     the rows; each attempt of a task is a writer of its own
    PREFIX/internal/…                               of an export of user records: the rows of the others

A run writes the manifest only over the one that it read (by ETag). So a second run, or one that was taken for dead,
loses as a whole. The files of both it and a killed run are in no manifest, and no reader looks at them.

Only a run that has just written the manifest deletes such files. A run that wrote them before has lost by then, and
cannot make them count any more. ORPHAN_AGE_S is for readers, which may still read by the manifest before.
"""

import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from raftlog.cluster.stores.object_place import ChangedError
from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.export import delta
from raftlog.spark_export.export.destination.destination import Writer
from raftlog.spark_export.export.manifest import (
    DATA,
    INTERNAL,
    NAME,
    FileEntry,
    Manifest,
    Plan,
    as_manifest,
    as_text,
    range_of,
    written_by,
)
from raftlog.spark_export.export.place import StorePlace

ORPHAN_AGE_S: Final = 86_400.0
"""So long files stay that no manifest names: those of killed runs since they were written, and those that a compaction
joined since then."""
_SWEEP_EVERY_S: Final = 3_600.0  # of one run: listing costs a request for a thousand files


class Bucket:
    """An export under a prefix, open for one run."""

    plan: Plan | None = None  # a killed run leaves none: its batch is planned and written again

    def __init__(self, path: StorePlace) -> None:
        self.path = path
        self.manifest: Manifest | None = None
        self._version: dict[str, Any] | None = None  # of the manifest that this run read or wrote
        self._swept_at: float | None = None

    def read(self) -> None:
        """Reads what counts. Raises UsageError for a prefix with other content."""
        where, is_table = self.path / NAME, False
        try:
            text, self._version = where.read()
            self.manifest = as_manifest(where, text)
            is_table = self.manifest.layout.table == "delta"
        except FileNotFoundError:
            for name in sorted(self.path.listed()):
                is_table = is_table or name.startswith(delta.LOG)
                if range_of(Path(name).name) is None and not name.startswith(delta.LOG):
                    raise UsageError(
                        f"{self.path} holds {name}, and no export: name a prefix without other objects"
                    ) from None
        if is_table and (found := delta.committed(self.path, self.manifest)) not in (None, self.manifest):
            self._write(found)  # of a run that was killed after its commit

    def keep(self, plan: Plan) -> None:
        """Nothing: the batch counts with the manifest alone."""

    def begin(self, plan: Plan | None) -> None:
        """Nothing: every writer has names of its own."""

    def writer(self) -> Writer:
        """Tasks write aside on their machine, and then into the store."""
        return partial(_uploaded, self.path)

    def written(self) -> Iterable[str]:
        """None: to list objects again and again would cost requests."""
        return ()

    def take(self, kept: Iterable[FileEntry]) -> None:
        """Nothing: the next manifest names them."""

    def place(self, manifest: Manifest, added: Sequence[FileEntry], *, replaces: bool = False) -> Manifest:
        """Writes the manifest over the one that this run read. Raises UsageError if another run wrote it meanwhile."""
        if manifest.layout.table == "delta" and not delta.commit_alone(self.path, self.manifest, manifest, added):
            raise self._lost()
        self._write(manifest)
        if replaces or self._swept_at is None or time.monotonic() > self._swept_at + _SWEEP_EVERY_S:
            self._swept_at = time.monotonic()
            self._sweep()
        return manifest

    def _write(self, manifest: Manifest) -> None:
        try:
            self._version = (self.path / NAME).replace(as_text(manifest), self._version)
        except ChangedError as error:
            raise self._lost() from error
        self.manifest = manifest

    def _lost(self) -> UsageError:
        return UsageError(
            f"another export into {self.path} has put a batch in place meanwhile; this one's files are left out, so "
            f"nothing is there twice. Run the same command again when the other one has ended"
        )

    def _sweep(self) -> None:
        """Deletes files that no manifest has named for ORPHAN_AGE_S, by the clock of the store."""
        assert self.manifest is not None
        if self.manifest.layout.table == "delta":
            delta.vacuum(self.path, ORPHAN_AGE_S)
        written = self.path.listed()
        if gone := list(orphans(self.manifest, written, written[NAME], ORPHAN_AGE_S)):
            self.path.delete(gone)


def orphans(manifest: Manifest, written: dict[str, datetime], now: datetime, age_s: float) -> Iterator[str]:
    """Names our files that the manifest does not list, and that have been out of it for so long: since they were
    written, or since the files that took their place were."""
    listed = {name for entry in manifest.files for name in entry.names}
    ours = (f"{INTERNAL}/",) if manifest.layout.table == "delta" else (f"{DATA}/", f"{INTERNAL}/")
    for name, since in written.items():
        indexes = range_of(Path(name).name)
        if indexes is None or name in listed or not name.startswith(ours):
            continue
        instead = (entry for entry in manifest.files if entry.first <= indexes[1] and entry.last >= indexes[0])
        since = max([since, *(written.get(entry.name, now) for entry in instead)])
        if (now - since).total_seconds() > age_s:
            yield name


@contextmanager
def opened(path: StorePlace) -> Iterator[Bucket]:
    """The export there; nothing is written until a batch counts. Raises UsageError, and NotCheckedError for a manifest
    that is damaged or of another program."""
    bucket = Bucket(path)
    bucket.read()
    yield bucket


def _uploaded(place: StorePlace, make: Callable[[Path], list[FileEntry]]) -> list[FileEntry]:
    """Puts the files that `make` writes into the store, under names of their own."""
    writer = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="raftlog-export-") as aside:
        data = Path(aside, DATA)
        data.mkdir()
        entries = []
        for entry in make(data):
            named = written_by(entry, writer)
            for name, last in zip(entry.names, named.names, strict=True):
                (place / last).put_file(Path(aside, name))
            entries.append(named)
        return entries
