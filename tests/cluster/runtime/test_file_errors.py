"""Tests that an error of writing names its file, and that no half of a file stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from raftlog.cluster.runtime.file_errors import naming, replace_file


def test_an_error_of_writing_names_the_file() -> None:
    """The system gives only a number when the disk is full."""
    with pytest.raises(OSError, match="No space left") as full, naming("note"), open("/dev/full", "wb", 0) as file:
        file.write(b"x")
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, "note")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a cluster file would be in the way when the disk has space again."""
    note = tmp_path / "note"
    replace_file(note, b"before", is_private=True)
    assert note.stat().st_mode & 0o777 == 0o600

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as failed:
        replace_file(note, b"after")
    assert failed.value.filename == str(note)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
    assert note.read_bytes() == b"before"
