"""Compares a new start of an import with the session file of an earlier one, and refuses what cannot continue.

`raftlog.cluster.importer.importer` calls it. Each refusal names the choices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raftlog.cluster.importer.inputs import STDIN
from raftlog.cluster.importer.plan import ImportPlan
from raftlog.cluster.importer.session_file import FIRST_VERSION, ImportSession, SessionFileError, read_session


def old_note(plan: ImportPlan, log: str) -> ImportSession | None:
    """The note of the import to continue, or of the finished one; None to begin again. Raises SessionFileError if the
    user must choose."""
    note = None if plan.again else read_session(plan.state)
    if note is None:
        return None
    at = note.acknowledged
    done = f"{at.records} records (index {at.first} to {at.last})" if at.records else "no record"
    if plan.source == STDIN:
        raise SessionFileError(
            f"an import from standard input was broken off after line {at.line - 1}, {done}; the batch after it may "
            f"be in the log too. A pipe cannot be read again, so the import cannot continue by itself. "
            f"Choose: save the input to a file and import the missing lines with --again --from-line (raftlog log "
            f"--from {(at.last or 0) + 1} shows whether the batch is there); or give --again to import all "
            f"lines that come now as new"
        )
    if note.log != log:
        raise SessionFileError(
            f"{plan.state} is of an import into the log {note.log}, but this cluster's log is {log}. Choose: "
            f"--endpoints of the other cluster to go on there; --again to import all of it here; or another --state"
        )
    given = (plan.format or note.format, plan.key, plan.time, plan.batch_lines, input_of(plan))
    same = given == (note.format, note.key, note.time, note.batch_lines, note.input)
    if not same or plan.from_line != 1 or (note.version > FIRST_VERSION and note.options != more_options(plan)):
        named: dict[str, Any] = {"format": note.format, "key": note.key, "time": note.time, **note.options}
        options = "".join(_as_option(option, value) for option, value in named.items() if value is not None)
        inputs = note.input.replace("\n", " ")
        kind = "a finished" if note.done else "an unfinished"
        raise SessionFileError(
            f"{plan.state} is of {kind} import of {inputs} with{options} --batch {note.batch_lines}. "
            f"Choose: the same command to go on; --again to begin again; or another --state"
        )
    return note


def input_of(plan: ImportPlan) -> str:
    """The names of the input as the note keeps them."""
    return "\n".join(each if each == STDIN else str(Path(each).resolve()) for each in plan.sources)


def more_options(plan: ImportPlan) -> dict[str, Any]:
    """The options that were given beside those with fields of their own in the note."""
    given: dict[str, Any] = {
        "time-format": plan.time_format, "time-zone": plan.time_zone, "time-twice": plan.time_twice,
        "headers": ",".join(plan.headers) or None,
        "select": ",".join(plan.select) or None, "columns": ",".join(plan.columns) or None,
        "delimiter": plan.delimiter, "charset": plan.charset, "follow": plan.follow or None, "header": plan.header,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _as_option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f" --{name}" if value else f" --no-{name}"
    return f" --{name} {value}"


def changed(plan: ImportPlan, note: ImportSession, name: str) -> SessionFileError:
    """The refusal of a file whose imported bytes are no longer the same."""
    at = note.acknowledged
    return SessionFileError(
        f"{name} has changed: its first {note.end} bytes differ from the imported ones (up to "
        f"line {at.line - 1} they are in the log, as index {at.first} to {at.last}). Choose: restore the old content "
        f"to go on; or --again to import the new content as a whole; or --again --from-line {at.line} for the "
        f"lines after that"
    )
