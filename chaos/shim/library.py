"""Builds the preload library with the C compiler of this machine, or says why that cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("shim.c")
_BUILD_S: Final = 120.0


class ShimMissing(RuntimeError):
    """The library cannot be built here; the message says why, and what to do."""


def compiler() -> str:
    """The C compiler: what CC names, else cc, gcc or clang. Raises ShimMissing."""
    if not sys.platform.startswith("linux"):
        raise ShimMissing(f"faults of the disk of a running process need Linux, this is {sys.platform}")
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)) is not None:
            return found
    raise ShimMissing("there is no C compiler (cc, gcc or clang): install one, or name it in CC")


def build(folder: Path, source: Path = SOURCE) -> Path:
    """The library of that source, built in `folder`, which must be there. Raises ShimMissing."""
    library = folder / f"{source.stem}.so"
    if library.exists():
        return library
    words = [compiler(), "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_BUILD_S)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[:3]
        raise ShimMissing(
            f"{words[0]} cannot build {source.name}: {' / '.join(lines)}; glibc and its headers are needed"
        )
    return library
