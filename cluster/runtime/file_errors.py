"""Names the file in errors of writing, and leaves no half of a file behind when the disk is full.

Python names a file in the error when it cannot be opened, but not when it cannot be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Puts the path into every OSError that has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes the file as a whole, or not at all. Raises OSError."""
    aside = path.with_name(f"{path.name}.new")
    try:
        with naming(path):
            aside.write_text(text, encoding="utf-8")
            aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
