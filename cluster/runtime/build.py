"""Says which build of raftlog runs: compiled modules or interpreted ones; and chooses the interpreted ones.

A wheel for one platform has compiled modules (`*.so`) beside the files that they were made from, and Python prefers
them. The other wheel and a checkout have the files alone. docs/decisions/0026 says why.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.metadata import version
from types import ModuleType
from typing import Final

PURE: Final = "RAFTLOG_PURE"
"""The environment variable that chooses the interpreted modules where both are installed: any text but "" and "0"."""


class _SourceFinder:
    """A finder that sees only the source files of raftlog's modules."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The source file of a module of raftlog; None for all others, which are left to the other finders."""
        if path is None or not name.startswith("raftlog."):
            return None
        for folder in path:
            if spec := FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name, target):
                return spec
        return None


def choose(environment: Mapping[str, str]) -> None:
    """Makes later imports take the interpreted modules if RAFTLOG_PURE asks for them. `import raftlog` calls it."""
    if environment.get(PURE, "0") not in ("", "0") and _SourceFinder not in sys.meta_path:
        sys.meta_path.insert(0, _SourceFinder)


def modules() -> str:
    """ "compiled" or "interpreted": which of the modules run that [tool.raftlog.compiled] in pyproject.toml chooses."""
    from raftlog.raft.codec import block  # not before `choose`

    return "interpreted" if str(block.__file__).endswith(tuple(SOURCE_SUFFIXES)) else "compiled"


def facts() -> dict[str, str]:
    """The version, which modules run, and the interpreter."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"version": version("raftlog"), "modules": modules(), "python": python}
