"""Finds the peers and load generators: those that `make peers` obtained, otherwise those on PATH."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
"""What `make peers` fills; a test points it elsewhere."""


class MissingTool(Exception):
    """A program the bench needs is not installed; the message names the command that installs it."""


class Program(msgspec.Struct, frozen=True):
    """An executable, and the variables that its environment needs."""

    path: str
    environment: dict[str, str] = {}

    def full_environment(self) -> dict[str, str]:
        """This process's environment with that."""
        return os.environ | self.environment


def debian(name: str, package: str) -> Program:
    """A program of a Debian package: unpacked by `make peers`, else on PATH. Raises MissingTool."""
    root = TOOLS / "peers" / "debian"
    for folder in ("usr/bin", "usr/sbin"):
        path = root / folder / name
        if (root / "stamp").exists() and path.is_file():
            libraries = next(root.glob("usr/lib/*-linux-gnu"), root)
            return Program(str(path), {"LD_LIBRARY_PATH": str(libraries)})
    found = shutil.which(name)
    if found is None:
        raise MissingTool(f"{name} is not here: make peers, or apt-get install {package}")
    return Program(found)


def built(name: str) -> Program:
    """The server `name-VERSION` that `make peers` built from bench/go. Raises MissingTool."""
    found = sorted(path for path in TOOLS.glob(f"{name}-*[0-9]") if path.is_file())
    if not found:
        raise MissingTool(f"the newest {name} is not built: make peers (needs Go)")
    return Program(str(found[-1]))


def python_packages(package: str) -> Path:
    """The folder to put on PYTHONPATH for a Python peer. Raises MissingTool."""
    folder = TOOLS / "peers" / "python"
    if not (folder / package).is_dir():
        raise MissingTool(f"{package} is not here: make peers")
    return folder


def java_archives() -> list[Path]:
    """The class path of Debian's ZooKeeper. Raises MissingTool."""
    if shutil.which("java") is None:
        raise MissingTool("ZooKeeper needs Java: apt-get install default-jre-headless")
    for folder in (TOOLS / "peers/debian/usr/share/java", Path("/usr/share/java")):
        if (folder / "zookeeper.jar").exists():
            wanted = (
                "zookeeper.jar",
                "zookeeper-jute.jar",
                "slf4j-api.jar",
                "slf4j-nop.jar",
                "netty-*.jar",
                "log4j-1.2.jar",
                "metrics-core.jar",
                "snappy-java.jar",
                "commons-cli.jar",
            )
            return [path for pattern in wanted for path in sorted(folder.glob(pattern))]
    raise MissingTool("ZooKeeper is not here: make peers, or apt-get install zookeeper")
