"""Runs the command line as a made-up next version of raftlog, which knows cluster version 2, if NEXT_VERSION is set.

From version 2 on a put stores its value in upper case. `test_upgrade.py` starts nodes with it.
"""

import os

from raftlog.statemachine import versions

if os.environ.get("NEXT_VERSION"):
    versions.CLUSTER_VERSION = 2  # type: ignore[misc]  # before any module reads it

from raftlog.cluster.cli.main import main
from raftlog.statemachine.commands import Command, Operation
from raftlog.statemachine.effects import RequestEffect
from raftlog.statemachine.machine import StateMachine

_execute = StateMachine._execute


def _execute_next(self: StateMachine, commands: tuple[Command, ...], last: int) -> RequestEffect | None:
    """The branch that a real version would have in statemachine/machine.py."""
    if self.version >= 2:
        commands = tuple(
            each._replace(value=each.value.upper()) if each.operation == Operation.PUT and each.value else each
            for each in commands
        )
    return _execute(self, commands, last)


if versions.CLUSTER_VERSION > 1:
    StateMachine._execute = _execute_next  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
