"""Drives the preload library: rules for the processes that carry it, proof of what they did, and a loss of power.

    shim = Shim(home, [data_folder_of_node_1, …])          # builds the library; the folders are durable as they are
    start each process with shim.environment(its folder) added to its own
    rule = shim.inject("fdatasync", error="EIO", root=folder)   # shim.hits(rule) proves its effect
    shim.heal()                                            # removes all rules; hanging calls continue
    shim.kill_at("pwrite", 3, root=folder, when="half")    # kill -9 in the middle of the third pwrite
    shim.restore_synced(folder)                            # after the process ended: as a power cut leaves it

Each process counts the calls that a rule fits by itself, from the moment it first sees the rule. So heal before a
killed process starts again, or the rule kills it again. A root has one process at a time. Methods block for
milliseconds. `restore_synced` and the constructor block as long as the folders take to copy.
"""

from __future__ import annotations

import errno
import glob
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal, get_args

from raftlog.chaos.shim.library import build
from raftlog.chaos.shim.shadow import Remains, Shadow
from raftlog.chaos.shim.trace import Action, Call, Cursor, in_order, read_trace

CallName = Literal[
    "pwrite",
    "write",
    "ftruncate",
    "allocate",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "create",
    "mkdir",
    "rmdir",
    "any",
    "sync",
    "data",
]
"""`sync`: fsync and fdatasync; `data`: pwrite and write."""
CALL_NAMES: Final = get_args(CallName)


@dataclass(frozen=True, slots=True)
class Rule:
    """The effect on calls that fit."""

    id: int
    call: str
    action: Action
    argument: int  # errno, or milliseconds
    nth: int  # from this fitting call on
    times: int  # how many of them; 0: all
    pattern: str  # of the whole path, as fnmatch

    def line(self) -> str:
        """As the library reads it."""
        action = self.action.name.lower().replace("_", "-")
        return f"{self.id} {self.call} {action} {self.argument} {self.nth} {self.times} {self.pattern}"


