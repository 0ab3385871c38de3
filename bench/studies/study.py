"""Runs the long studies: each gets a folder on a real disk, a saved result, and an exit code."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import typer
from rich.console import Console

from bench.instruments.tools import MissingTool
from raftlog.cluster.node.local_cluster import LocalClusterError


class Judged(Protocol):
    """A result that says itself which of its bounds it missed."""

    @property
    def faults(self) -> Sequence[str]:
        """Each in words."""
        ...


T = TypeVar("T", bound=Judged)


def run(
    name: str, data: Path | None, save: Path, measure: Callable[[Path, Console], T], tell: Callable[[T], Iterable[str]]
) -> None:
    """Measures in a folder of its own below `data`, saves the result as JSON, and shows it with the missed bounds.

    Raises typer.Exit(1) where it missed a bound or could not be measured.
    """
    console = Console(width=None if sys.stdout.isatty() else 150)
    with tempfile.TemporaryDirectory(prefix=f"raftlog-{name}-", dir=data) as place:
        try:
            result = measure(Path(place), console)
        except (RuntimeError, LocalClusterError, MissingTool) as error:
            console.print(f"it failed: {error}", markup=False)
            raise typer.Exit(1) from error
    save.parent.mkdir(parents=True, exist_ok=True)
    save.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    for line in tell(result):
        console.print(line)
    for fault in result.faults:
        console.print(f"[red]{fault}[/]")
    if result.faults:
        raise typer.Exit(1)
