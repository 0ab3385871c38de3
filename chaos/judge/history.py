"""Reads and writes histories: requests and answers of clients as JSON lines, and paired into operations.

There is one object a line, in the order of the events (docs/history.md): `invoke`, then `ok` (it happened), `fail` (it
did not, and never will) or `info` (the outcome is unknown). Harness and simulator record with `History`; `read_history`
reads files of any origin. This module does not judge: see `raftlog.chaos.judge.models` and
`raftlog.chaos.judge.linearizable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

Process = int | str
Outcome = Literal["ok", "fail", "info"]
EventType = Literal["invoke", "ok", "fail", "info"]

LINE_BYTES_MAX: Final = 64 << 20
"""A longer line is no event of ours: a set of a million elements takes about 10 MB."""


class BadHistory(ValueError):
    """A history that cannot be read, or that contradicts itself; the message names the line."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. Lines are numbered from 1 wherever they are named."""

    process: Process
    type: EventType
    f: str
    key: Any = None
    value: Any = None
    result: Any = None
    time_ns: int | None = None
    index: int | None = None
    term: int | None = None
    node: int | str | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """An invocation and what became of it. `called` and `returned` are the numbers of their lines: order is all that
    counts. An `info` has no `returned`: it may take effect at any time after its call, or never."""

    process: Process
    f: str
    key: Any
    value: Any  # the value of the invocation
    outcome: Outcome
    called: int
    returned: int | None
    output: Any = None  # the completion's value; None unless ok
    result: Any = None  # the completion's result; None unless ok
    called_ns: int | None = None
    returned_ns: int | None = None
    index: int | None = None
    term: int | None = None
    node: int | str | None = None

    @property
    def _tells(self) -> bool:
        """Whether its output is more than a repetition of its input."""
        if self.output is None:
            return self.outcome == "ok" and self.value is None and self.f not in ("acquire", "release")
        return bool(self.output != self.value)

    @property
    def text(self) -> str:
        """As in `cas [1,2] of "x" -> false`."""
        key = "" if self.key is None else f" of {_json(self.key)}"
        answer: str = self.outcome
        if self.result is not None:
            answer = _json(self.result)
        elif self._tells:
            answer = _json(self.output)
        return f"{self.f}{'' if self.value is None else ' ' + _json(self.value)}{key} -> {answer}"

    def __str__(self) -> str:
        """As in `process 3: cas [1,2] of "x" -> false (lines 7 and 9)`."""
        where = f"line {self.called}" if self.returned is None else f"lines {self.called} and {self.returned}"
        return f"process {self.process}: {self.text} ({where})"


def _json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:150]}… {text[-40:]}"


def operations(events: Iterable[Event]) -> list[Operation]:
    """The events paired by process, in order of their calls. Raises BadHistory.

    A process that invokes again without a completion, or after `info`, has left its operation without an answer: it
    counts as `info`. An `info` of a process that has nothing open is a remark (a nemesis) and left out.
    """
    pairs: list[list[Any]] = []
    open_at: dict[Process, list[Any]] = {}
    for line, event in enumerate(events, start=1):
        process = event.process
        if event.type == "invoke":
            open_at[process] = pair = [line, event, None, None]
            pairs.append(pair)
            continue
        found = open_at.pop(process, None)
        if found is None:
            if event.type == "info":
                continue
            raise BadHistory(f"line {line}: process {process!r} completes {event.f!r} without having invoked anything")
        call: Event = found[1]
        if call.f != event.f or (event.key is not None and event.key != call.key):
            raise BadHistory(
                f"line {line}: process {process!r} completes {event.f!r} of key {_json(event.key)}, "
                f"but what it invoked on line {found[0]} is {call.f!r} of key {_json(call.key)}"
            )
        found[2], found[3] = line, event
    return [_operation(*pair) for pair in pairs]


