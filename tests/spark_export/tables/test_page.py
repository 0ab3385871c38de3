"""docs/query.md runs from its first block to its last, and prints what stands in it.

`pytest tests/spark_export/tables/test_page.py --rewrite` writes what it prints now into the page; look at the
difference.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from raftlog.spark_export.commands import query
from tests.spark_export.analytics.shop import shop
from tests.spark_export.server import Served

PAGE = Path(__file__).resolve().parents[3] / "docs" / "query.md"
CONSOLE = re.compile(r"```console\n\$ raftlog (.*?)\n(.*?)```\n", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


@pytest.fixture
def served() -> Served:
    """The node of the page."""
    return Served(shop())


def test_page_runs(url: str, request: pytest.FixtureRequest) -> None:
    """Each command and each block prints what the page says."""
    app = typer.Typer()
    query.register(app)
    app.callback()(lambda: None)
    names: dict[str, Any] = {"url": url}

    def command(block: re.Match[str]) -> str:
        words = [word.replace("$URL", url) for word in shlex.split(block[1])]
        done = CliRunner().invoke(app, [*words, "-o", "table"])  # as on a terminal
        assert done.exit_code == 0, done.output
        return f"```console\n$ raftlog {block[1]}\n{done.stdout}```\n"

    def program(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[1], str(PAGE), "exec"), names)  # noqa: S102  # the page itself
        told = printed.getvalue()
        return f"```python\n{block[1]}```\n" + (f"\n```text\n{told}```\n" if told else "")

    text = PAGE.read_text(encoding="utf-8")
    written = PYTHON.sub(program, CONSOLE.sub(command, text))
    if request.config.getoption("--rewrite"):
        PAGE.write_text(written, encoding="utf-8")
    else:
        assert written == text
