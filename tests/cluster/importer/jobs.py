"""Runs imports and copies in tests: to their end, or until they are killed at a step."""

from __future__ import annotations

import io
from collections.abc import Callable

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.importer.importer import ImportPlan, ImportProgress, run
from raftlog.cluster.importer.session_file import CopyStep


class Killed(BaseException):
    """The process ends here: nothing below catches it."""


def killer(step: CopyStep, time: int) -> Callable[[CopyStep], None]:
    """Kills the work when it reaches the step for that time."""
    seen = 0

    def kill(reached: CopyStep) -> None:
        nonlocal seen
        seen += reached is step
        if seen == time:
            raise Killed

    return kill


def finish(plan: ImportPlan, client: SyncClient) -> ImportProgress:
    """Imports to the end."""
    return list(run(plan, client, io.BytesIO()))[-1]


def values(client: SyncClient) -> list[bytes]:
    """The appended records."""
    return [record.value or b"" for record in client.log() if record.operation == "append"]
