"""Puts what users import by a top-level name into the wheel: `raftlog` itself, and the module that Spark looks for.

hatchling calls this (pyproject.toml). Its table `sources` cannot say it: the shorter of two prefixes wins.
An editable install finds the same files by the links that `.ci/setup` makes: a copy would hide them.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PUBLIC = {
    "cluster/client/public/__init__.py": "raftlog/__init__.py",
    "cluster/client/public/py.typed": "raftlog/py.typed",
    "spark_export/pyspark_raftlog.py": "pyspark_raftlog.py",
}


class PublicNames(BuildHookInterface[Any]):
    """The files of PUBLIC in a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "standard" for a wheel, "editable" for an editable install."""
        if version == "standard":
            build_data["force_include"].update(PUBLIC)
