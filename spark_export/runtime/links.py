"""Makes folders of links that replace a Java runtime or Spark's own folder, with one part changed.

Standard library only: set-up uses it before anything else works.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Set
from pathlib import Path


def made(parent: Path, kind: str, of: str, fill: Callable[[Path], None]) -> Path:
    """The folder of this kind for `of`, which names the folder that it replaces and the difference. Raises OSError.

    A missing folder is filled beside its place and then renamed, because two processes may start at once.
    """
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
