"""The commands of docs/postgres.md run as they stand, in their order, and end in a windowed table."""

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.cluster.importer.postgres.postgres_server import PostgresServer
from tests.cluster.nodes import QUICK
from tests.house.rules import ROOT

pytestmark = pytest.mark.serial


def commands() -> list[str]:
    """The indented lines of the page, without those of the package and of the log. Answers of queries as JSON."""
    page = (ROOT / "docs" / "postgres.md").read_text(encoding="utf-8")
    indented = [textwrap.dedent(line) for line in page.splitlines() if line.startswith("    ")]
    wanted = [line for line in indented if line.startswith(("psql ", "raftlog import", "raftlog query"))]
    return [f"{line} -o jsonl" if line.startswith("raftlog query") else line for line in wanted]


def test_the_page_leads_from_a_table_to_windows(postgres: PostgresServer, tmp_path: Path) -> None:
    """And the Python block copies the same table again, through a slot of its own."""
    with LocalCluster(tmp_path / "cluster", 1, settings=QUICK) as cluster:
        cluster.restore()
        url = cluster.url(1)
        path = f"{ROOT / '.venv' / 'bin'}:{postgres.bin}:{os.environ['PATH']}"
        place = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGUSER": "raftlog", "PGDATABASE": "postgres"}
        environment = os.environ | place | {"PATH": path, "RAFTLOG_ENDPOINTS": url, "COLUMNS": "200"}

        def run(*command: str | Path) -> str:
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout

        shown = [run("bash", "-euc", line) for line in commands()]
        windows, newest = ([json.loads(line) for line in each.splitlines()] for each in shown[-2:])
        amounts = [(row["status"], row["n"], row["amount"]) for row in windows]
        assert sum(n for _, n, _ in amounts) == 5  # a minute may have ended in between
        assert sum(float(amount or 0) for status, _, amount in amounts if status == "new") == 34.75
        assert [row["id"] for row in newest] == ['["public.orders",1]', '["public.orders",3]']
        assert json.loads(newest[1]["newest"]) == {"id": 3, "status": "new", "amount": 5.25}
        page = (ROOT / "docs" / "postgres.md").read_text(encoding="utf-8")
        block = page.rpartition("```python\n")[2].partition("```")[0].replace("http://127.0.0.1:7001", url)
        assert run(ROOT / ".venv" / "bin" / "python", "-c", block) == "2\n"
        with SyncClient(url) as client:
            assert len([record for record in client.log() if record.operation == "append"]) == 5 + 2
