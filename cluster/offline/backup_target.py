"""Writes a backup into its place: a folder of this machine, or a prefix of an object store.

Files are written whole under names that they keep, and the manifest that names them is replaced last. In a folder a
lock keeps other runs out. A store has no lock: each run has file names of its own, and replaces only the manifest that
it read or wrote (by ETag). So of two runs at once one loses, with a sentence, and its files count for nothing.
"""

from __future__ import annotations

import re
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET

from raftlog.cluster.offline.backup_folder import manifest_of, read_manifest
from raftlog.cluster.offline.places import check_outside
from raftlog.cluster.records.backup_manifest import MANIFEST, BackupManifest, RunName, encode_manifest
from raftlog.cluster.runtime.file_errors import PRIVATE_FOLDER, locked, replace_file, sync_folder
from raftlog.cluster.stores.object_place import ChangedError, ObjectPlace, StoragePlace

PART: Final = "new.part"
"""The file that is being written."""
ORPHAN_AGE: Final = timedelta(hours=24)
"""Objects of a store that no manifest names are deleted once they are so much older than the newest manifest."""
_OWN: Final = re.compile(rf"{re.escape(PART)}|\d{{20}}-\d{{20}}(-\w+)?\.log|state-\d{{20}}(-\w+)?\.backup")


class BackupRefused(Exception):
    """No backup can be taken into this place, or from this cluster. The message has what to do."""

    exit_code = 1  # of the command line


class FolderTarget:
    """A folder, which this run holds."""

    writer: RunName = UNSET  # one run at a time needs no names of its own

    def __init__(self, folder: Path) -> None:
        self.place: StoragePlace = folder
        self.part = folder / PART
        self._folder = folder

    def read(self) -> BackupManifest | None:
        """The manifest; None in an empty folder. Raises BackupRefused, BackupDamaged, UnknownVersion or OSError."""
        found = read_manifest(self._folder)
        if found is None:
            _check_empty(self.place, {path.name for path in self._folder.iterdir()} - {"lost+found", f"{MANIFEST}.new"})
        return found

    def finish(self, name: str) -> None:
        """Gives the written file its name, durably: the manifest that names it comes after it."""
        self.part.rename(self._folder / name)
        sync_folder(self._folder)

    def commit(self, manifest: BackupManifest) -> None:
        """Replaces the manifest."""
        replace_file(self._folder / MANIFEST, encode_manifest(manifest), is_private=True)

    def drop_unnamed(self, *, is_complete: bool) -> None:
        """Removes files that the manifest does not name: a killed run left them, or the backup needs them no more."""
        manifest = read_manifest(self._folder)
        for path in list(self._folder.iterdir()):
            if manifest is not None and path.name not in manifest.names and _OWN.fullmatch(path.name):
                path.unlink()


class StoreTarget:
    """A prefix of a store. Files are written into `aside`, a folder of this machine, and then put whole."""

    def __init__(self, place: ObjectPlace, aside: Path) -> None:
        self.place: StoragePlace = place
        self.part = aside / PART
        self.writer: RunName = uuid.uuid4().hex
        self._root = place
        self._version: dict[str, Any] | None = None  # of the manifest that this run read or wrote
        self._orphans: list[str] = []

    def read(self) -> BackupManifest | None:
        """As in a folder. Raises ObjectStoreError too."""
        written = self._root.listed()
        try:
            data, self._version = (self._root / MANIFEST).read()
        except FileNotFoundError:
            _check_empty(self.place, set(written))
            return None
        found = manifest_of(self._root / MANIFEST, data)
        if MANIFEST in written:  # a later run begins after this one's commits, so it never needs one of these
            due = written[MANIFEST] - ORPHAN_AGE
            self._orphans = [
                name for name, at in written.items() if at < due and name not in found.names and _OWN.fullmatch(name)
            ]
        return found

    def finish(self, name: str) -> None:
        """Puts the written file into the store."""
        (self._root / name).put_file(self.part)
        self.part.unlink()

    def commit(self, manifest: BackupManifest) -> None:
        """Replaces the manifest, if it is that of this run. Raises BackupRefused."""
        try:
            self._version = (self._root / MANIFEST).replace(encode_manifest(manifest), self._version)
        except ChangedError as error:
            raise BackupRefused(
                f"{self.place}: another backup into it wrote {MANIFEST} meanwhile, and what this one has put since "
                "then does not count. Run the same command again when the other one has ended"
            ) from error

    def drop_unnamed(self, *, is_complete: bool) -> None:
        """Deletes what no manifest has named since ORPHAN_AGE before this run, once the run is complete."""
        if is_complete and self._orphans:
            self._root.delete(self._orphans)


Target = FolderTarget | StoreTarget
"""Where a run writes."""


@contextmanager
def opened(place: StoragePlace) -> Iterator[Target]:
    """The place for one run. Raises BackupRefused if another run holds the folder."""
    if isinstance(place, ObjectPlace):
        with tempfile.TemporaryDirectory(prefix="raftlog-backup-") as aside:  # only its owner can read it
            yield StoreTarget(place, Path(aside))
        return
    check_outside(place)
    place.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    with held(place):
        yield FolderTarget(place)


def held(folder: Path) -> AbstractContextManager[None]:
    """Keeps other runs out of the folder."""
    return locked(folder, BackupRefused(f"{folder}: another backup is being taken into it; wait until it has ended"))


def _check_empty(place: StoragePlace, names: set[str]) -> None:
    if names:
        raise BackupRefused(
            f"{place}: it has {min(names)} and no {MANIFEST}, so it is no backup; name a new folder or prefix, or that "
            "of a backup"
        )
