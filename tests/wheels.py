"""Builds wheels of this tree or of a commit, and installs them into environments of their own, without the lock."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.rules import ROOT

UV = ROOT / ".tools" / "uv" / "bin" / "uv"


def run(*command: str, cwd: Path = ROOT, **added: str) -> str:
    """What the command prints; without the variables by which Python would find this tree, and with those `added`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment | added, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def uv() -> str:
    """The program uv; skips without it."""
    found = str(UV) if UV.exists() else shutil.which("uv")
    if found is None:
        pytest.skip("no uv: `make setup` in a fresh clone obtains it")
    return found


def build(folder: Path, tree: Path = ROOT) -> Path:
    """The pure wheel of a tree, built into `folder`."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=tree, RAFTLOG_COMPILE="0")
    (built,) = folder.glob("*.whl")
    return built


def committed(commit: str, folder: Path) -> Path:
    """A folder with the files of a commit or tag, as `git archive` has them."""
    folder.mkdir()
    run("git", "archive", "-o", f"{folder}.tar", commit)
    run("tar", "-x", "-f", f"{folder}.tar", "-C", str(folder))
    return folder


def install(place: Path, *requirements: str, python: str = sys.executable) -> Path:
    """The folder of the programs of a new environment in `place`. A requirement is a wheel, with extras, or a name."""
    run(uv(), "venv", "-q", "--python", python, str(place))
    run(uv(), "pip", "install", "-q", "--python", str(place / "bin" / "python"), *requirements)
    return place / "bin"
