"""The wheel: one package, nothing else at the top but what Spark looks for, and it works without the repository."""

import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.house.rules import PACKAGES
from tests.wheels import build, install, run

CLASHING = (
    "cluster",
    "python-statemachine",
    "setuptools<81",
)  # their import names: `cluster` (needs pkg_resources), `statemachine`
TOP = {"raftlog", "pyspark_raftlog.py"}
USE = """
import raftlog, sys
from raftlog import Client, SyncClient
from raftlog.cluster.cli.main import main
assert raftlog.__file__.startswith(sys.argv[1]), raftlog.__file__
for name in raftlog.__all__:
    getattr(raftlog, name)
sys.argv[1:] = ["--help"]
main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return build(tmp_path_factory.mktemp("wheel"))


def test_every_row_of_the_table_of_compiled_modules_names_files() -> None:
    """Else a file that moved would be interpreted again, or compiled although an exception keeps it out. Raised where a
    wheel is built: here the developer of a move sees it."""
    named = run(sys.executable, ".ci/wheel.py").split()
    assert {"raft/consensus/core.py", "statemachine/machine.py", "cluster/replica/replica.py"} < set(named)
    assert not [name for name in named if name.endswith("__init__.py")]


def test_wheel_has_one_package_at_the_top(wheel: Path) -> None:
    """Beside `raftlog` there is the module that Spark looks for; the public interface stands nowhere twice."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in names} == TOP
    folders = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert folders == set(PACKAGES)
    assert {name for name in names if name.count("/") == 1} == {"raftlog/__init__.py", "raftlog/py.typed"}
    assert not [name for name in names if name.startswith("raftlog/spark_export/pyspark")]
    for name in (
        "raftlog/cluster/api/openapi.yaml",
        "raftlog/chaos/shim/shim.c",
        "raftlog/cluster/drawing/page.css",
        "raftlog/cluster/node/raftlog@.service",
    ):
        assert name in names  # data beside modules


def test_unpacked_wheel_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Its public names and its command line come from the unpacked files; no link of the development set-up helps."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    paths = (
        f"import sys; sys.path[:0] = [{str(tmp_path / 'site')!r}]; sys.path += [{sysconfig.get_paths()['purelib']!r}]"
    )
    printed = run(sys.executable, "-I", "-S", "-c", f"{paths}\n{USE}", str(tmp_path), cwd=tmp_path)
    assert "raftlog" in printed
    assert "up" in printed


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.timeout(600)
def test_wheel_lives_beside_packages_of_the_same_names(wheel: Path, tmp_path: Path) -> None:
    """In a clean environment with PyPI's `cluster` and `python-statemachine` nothing of theirs is overwritten."""
    place = tmp_path / "env"
    python = install(place, *CLASHING, str(wheel)) / "python"
    site = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    (record,) = site.glob("raftlog-*.dist-info/RECORD")
    installed = [line.partition(",")[0] for line in record.read_text().splitlines()]
    tops = {name.partition("/")[0] for name in installed if not name.startswith("..") and ".dist-info/" not in name}
    assert tops - {"__pycache__"} == TOP
    theirs = (
        "import cluster, statemachine; cluster.HierarchicalClustering; statemachine.StateMachine; "
        "print(cluster.__file__, statemachine.__file__)"
    )
    assert "raftlog" not in run(str(python), "-c", theirs, cwd=tmp_path).replace(str(tmp_path), "")
    assert "up" in run(str(python), "-I", "-c", USE, str(place), cwd=tmp_path)
    assert "up" in run(str(place / "bin" / "raftlog"), "--help", cwd=tmp_path)
