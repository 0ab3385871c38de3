"""RAFTLOG_PURE chooses the interpreted modules, and raftlog says which ones run."""

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, PathFinder, SourceFileLoader
from pathlib import Path

import pytest

from raftlog.cluster.runtime import build


def test_pure_takes_the_source_file_where_a_compiled_module_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself takes the compiled one. Modules of other packages and those without a source file stay Python's."""
    (tmp_path / "both.py").write_text("")
    for name in ("both", "compiled"):
        (tmp_path / f"{name}{EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    usual = PathFinder.find_spec("raftlog.both", [str(tmp_path)])
    assert usual is not None
    assert isinstance(usual.loader, ExtensionFileLoader)
    monkeypatch.setattr(sys, "meta_path", [])
    build.choose({build.PURE: "0"})
    build.choose({})
    assert not sys.meta_path
    build.choose({build.PURE: "1"})
    build.choose({build.PURE: "1"})
    (finder,) = sys.meta_path
    found = finder.find_spec("raftlog.both", [str(tmp_path)])
    assert found is not None
    assert isinstance(found.loader, SourceFileLoader)
    assert finder.find_spec("raftlog.compiled", [str(tmp_path)]) is None
    assert finder.find_spec("other.both", [str(tmp_path)]) is None


def test_facts_name_the_modules_that_run() -> None:
    """`raftlog version` and GET /version show them."""
    assert build.facts()["modules"] in ("compiled", "interpreted")
    assert build.facts()["python"].split()[1] == sys.version.split()[0]
