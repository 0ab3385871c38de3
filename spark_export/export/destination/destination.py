"""Defines what a batch and a compaction need of the place where an export is: of a folder, or of a store."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from raftlog.spark_export.export.manifest import FileEntry, Manifest, Plan
from raftlog.spark_export.export.place import Place

Writer = Callable[[Callable[[Path], list[FileEntry]]], list[FileEntry]]
"""Runs in a task: gives a function the folder to write files into, and returns their entries, with their last names."""


class Destination(Protocol):
    """An export that is open for one run."""

    @property
    def path(self) -> Place:
        """The place."""

    manifest: Manifest | None  # what counts now
    plan: Plan | None  # of a batch that a killed run began, and which is to be finished first

    def keep(self, plan: Plan) -> None:
        """Takes note of the batch that begins."""

    def begin(self, plan: Plan | None) -> None:
        """Gets ready for the files of that batch; None: of a compaction."""

    def writer(self) -> Writer:
        """What tasks write with, on any machine."""

    def written(self) -> Iterable[str]:
        """The names of files that tasks have finished, as far as it is known."""

    def take(self, kept: Iterable[FileEntry]) -> None:
        """Keeps these files of the export as they are in the compaction under way."""

    def place(self, manifest: Manifest, added: Sequence[FileEntry], *, replaces: bool = False) -> Manifest:
        """Makes a batch count, or a compaction, which `replaces` files: whole or not at all."""
