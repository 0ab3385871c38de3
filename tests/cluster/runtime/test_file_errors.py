"""Tests that an error of writing names its file, and that no half of a file stays."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raftlog.cluster.runtime.file_errors import naming, write_text


def test_an_error_of_writing_names_the_file() -> None:
    """The system gives only a number when the disk is full."""
    with pytest.raises(OSError, match="No space left") as full, naming("note"), open("/dev/full", "wb", 0) as file:
        file.write(b"x")
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, "note")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a cluster file would be in the way when the disk has space again."""
    note = tmp_path / "note"
    write_text(note, "before")

    def full(self: Path, text: str, encoding: str) -> int:
        self.write_bytes(text[:1].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left") as failed:
        write_text(note, "after")
    assert failed.value.filename == str(note)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
    assert note.read_bytes() == b"before"
