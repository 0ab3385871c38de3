"""Checks histories of any origin on the command line: `raftlog chaos check`.

Exit codes: 0 valid, 1 invalid, 6 unknown, 2 usage, 8 the check could not be made.
"""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from raftlog.chaos.commands import run
from raftlog.chaos.judge.checkers import NAMES, judge
from raftlog.chaos.judge.history import Operation, read_history
from raftlog.chaos.judge.linearizable import Limits
from raftlog.chaos.judge.model import BadInit
from raftlog.chaos.judge.verdicts import KeyReport, Report, Verdict, as_object

PREFIX_SHOWN: Final = 8
"""Operations shown before the first impossible one."""

ModelName = StrEnum("ModelName", {name: name for name in NAMES})  # type: ignore[misc]  # the values are the names


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    chaos = typer.Typer(no_args_is_help=True, help="Breaks clusters on purpose, and judges what their clients saw.")
    chaos.callback()(_group)
    chaos.command("check")(check_command)
    run.register(chaos)
    app.add_typer(chaos, name="chaos")


def _group() -> None:
    """Breaks clusters on purpose, and judges what their clients saw."""


def check_command(
    file: Annotated[Path, typer.Argument(help="The history: one JSON object a line (docs/history.md).")],
    model: Annotated[ModelName, typer.Option("--model", "-m", help="What the history is judged by.")],
    init: Annotated[str | None, typer.Option("--init", help="The start value, as JSON.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which the verdict is unknown.")] = 60.0,
    states: Annotated[
        int, typer.Option(min=1, help="States remembered at once, about 250 bytes each, before it is unknown.")
    ] = Limits().states,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Judge a history: exit code 0 valid, 1 invalid, 6 unknown, 8 if it cannot be judged."""
    start = _start_value(init)
    with run.broken_is_no_verdict():
        began = time.monotonic()
        operations = read_history(file).operations()
        limits = Limits(steps=1 << 62, states=states)
        try:
            report = judge(
                operations, model.value, start, limits=limits, is_over=lambda: time.monotonic() >= began + timeout
            )
        except BadInit as error:
            raise typer.BadParameter(str(error), param_hint="--init") from error
        took_s = time.monotonic() - began
        if as_json:
            print(json.dumps(as_object(report, took_s), ensure_ascii=False))
        else:
            show(report, took_s, Console(highlight=False, soft_wrap=True))
    raise typer.Exit(run.EXITS[report.verdict])


def _start_value(init: str | None) -> Any:
    if init is None:
        return None
    try:
        return json.loads(init)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{init!r} is not JSON: {error}", param_hint="--init") from error


# ---------------------------------------------------------------------------------------------------------------
# The report.


def show(report: Report, took_s: float, console: Console) -> None:
    """Prints the report for people: the verdict first, then the reason, then the operations."""
    style = run.STYLES[report.verdict]
    counts = ", ".join(f"{number:,} {name}" for name, number in report.counts)
    console.print(
        f"[{style}]{report.verdict.value}[/{style}]: {report.operations:,} operations by model {report.model} "
        f"in {took_s:.2f} s ({counts})"
    )
    for problem in report.problems:
        console.print(f"  {escape(problem)}")
    for key in report.keys:
        if key.verdict is Verdict.INVALID:
            _show_key(key, console)


def _show_key(report: KeyReport, console: Console) -> None:
    """The end of the longest order that was found, and the operation that fits nowhere."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("lines", "process", "operation"):
        table.add_column(name)
    left_out = len(report.prefix) - PREFIX_SHOWN
    if left_out > 0:
        table.add_row("", "", f"... {left_out} before, in an order that works")
    for operation in report.prefix[-PREFIX_SHOWN:]:
        table.add_row(*_cells(operation))
    if report.impossible is not None:
        lines, process, text = _cells(report.impossible)
        table.add_row(lines, process, f"[red]{text}   <- fits nowhere[/red]")
    console.print(table)


def _cells(operation: Operation) -> tuple[str, str, str]:
    """Lines, process and call of an operation."""
    lines = f"{operation.called}" if operation.returned is None else f"{operation.called}-{operation.returned}"
    return lines, escape(str(operation.process)), escape(operation.text)
