"""Folders of links that stand in for a Java runtime or for Spark's own folder, with something in it changed.

Standard library only: set-up uses it before anything else works.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Set
from pathlib import Path


def made(parent: Path, kind: str, of: str, fill: Callable[[Path], None]) -> Path:
    """The folder of this kind for `of` (what it stands in for, and how it differs), filled if it is not there yet:
    aside, and then renamed, because two starts may meet here. Raises OSError."""
    folder = parent / f"{kind}-{hashlib.sha256(of.encode()).hexdigest()[:12]}"
    if folder.exists():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=parent))
    try:
        fill(aside)
        aside.chmod(0o755)
        aside.rename(folder)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not folder.exists():
            raise
    return folder


def link(origin: Path, folder: Path, *, but: Set[str]) -> None:
    """Links to everything in `origin`, but for those names."""
    for entry in origin.iterdir():
        if entry.name not in but:
            (folder / entry.name).symlink_to(entry)
