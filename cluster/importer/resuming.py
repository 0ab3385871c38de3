"""Compares a new start of an import with the session file of an earlier one, and refuses what cannot continue.

`raftlog.cluster.importer.importer` calls it. Each refusal names the choices.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from raftlog.cluster.api.text import counted
from raftlog.cluster.client.once import WriterSession
from raftlog.cluster.importer.formats.deciding import ImportOptions
from raftlog.cluster.importer.inputs import STDIN
from raftlog.cluster.importer.kinds import as_decisions, as_position
from raftlog.cluster.importer.plan import ImportPlan
from raftlog.cluster.importer.session_file import CopyState, SessionFileError, read_state


def old_state(plan: ImportPlan, log: str) -> CopyState | None:
    """The state of the import to continue, or of the finished one; None to begin again. Raises SessionFileError if the
    user must choose."""
    state = None if plan.again else read_state(plan.state)
    if state is None:
        return None
    at = as_position(state.position)
    done = f"{counted(state.records, 'record')} (index {state.first} to {state.last})" if state.records else "no record"
    if plan.source == STDIN:
        raise SessionFileError(
            f"an import from standard input was broken off after line {at.line - 1}, {done}; the batch after it may "
            f"be in the log too. A pipe cannot be read again, so the import cannot continue by itself. "
            f"Choose: save the input to a file and import the missing lines with --again --from-line (raftlog log "
            f"--from {(state.last or 0) + 1} shows whether the batch is there); or give --again to import all "
            f"lines that come now as new"
        )
    if state.log != log:
        raise SessionFileError(
            f"{plan.state} is of an import into the log {state.log}, but this cluster's log is {log}. Choose: "
            f"--endpoints of the other cluster to go on there; --again to import all of it here; or another --state"
        )
    options = as_decisions(state.about).options
    given = options_of(plan, plan.format or options["format"])
    if (state.source, options) != (input_of(plan), given) or plan.from_line != 1:
        named = "".join(_as_option(option, value) for option, value in options.items())
        inputs = state.source.replace("\n", " ")
        kind = "a finished" if at.done else "an unfinished"
        raise SessionFileError(
            f"{plan.state} is of {kind} import of {inputs} with{named}. "
            f"Choose: the same command to go on; --again to begin again; or another --state"
        )
    return state


def input_of(plan: ImportPlan) -> str:
    """The names of the input as the state keeps them."""
    return "\n".join(each if each == STDIN else str(Path(each).resolve()) for each in plan.sources)


def options_of(plan: ImportPlan, format: str) -> dict[str, Any]:
    """The options that the same command must have, with the format of the first file."""
    given = {each.name.replace("_", "-"): getattr(plan, each.name) for each in fields(ImportOptions)}
    given |= {"format": str(format), "follow": plan.follow or None, "batch": plan.batch_lines}
    given = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in given.items()}
    return {name: value for name, value in given.items() if value not in (None, "")}


def _as_option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f" --{name}" if value else f" --no-{name}"
    return f" --{name} {value}"


def changed(plan: ImportPlan, state: CopyState, name: str) -> SessionFileError:
    """The refusal of a file whose imported bytes are no longer the same."""
    at = as_position(state.position)
    end = at if state.kept is None else as_position(state.kept.position)
    return SessionFileError(
        f"{name} has changed: its first {end.offset} bytes differ from the imported ones (up to "
        f"line {at.line - 1} they are in the log, as index {state.first} to {state.last}). Choose: restore the old "
        f"content to go on; or --again to import the new content as a whole; or --again --from-line {at.line} for the "
        f"lines after that"
    )


def expired(state: CopyState, applied: WriterSession) -> SessionFileError:
    """The refusal to go on under another session. The log shows whether the noted batch was applied."""
    if state.kept is None:
        return SessionFileError(
            f"the session {applied.session} of this import has expired before anything was imported; give --again"
        )
    at, end = as_position(state.position), as_position(state.kept.position)
    is_there = applied.after == state.kept.sequence
    found = f"in the log, as index {applied.first} to {applied.last}" if is_there else "not in the log"
    return SessionFileError(
        f"the session {applied.session} of this import has expired, so nothing more can be sent exactly once under it. "
        f"Lines up to {at.line - 1} are in the log; lines {at.line} to {end.line - 1} are {found}. Choose: --again "
        f"--from-line {end.line if is_there else at.line} to import the rest under a new session; or --again to import "
        f"everything a second time"
    )
