"""Starts the command line: `main` is the console script `raftlog`.

It imports very little before it can end cleanly on Ctrl-C and on an extra that is not installed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Final

FAILURE: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
NOT_CHECKED: Final = 8
"""Exit codes of `raftlog.cluster.cli.frame.common.Exit`, which takes long to import."""

EXTRAS: Final = {
    "toxiproxy": "chaos",
    "pyspark": "spark",
    "pyarrow": "arrow",
    "duckdb": "query",
    "psycopg": "postgres",
    "dns": "dns",
}
"""Packages that only some commands need, with the extra of pyproject.toml that brings each."""


def main() -> None:
    """The console script `raftlog`."""
    sys.argv[0] = "raftlog"  # also when started as python -m raftlog.cluster.cli.main
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the process that started this one (`>&-`)
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    try:
        from raftlog.cluster.cli.commands import asked_for, build, command_first

        sys.argv[1:] = command_first(sys.argv[1:])
        run = build(asked_for(sys.argv[1:], os.environ))
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # `raftlog/__init__.py`
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _run(run)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _give_up_output()
        sys.exit(0)
    except (OSError, UnicodeEncodeError) as error:  # of a command that does not explain it itself
        from raftlog.cluster.api.text import explained

        print(f"raftlog: {explained(error)}", file=sys.stderr)
        _give_up_output()
        sys.exit(USAGE if isinstance(error, UnicodeEncodeError) else FAILURE)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        from raftlog.cluster.api.text import how_to_install

        mend = how_to_install(EXTRAS[package])
        print(f"raftlog: this command needs the package {package}, which is not installed: {mend}", file=sys.stderr)
        sys.exit(NOT_CHECKED)


def _run(run: Callable[[], None]) -> None:
    """Runs the command, and writes what it printed. A reader that has closed the output is no error; typer and
    rich end with 1 then.
    """
    try:
        run()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            _give_up_output()
            sys.exit(0)
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _give_up_output()
        raise


def _give_up_output() -> None:
    """Sends the rest of the output nowhere, so that the interpreter's end does not try it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
