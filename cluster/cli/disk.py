"""Defines the commands that read the files of a stopped node: disk check, disk dump."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, say
from raftlog.cluster.cli.frame.output import TIME, Format, Printer, bar, view
from raftlog.cluster.cli.log import RECORD
from raftlog.cluster.files.errors import DiskError
from raftlog.cluster.files.findings import FileHealth, Finding, Report

commands = Commands()
register = commands.register
_disk = commands.group("disk")

FINDING: Final = view("file", "state", "what", "position", "index", "mend", raw="what")
VIEWS: Final = {
    "entries": view(
        "index", "count", "term", "kind", TIME, "bytes", "file", "position", "crc", "previous_crc", raw="index"
    ),
    "records": RECORD,
    "marks": view("index", "term", "crc", "file", "position", raw="index"),
    "segments": view("file", "first", "bytes", "after_term", "after_crc", raw="file"),
    "state": view("slot", "sequence", "term", "vote", "boot", "cut", raw="term"),
    "snapshots": view("index", "term", TIME, "chunks", "bytes", "configuration_index", raw="index"),
}

Directory = Annotated[Path, typer.Argument(help="The data folder of one node: the one with identity.json.")]
Checked = Annotated[
    str, typer.Argument(help="The data folder of one node (with identity.json), or a backup: its path or s3://… URL.")
]
AsJson = Annotated[bool, typer.Option("--json", help="As -o json.")]


@_disk("check")
def check_command(cli: Cli, directory: Checked, as_json: AsJson = False) -> None:
    """Read every byte of a stopped node's folder, or of a backup, and report damage; changes nothing.

    Exit code 0 intact, 1 damaged, 8 if it could not be read: a running node, a missing folder, a newer version.
    """
    from raftlog.cluster.offline.check import check_folder
    from raftlog.cluster.offline.check_backup import is_backup, report_of
    from raftlog.cluster.stores.object_place import place_of

    if as_json:
        cli = dataclasses.replace(cli, printer=Printer(Format.JSON))
    with _looking(), bar("reading") as progress:
        place = place_of(directory)
        report = report_of(place, progress) if is_backup(place) else check_folder(Path(directory), progress)
    if cli.printer.format is Format.JSON:
        print(json.dumps(as_object(report), ensure_ascii=False, indent=2))
    else:
        cli.printer.all((dataclasses.asdict(finding) for finding in report.findings), FINDING)
        for line in sentences(report):
            say(line)
    if report.state is FileHealth.NEWER:
        raise typer.Exit(Exit.NOT_CHECKED)
    if report.state is FileHealth.DAMAGED:
        raise typer.Exit(Exit.FAILURE)


def as_object(report: Report) -> dict[str, Any]:
    """The report as a JSON value."""
    findings = [_without_nothing(finding) for finding in report.findings]
    return {
        "folder": report.folder,
        "state": str(report.state),
        "node": report.node,
        "log": report.log_id,
        "first": report.first,
        "last": report.last,
        "starts": not report.refusal,
        "refusal": report.refusal or None,
        "repair": report.repair or None,
        "findings": findings,
    }


def _without_nothing(finding: Finding) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(finding).items() if value not in (None, "")}


def sentences(report: Report) -> Iterator[str]:
    """The report in sentences."""
    from raftlog.cluster.offline.check_backup import is_backup
    from raftlog.cluster.stores.object_place import place_of

    if is_backup(place_of(report.folder)):
        for finding in report.findings:
            yield f"{report.folder}: {finding.state}: {finding.what}"
            if finding.mend:
                yield f"  {finding.mend}"
        return
    whose = f"node {report.node}" if report.node else "a node without an identity"
    if not report.troubles:
        yield f"{report.folder}: {whose}, records {report.first} to {report.last}: every byte was read, all is intact"
    for finding in report.troubles:
        at = "" if finding.position is None else f" at byte {finding.position}"
        after = "" if finding.index is None else f", after index {finding.index}"
        yield f"{finding.file}: {finding.state}{at}{after}: {finding.what}"
        if finding.mend:
            yield f"  {finding.mend}"
    if report.troubles:
        starts = f"no: {report.refusal}" if report.refusal else f"yes, and {report.repair}" if report.repair else "yes"
        yield f"A node would start on this folder: {starts}"


@_disk("dump")
def dump_command(
    cli: Cli,
    directory: Directory,
    what: Annotated[str, typer.Argument(help=f"One of {', '.join(VIEWS)}.", metavar="[WHAT]")] = "entries",
    first: Annotated[int, typer.Option("--from", help="From this index on.", min=1)] = 1,
    to: Annotated[int | None, typer.Option("--to", help="Up to, not including, this index.", min=1)] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Stop after so many rows.", min=1)] = None,
    force_read: Annotated[
        bool, typer.Option("--force-read", help="Read also while a node has it open; the end may be half-written.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the content of a stopped node's files: entries, records with their effects, marks, hard state, snapshots.

    Exit code 0, 1 if a part could not be read, 8 if nothing could be read.
    """
    from raftlog.cluster.files.stopped_folder import held
    from raftlog.cluster.offline.dump import Dump, DumpPart

    if what not in VIEWS:
        raise CommandFailed(f"{what!r}: it must be one of {', '.join(VIEWS)}", Exit.USAGE)
    if as_json:
        cli = dataclasses.replace(cli, printer=Printer(Format.JSON))
    with _looking(), held(directory, even_if_locked=force_read), closing(Dump(directory, first, to)) as dump:
        rows = islice(dump.rows(DumpPart(what)), limit)
        if cli.printer.format in (Format.TABLE, Format.JSON):
            cli.printer.all(rows, VIEWS[what])
        else:
            cli.printer.each(rows, VIEWS[what])
    if dump.troubles:
        raise CommandFailed("; ".join(dump.troubles), Exit.FAILURE, "`raftlog disk check` says what to do.")


@contextmanager
def _looking() -> Iterator[None]:
    try:
        yield
    except DiskError as error:
        raise CommandFailed(str(error), Exit.NOT_CHECKED) from error