class Shim:
    """The library for some processes. `home` is a folder of its own, which stays; `roots` are watched."""

    def __init__(self, home: Path, roots: Sequence[Path]) -> None:
        """Raises ShimMissing."""
        self._home = home.resolve()
        self._control = self._home / "control"
        (self._home / "traces").mkdir(parents=True)
        self._roots: list[Path] = []
        self._rules: dict[int, Rule] = {}
        self._newest = 0
        self._library = build(self._home)
        self._durable: dict[Path, Path] = {}  # what each root held at first
        self._replayed: dict[Path, set[Path]] = {}  # traces that are in it
        self._cursor = Cursor()
        self._injected: dict[int, list[Call]] = {}
        for root in roots:
            self.watch(root)

    def watch(self, root: Path) -> None:
        """One more root, or a root that somebody else has changed while no process had it: as it is now is durable."""
        root = root.resolve()
        if root not in self._roots:
            self._roots.append(root)
            self._traces(root).mkdir()
        self._keep(root)

    def environment(self, root: Path) -> dict[str, str]:
        """What the process of that root needs in its environment to be watched and driven."""
        return {
            "LD_PRELOAD": str(self._library),
            "RAFTLOG_SHIM_ROOTS": str(root.resolve()),
            "RAFTLOG_SHIM_CONTROL": str(self._control),
            "RAFTLOG_SHIM_TRACE": str(self._traces(root.resolve())),
        }

    def _traces(self, root: Path) -> Path:
        return self._home / "traces" / str(self._roots.index(root))

    def _all_traces(self) -> list[Path]:
        return [file for root in self._roots for file in in_order(self._traces(root))]

    # -- rules

    def inject(
        self,
        call: CallName,
        *,
        error: str = "",
        delay_ms: int = 0,
        hang: bool = False,
        root: Path | None = None,
        name: str = "*",
        nth: int = 1,
        times: int = 0,
    ) -> int:
        """Fails calls with `error` ("EIO"), delays each, or lets them hang until `heal`; exactly one of the three.

        From the `nth` fitting call on, `times` of them (0: all). `root` is one of the roots, `name` a glob for the rest
        of the path, which crosses slashes. Returns the rule. Raises ValueError.
        """
        if bool(error) + bool(delay_ms) + hang != 1:
            raise ValueError("a rule fails calls, or delays them, or lets them hang")
        if error:
            number = getattr(errno, error, None)
            if type(number) is not int:
                raise ValueError(f"{error!r} is no error of the operating system; try EIO or ENOSPC")
            return self._add(call, Action.ERROR, number, nth, times, root, name)
        return self._add(call, Action.HANG if hang else Action.DELAY, delay_ms, nth, times, root, name)

    def kill_at(
        self,
        call: CallName,
        nth: int,
        *,
        when: Literal["before", "after", "half"] = "before",
        root: Path | None = None,
        name: str = "*",
    ) -> int:
        """kill -9 before or after the `nth` fitting call from now on, or with half of its bytes written."""
        action = {"before": Action.KILL_BEFORE, "after": Action.KILL_AFTER, "half": Action.KILL_HALF}[when]
        return self._add(call, action, 0, nth, 1, root, name)

    def heal(self, *rules: int) -> None:
        """Takes these rules away, without any: all. What hangs goes on."""
        for rule in rules or list(self._rules):
            self._rules.pop(rule, None)
        self._write_rules()

    def _add(self, call: str, action: Action, argument: int, nth: int, times: int, root: Path | None, name: str) -> int:
        if call not in CALL_NAMES:
            raise ValueError(f"{call!r} is no call: it must be one of {', '.join(CALL_NAMES)}")
        if nth < 1 or times < 0 or "\n" in name:
            raise ValueError("nth counts from 1, times from 0, and a name has no line end")
        above = "" if root is None else f"{glob.escape(str(root.resolve()))}/"
        self._newest += 1
        self._rules[self._newest] = Rule(self._newest, call, action, argument, nth, times, above + name)
        self._write_rules()
        return self._newest

    def _write_rules(self) -> None:
        aside = self._home / "control.new"
        aside.write_text("".join(f"{rule.line()}\n" for rule in self._rules.values()))
        aside.replace(self._control)  # another file: processes notice, and never read half of it

    # -- what happened

    def calls(self) -> Iterator[Call]:
        """Every call so far, process after process; a loss of power also removes the calls before it."""
        for file in self._all_traces():
            yield from read_trace(file)

    def hits(self, rule: int) -> list[Call]:
        """The calls that the rule changed. Reads only the records since the last question."""
        for file in self._all_traces():
            for call in self._cursor.injected(file):
                self._injected.setdefault(call.rule, []).append(call)
        return list(self._injected.get(rule, ()))

    # -- loss of power

    def restore_synced(self, root: Path, *, torn: Random | None = None) -> Remains:
        """Makes a root as it would be had the power gone when its process ended; the process must be gone.

        Bytes that were not synced are dropped, or with `torn` any part of them stays. The result then counts as
        durable.
        """
        root = root.resolve()
        self.hits(0)  # reads the effects of rules before the traces are removed
        traces = self._traces(root)
        shadow = Shadow(self._durable[root], root)
        for file in in_order(traces):
            if file not in self._replayed[root]:
                shadow.replay(read_trace(file))
        left = shadow.write(root, torn)
        self._keep(root)
        for file in traces.glob("*.trace"):
            file.unlink()
        return left

    def _keep(self, root: Path) -> None:
        """Takes the folder as it is now as durable; it contains the earlier recorded calls."""
        before = self._durable.get(root)
        self._replayed[root] = {*self._traces(root).glob("*.trace")}
        number = int(before.name.partition("-")[0]) + 1 if before is not None else 1
        kept = self._home / "durable" / f"{number}-{self._roots.index(root)}"
        shutil.copytree(root, kept)
        self._durable[root] = kept
        if before is not None:
            shutil.rmtree(before)
