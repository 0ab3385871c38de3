"""The command line with the exporter's tasks run in its own process: starts without Java, to be killed often."""

from typing import Any, cast

import typer

from spark_export import commands
from tests.spark_export.inline import InlineSpark


def main() -> None:
    """As `raftlog export`."""
    cast(Any, commands).start_spark = lambda master: InlineSpark()
    app = typer.Typer()
    commands.register(app)
    app()


if __name__ == "__main__":
    main()
