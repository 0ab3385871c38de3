"""The examples of docs/spark.md with a user's own columns run, after `raftlog import`, and print what stands there.

`pytest tests/spark_export/source/test_docs.py --rewrite` writes what they print now into the page; look at the
difference.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftlog.cluster.node.local_cluster import LocalCluster
from tests.spark_export import logs
from tests.spark_export.server import Served, serving
from tests.support import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.timeout(300)]

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "spark.md"
CONNECT = re.compile(r"```py\n(from pyspark\.sql import SparkSession\n.*?)```", re.DOTALL)
SERVER = """
import sys
from raftlog.spark_export import session
binding = {"address": "127.0.0.1", "port": sys.argv[1]}
connect = {f"spark.connect.grpc.binding.{name}": value for name, value in binding.items()}
session(spark__plugins="org.apache.spark.sql.connect.SparkConnectPlugin", **connect)
print("ready", flush=True)
sys.stdin.read()
"""
BLOCK = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```\n", re.DOTALL)


def test_the_examples_of_own_columns_run(spark: "SparkSession", tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The file of docs/import.md is a table by the schema that its import stored; its rows are also read by a schema of
    the user; a job reads them once, and a state in RocksDB counts them; and own columns are written and read back.
    """
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "quakes.csv").write_text(
        re.findall(r"```text\n(DateTime.*?)```", (DOCS / "import.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    )
    (command,) = re.findall(r"^    (raftlog import .*)$", text, re.MULTILINE)
    with LocalCluster(tmp_path / "node", nodes=1) as cluster:
        cluster.restore(120)
        subprocess.run(
            [sys.executable, "-m", "raftlog.cluster.cli.main", *command.split()[1:], "--endpoints", cluster.urls[0]],
            check=True,
            capture_output=True,
            cwd=tmp_path,
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")},
        )
        names: dict[str, Any] = {"spark": spark, "endpoints": cluster.urls[0]}
        printed = []
        for code, _ in BLOCK.findall(text):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - the page is ours
            printed.append("\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").splitlines()) + "\n")
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
        cluster.kill(*cluster.running)
    assert len(printed) == 5
    if request.config.getoption("--rewrite"):
        rest = iter(printed)
        PAGE.write_text(BLOCK.sub(lambda found: f"```python\n{found[1]}```\n\n```text\n{next(rest)}```\n", text))
        return
    assert printed == [shown for _, shown in BLOCK.findall(text)]


@pytest.mark.long
def test_the_example_of_spark_connect_runs(java_home: Path) -> None:
    """A client without a JVM reads the log through a server of Spark; both are processes of their own."""
    pytest.importorskip("grpc", reason="no grpcio: Spark Connect needs the extra `connect` of PySpark")
    port = free_port()
    (code,) = CONNECT.findall(PAGE.read_text(encoding="utf-8"))
    environment = os.environ | {"JAVA_HOME": str(java_home)}
    log = logs.mixed(7, 40)
    with serving(Served(log)) as url, ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", SERVER, str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        )
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        client = f"endpoints = {url!r}\n" + code.replace("sc://spark.example.org", f"sc://127.0.0.1:{port}")
        done = subprocess.run([sys.executable, "-c", client], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    users = [row["index"] for row in logs.naive_rows(log.entries, log.effects) if logs.is_user(row)]
    assert f"{max(users)}|" in done.stdout