def _operation(called: int, call: Event, returned: int | None, end: Event | None) -> Operation:
    # What a completion of type info carries as its value means nothing.
    is_known = end is not None and end.type != "info"
    is_ok = end is not None and end.type == "ok"
    return Operation(
        call.process,
        call.f,
        call.key,
        call.value,
        "ok" if is_ok else "fail" if is_known else "info",
        called,
        returned if is_known else None,
        end.value if end and is_ok else None,
        end.result if end and is_ok else None,
        call.time_ns,
        end.time_ns if end else None,
        end.index if end and is_known else None,
        end.term if end and is_known else None,
        end.node if end else call.node,
    )


class History:
    """A recording in memory. A process has one operation open at a time; `complete` is given what `invoke` gave."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = list(events)
        self._open: dict[Process, Event] = {}

    def __len__(self) -> int:
        return len(self.events)

    def invoke(
        self, process: Process, f: str, key: Any = None, value: Any = None, *, time_ns: int | None = None
    ) -> None:
        """The process asks. It must have nothing open."""
        assert process not in self._open, f"process {process!r} has an operation open"
        event = Event(process=process, type="invoke", f=f, key=key, value=value, time_ns=time_ns)
        self._open[process] = event
        self.events.append(event)

    def complete(
        self,
        process: Process,
        type: EventType,
        value: Any = None,
        *,
        result: Any = None,
        time_ns: int | None = None,
        index: int | None = None,
        term: int | None = None,
        node: int | str | None = None,
    ) -> None:
        """Records the answer to the process, or that the process gave up."""
        assert type != "invoke"
        call = self._open.pop(process)
        self.events.append(
            Event(
                process=process,
                type=type,
                f=call.f,
                key=call.key,
                value=value,
                result=result,
                time_ns=time_ns,
                index=index,
                term=term,
                node=node,
            )
        )

    def operations(self) -> list[Operation]:
        """The operations so far; those without completion as `info`."""
        return operations(self.events)

    def lines(self) -> Iterator[bytes]:
        """The history as it is written to a file, line by line."""
        for event in self.events:
            yield encode_event(event)

    def write(self, path: Path) -> None:
        """Writes the whole file."""
        with path.open("wb") as file:
            file.writelines(self.lines())


def encode_event(event: Event) -> bytes:
    """One line, with its line end. `key` and `value` are always there."""
    shown: dict[str, Any] = {"process": event.process, "type": event.type, "f": event.f}
    shown |= {"key": event.key, "value": event.value}
    for name in ("result", "time_ns", "index", "term", "node"):
        value = getattr(event, name)
        if value is not None:
            shown[name] = value
    return msgspec.json.encode(shown) + b"\n"


_decode: Final = msgspec.json.Decoder(Event).decode


def decode_lines(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events of a file's lines. Raises BadHistory naming the line. An empty line counts but says nothing."""
    for number, line in enumerate(lines, start=1):
        if len(line) > LINE_BYTES_MAX:
            raise BadHistory(f"line {number}: {len(line)} bytes, more than {LINE_BYTES_MAX}")
        if not line.strip():
            raise BadHistory(f"line {number}: empty; each line is one JSON object")
        try:
            yield _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadHistory(f"line {number}: {error}: {_glimpse(line)}") from error


def _glimpse(line: bytes) -> str:
    text = line[:100].decode("utf-8", "replace").rstrip()
    return f"{text!r}{'…' if len(line) > 100 else ''}"


def read_history(path: Path) -> History:
    """The history in that file. Raises BadHistory, also where there is no such file or nothing in it."""
    try:
        with path.open("rb") as file:
            history = History(decode_lines(_trimmed(file)))
    except OSError as error:
        raise BadHistory(f"{path}: {error.strerror or error}") from error
    if not history.events:
        raise BadHistory(f"{path}: there is no event in it, so there is nothing to judge")
    return history


def _trimmed(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines without empty ones at the end."""
    held = 0
    for line in file:
        if not line.strip():
            held += 1
            continue
        for _ in range(held):
            yield b""
        held = 0
        yield line
