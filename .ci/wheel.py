"""Builds the wheels and the editable install: hatchling calls this (pyproject.toml). `make wheel` makes both wheels.

- Puts the single files into each wheel: the checkout's own `__init__.py`, and the module that Spark looks for.
  hatchling's table `sources` moves whole folders, and of two prefixes the shorter one wins.
- For an editable install (`pip install -e .`, `make setup`) it makes the folder `.links` of the checkout, with links to
  the same files. The install puts that folder on the path.
- With RAFTLOG_COMPILE=1 it compiles the modules of [tool.raftlog.compiled] with mypyc, from a copy of the tree, and
  puts them beside their source files. The checkout never has compiled modules: they would hide edited files.
"""

import glob
import os
import shutil
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("raft", "statemachine", "cluster", "chaos", "spark_export")
FILES = {
    "__init__.py": "raftlog/__init__.py",
    "py.typed": "raftlog/py.typed",
    "spark_export/pyspark_raftlog.py": "pyspark_raftlog.py",
}
GROUP = "raftlog"
"""mypyc names the library `raftlog__mypyc` after it. It holds the code of all compiled modules, which call each other
directly, and lies beside the package."""


class Wheel(BuildHookInterface[Any]):
    """Compiled modules in a wheel for this platform, links for an editable install."""

    def dependencies(self) -> list[str]:
        """What an isolated build installs: the compiler, and what the modules import, whose types it reads."""
        if not is_wanted():
            return []
        project: dict[str, Any] = self.metadata.config["project"]
        return [*project["dependencies"], "mypy>=2.4,<3", "setuptools"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "standard" for a wheel, "editable" for an editable install."""
        if version == "editable":
            make_links(Path(self.root))
            return
        build_data["force_include"].update(FILES)
        if is_wanted():
            self._scratch = Path(tempfile.mkdtemp(prefix="raftlog-wheel-"))
            for made in compile_modules(Path(self.root), self._scratch):
                build_data["force_include"][str(made)] = str(made.relative_to(self._scratch / "lib"))
            build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the copy of the tree."""
        if hasattr(self, "_scratch"):
            shutil.rmtree(self._scratch)


def make_links(root: Path) -> None:
    """Links the packages together in `.links`, as a wheel has them. A right link is left alone: tests may run."""
    places = {name: f"raftlog/{name}" for name in PACKAGES} | FILES
    (root / ".links" / "raftlog").mkdir(parents=True, exist_ok=True)
    for source, place in places.items():
        link, target = root / ".links" / place, f"{'../' * (place.count('/') + 1)}{source}"
        if not link.is_symlink() or os.readlink(link) != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)


def is_wanted() -> bool:
    """Whether the wheel shall have compiled modules."""
    return os.environ.get("RAFTLOG_COMPILE", "0") not in ("", "0")


def modules(root: Path) -> list[str]:
    """The files to compile, from the table in pyproject.toml. Raises ValueError for a row that names no file."""
    table = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["raftlog"]["compiled"]
    chosen: dict[str, set[str]] = {}
    for row in ("modules", "interpreted"):
        chosen[row] = set()
        for pattern in table[row]:
            found = {name for name in glob.glob(pattern, root_dir=root) if not name.endswith("__init__.py")}
            if not found:
                raise ValueError(f"pyproject.toml, tool.raftlog.compiled.{row}: {pattern!r} names no file: correct it")
            chosen[row] |= found
    return sorted(chosen["modules"] - chosen["interpreted"])


def compile_modules(root: Path, scratch: Path) -> list[Path]:
    """Compiles the modules into `scratch`/lib, and returns the files that belong into a wheel."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools._distutils.ccompiler import CCompiler

    names = modules(root)
    package = scratch / "raftlog"
    package.mkdir()
    for name in PACKAGES:
        shutil.copytree(root / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    for source, target in FILES.items():
        shutil.copyfile(root / source, scratch / target)
    here = Path.cwd()
    os.chdir(scratch)  # mypyc names the modules after their paths
    try:
        flags = ["--config-file=", "--ignore-missing-imports"]  # `make check` judges the types
        extensions = mypycify(
            [*flags, *(f"raftlog/{name}" for name in names)],
            opt_level="1",
            debug_level="0",
            multi_file=True,
            target_dir=str(scratch / "c"),
            group_name=GROUP,
        )
        CCompiler.compile = _compile_side_by_side
        job = Distribution({"name": "raftlog", "ext_modules": extensions}).get_command_obj("build_ext")
        job.build_lib, job.build_temp = str(scratch / "lib"), str(scratch / "objects")
        job.parallel = True  # the small modules that name the library, one for each compiled file
        job.ensure_finalized()
        job.run()
    finally:
        os.chdir(here)
    return sorted(path for path in (scratch / "lib").rglob("*") if path.is_file())


def _compile_side_by_side(
    self: Any,
    sources: list[str],
    output_dir: str | None = None,
    macros: Any = None,
    include_dirs: Any = None,
    debug: bool = False,
    extra_preargs: Any = None,
    extra_postargs: Any = None,
    depends: Any = None,
) -> list[str]:
    """In place of setuptools' method, which compiles one file after the other."""
    _, objects, after, flags, build = self._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs
    )
    arguments = self._get_cc_args(flags, debug, extra_preargs)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(self._compile, to, *build[to], arguments, after, flags) for to in objects]:
            done.result()
    return list(objects)


if __name__ == "__main__":
    print("\n".join(modules(Path(__file__).resolve().parent.parent)), file=sys.stdout)
