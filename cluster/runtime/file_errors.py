"""Writes files of users durably: an error names the file, and leaves no half of it behind.

Python names a file in the error when it cannot be opened, but not when it cannot be written.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Literal

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
"""Modes of what only its owner may read: the data of nodes, keys, tokens, backups."""


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Puts the path into every OSError that has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def replace_file(path: Path, data: bytes, *, is_private: bool = False) -> None:
    """Writes the file durably, as a whole or not at all; `is_private`: only its owner can read it.

    Raises OSError, which names the file."""
    aside = path.with_name(f"{path.name}.new")
    try:
        with naming(path), create_private(aside) if is_private else aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def create_private(path: Path, mode: Literal["wb", "xb"] = "wb") -> BinaryIO:
    """Creates or empties a file that only its owner can read; `xb`: it must not be there. Raises OSError."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE))


def file_stamp(path: str) -> tuple[int, int, int]:
    """What changes when the file does; zeros for one that is not there."""
    try:
        stat = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


@contextmanager
def locked(folder: Path, taken: Exception) -> Iterator[None]:
    """Locks a folder for this process alone. Raises `taken` if another one has it locked, or OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Makes new names and removals in the folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
