"""The wheel in a clean environment, without the checkout and the lock: a cluster comes up, is used and stops."""

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import Measure
from tests.house.rules import ROOT
from tests.support import HANG_S
from tests.wheels import build, install, run

pytestmark = pytest.mark.serial
RUNNING = f"3.{sys.version_info.minor}"
PYSPARK = re.findall(r'"pyspark>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))[0]
"""The lowest PySpark that the extra `spark` allows, and the first above that it does not allow."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return build(tmp_path_factory.mktemp("wheel"))


def interpreter(version: str) -> str:
    """A Python of that version, on the path or of pyenv; skips where there is none."""
    pyenv = os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")
    places = [shutil.which(f"python{version}"), *glob.glob(f"{pyenv}/versions/{version}.*/bin/python")]
    for place in [sys.executable] if version == RUNNING else places:
        if place and subprocess.run([place, "-c", "import ssl"], capture_output=True).returncode == 0:
            return place
    pytest.skip(f"no Python {version} on this machine: not tried")


def use(programs: Path, folder: Path, *options: str) -> None:
    """Runs a cluster as README.md does, with `options` of export and verify. Each command says that it succeeded."""
    folder.mkdir()
    own = {"TMPDIR": str(folder)} | {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("STATE", "CACHE")}

    def raftlog(*words: str) -> str:
        return run(str(programs / "raftlog"), *words, cwd=folder, **own)

    up = [str(programs / "raftlog"), "up", "--nodes", "3"]
    cluster = subprocess.Popen(up, cwd=folder, env=os.environ | own, stdout=subprocess.PIPE, text=True)
    try:
        assert cluster.stdout is not None
        seen = [cluster.stdout.readline()]
        while "In another terminal" not in seen[-1]:
            assert seen[-1], "".join(seen)
            seen.append(cluster.stdout.readline())
        assert len([line for line in seen if "  pid " in line]) == 3
        assert "applied" in raftlog("put", "hello", "world")
        assert raftlog("get", "hello", "-o", "raw").strip() == "world"
        assert "applied" in raftlog("append", "a record")
        assert "a record" in raftlog("log", "-o", "raw").splitlines()
        assert "exported" in raftlog("export", "--to", "out", *options)
        assert "verified" in raftlog("verify", "out", *options)
        cluster.send_signal(signal.SIGINT)
        said = cluster.communicate(timeout=HANG_S)[0]
        assert (cluster.returncode, "stopped" in said) == (0, True), said
    finally:
        cluster.kill()
        cluster.communicate()


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_wheel_works_in_a_clean_environment(version: str, wheel: Path, tmp_path: Path) -> None:
    """With the newest packages that its metadata allows: up, put, get, append, log, export, verify, stop. The package
    comes from the wheel and from nowhere else."""
    programs = install(tmp_path / "env", f"{wheel}[arrow]", python=interpreter(version))
    where = run(
        str(programs / "python"), "-I", "-c", "import raftlog, sys; print(raftlog.__file__, *sys.version_info[:2])"
    )
    assert where.startswith(str(tmp_path / "env"))
    assert where.split()[-2:] == version.split(".")
    use(programs, tmp_path / "use")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("end", ["lowest", "highest"])
def test_an_export_works_with_both_ends_of_the_pysparks_that_the_extra_allows(
    end: str, wheel: Path, tmp_path: Path, java_home: Path, record_property: Measure
) -> None:
    """Spark writes the export and verifies it. The highest is the newest that the package registry has."""
    wanted = [f"pyspark=={PYSPARK[0]}"] if end == "lowest" else []
    programs = install(tmp_path / "env", f"{wheel}[spark]", *wanted)
    version = run(str(programs / "python"), "-c", "import pyspark; print(pyspark.__version__)").strip()
    record_property("measured", f"PySpark {version}")
    assert version.startswith(f"{PYSPARK[0]}.") or end == "highest"
    use(programs, tmp_path / "use", "--engine", "spark")
