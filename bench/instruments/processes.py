"""Starts the processes of a contender with a log file each, and ends them together and with their starter."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

NOT_YET = (OSError, RuntimeError, ValueError, LookupError)
"""Errors of a process that is still starting."""
_TAIL_BYTES = 1_500


class Processes:
    """A contender whose processes have their logs and data in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """The ids of all processes."""
        return [process.pid for process in self._running]

    def launch(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Starts one; its output goes to `name`.log. It dies with its starter where util-linux can arrange that."""
        guard = shutil.which("setpriv")
        guarded = [guard, "--pdeathsig", "KILL", *command] if guard else list(command)
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running.append(
                subprocess.Popen(
                    guarded, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.folder
                )
            )

    def wait(self, what: str, look: Callable[[], T | None], *, deadline_s: float, pause_s: float = 0.1) -> T:
        """The first result of `look` that is not None; an error of `NOT_YET` counts as None.

        Raises RuntimeError with the ends of the logs when a process ended by itself, or at the deadline.
        """
        until = time.monotonic() + deadline_s
        said = ""
        while time.monotonic() < until and not self.ended():
            try:
                if (found := look()) is not None:
                    return found
            except NOT_YET as error:
                said = f": {error}"
            time.sleep(pause_s)
        raise RuntimeError(f"{what} within {deadline_s:.0f} s: no{said}\n{self.tails()}")

    def ended(self) -> str:
        """What the logs end with, if a process ended by itself; else nothing."""
        if all(process.poll() is None for process in self._running):
            return ""
        return self.tails() or "it wrote nothing"

    def tails(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {path.name}\n{path.read_bytes()[-_TAIL_BYTES:].decode(errors='replace')}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def stop(self) -> None:
        """Kills all of them."""
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait(timeout=10)
        self._running = []
