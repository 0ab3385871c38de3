"""The file of rejected changes against a twin, through kills, repetitions and retries."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, strategies as st

from raftlog.cluster.sinks.kept_files import Rejected, Rejects

STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 4), st.sampled_from("ab")),
    st.tuples(st.sampled_from(["start again", "torn"]), st.just(0), st.just("")),
    st.tuples(st.just("retry"), st.integers(1, 4), st.just("")),
)


@given(st.lists(STEPS, max_size=30))
def test_a_rejected_change_is_listed_once_however_often_it_is_rejected(steps: list[tuple[str, int, str]]) -> None:
    """In the same run or another, behind a line that a kill left torn, and again after a retry has taken it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s.rejected"
        rejects, twin = Rejects(path), dict[tuple[int, str], str]()
        for number, (what, index, key) in enumerate(steps):
            match what:
                case "add":
                    rejects.add(index, key, f"reason {number}")
                    twin.setdefault((index, key), f"reason {number}")
                case "retry":
                    twin = {each: reason for each, reason in twin.items() if each[0] > index}
                    rejects.replace([Rejected(*each, reason) for each, reason in twin.items()])
                case _:
                    if what == "torn":
                        with path.open("ab") as file:
                            file.write(b'{"index":1,"k')
                    rejects = Rejects(path)
            assert rejects.read() == [Rejected(*each, reason) for each, reason in twin.items()]


def test_a_full_disk_of_rejected_changes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is seldom the store's disk."""
    rejects = Rejects(tmp_path / "s.rejected")
    rejects.add(1, "a", "x")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: .*s\.rejected"):
            rejects.add(2, "b", "y")
