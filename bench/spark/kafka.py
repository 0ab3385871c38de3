"""Runs Spark's own Kafka connector as the rival: a broker and a connector from Maven, an own Spark, the same rows.

The newest connector that Maven gives here is 4.0.0, which does not stream with a newer Spark. So it gets pyspark 4.0.0
in an environment of its own. The broker is one KRaft node without fsync: faster than a replicated one would be.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.instruments.tools import MissingTool
from bench.spark import log
from raftlog.cluster.node.ports import free_ports
from raftlog.spark_export.runtime.java import JavaNotFoundError, java_home

SPARK = "4.0.0"
KAFKA = "4.1.0"
TOPIC = "bench"
_CONNECTOR = (("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK),)
_BROKER = (
    ("org.apache.kafka", "kafka_2.13", KAFKA),
    ("org.apache.kafka", "kafka-tools", KAFKA),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
)
_JARS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
"""What Spark lacks; the rest of the connector's dependencies it has itself, of its own versions."""
_PRODUCER = """
import sys
from confluent_kafka import Producer
servers, topic, records, key, values = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].encode(), []
import random
chance = random.Random(5)
values = [chance.randbytes(100) for _ in range(int(sys.argv[5]))]
producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "batch.size": 1 << 20,
                     "queue.buffering.max.messages": 1_000_000})
for number in range(records):
    while True:
        try:
            producer.produce(topic, values[number % len(values)], key % number, partition=number % 2)
            break
        except BufferError:
            producer.poll(0.1)
if producer.flush(300):
    sys.exit("records are left")
"""


class Kafka:
    """The packages that it needs, in a folder that is kept from run to run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.python = self.folder / "venv" / "bin" / "python"

    def get(self) -> None:
        """Fetches missing packages (a minute the first time). Raises MissingTool."""
        self._fetch("broker", _BROKER)
        self._fetch("connector", _CONNECTOR)
        if not (self.folder / "venv" / "done").exists():
            uv = shutil.which("uv") or str(Path(".tools/uv/bin/uv").resolve())
            _run([uv, "venv", "-q", "--allow-existing", "--python", sys.executable, str(self.folder / "venv")])
            _run([uv, "pip", "install", "-q", "--python", str(self.python), f"pyspark=={SPARK}", "confluent-kafka"])
            (self.folder / "venv" / "done").touch()

    def _fetch(self, name: str, wanted: tuple[tuple[str, str, str], ...]) -> None:
        into = self.folder / name
        if (into / "done").exists():
            return
        if shutil.which("mvn") is None:
            raise MissingTool("Spark's Kafka connector and a broker come from Maven: no mvn on PATH (Debian: maven)")
        into.mkdir(parents=True, exist_ok=True)
        needed = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
            "</dependency>"
            for group, artifact, version in wanted
        )
        pom = self.folder / f"{name}.xml"
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId>"
            f"<version>1</version><dependencies>{needed}</dependencies></project>"
        )
        _run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={into}"])
        if name == "connector":
            for jar in into.glob("*.jar"):
                if not jar.name.startswith(_JARS):
                    jar.unlink()
        (into / "done").touch()

    @contextmanager
    def broker(self, data: Path) -> Iterator[str]:
        """The address of a broker that runs meanwhile. Raises MissingTool where it does not start."""
        java = _java()
        data.mkdir(parents=True)
        port, controller = free_ports(2)
        settings = data / "server.properties"
        settings.write_text(
            "\n".join(
                (
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"controller.quorum.voters=1@127.0.0.1:{controller}",
                    f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
                    f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
                    "controller.listener.names=CONTROLLER",
                    f"log.dirs={data / 'log'}",
                    "offsets.topic.replication.factor=1",
                    "num.partitions=2",
                    "transaction.state.log.replication.factor=1",
                    "transaction.state.log.min.isr=1",
                )
            )
        )
        classes = ["-cp", f"{self.folder / 'broker'}/*"]
        _run([java, *classes, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings)])
        with (data / "broker.txt").open("wb") as log:
            process = subprocess.Popen(
                [java, "-Xms1g", "-Xmx1g", *classes, "kafka.Kafka", settings], stdout=log, stderr=log
            )
            try:
                _wait(port, process, data / "broker.txt")
                yield f"127.0.0.1:{port}"
            finally:
                process.terminate()
                process.wait(60)

    def fill(self, servers: str, records: int) -> None:
        """Produces the rows of `bench.spark.log` into the topic's two partitions."""
        _run([str(self.python), "-c", _PRODUCER, servers, TOPIC, str(records), log.KEY.decode(), str(log.VALUES)])

    @contextmanager
    def jobs(
        self, servers: str, folder: Path, *, heap: str, master: str, records: int = 0
    ) -> Iterator[dict[str, Callable[[], None]]]:
        """The jobs of `bench.spark.jobs` in the rival's Spark, which runs meanwhile. Raises MissingTool where it does
        not. The sink writes so many `records`."""
        wanted = {
            "servers": servers,
            "topic": TOPIC,
            "heap": heap,
            "master": master,
            "folder": str(folder),
            "jars": str(self.folder / "connector"),
            "records": records,
        }
        script = Path(__file__).with_name("jobs.py")
        folder.mkdir(parents=True)
        output = folder / "spark.txt"
        with output.open("wb") as log:
            process = subprocess.Popen(
                [str(self.python), str(script), "kafka", json.dumps(wanted)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(),
            )
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def answer() -> dict[str, list[str]]:
            line = answers.readline()
            if not line:
                raise MissingTool(f"the rival's Spark ended with {process.wait()}: {_last_line(output)}")
            found: dict[str, list[str]] = json.loads(line)
            return found

        def run(name: str) -> None:
            asked.write(f"{name}\n")
            asked.flush()
            if error := answer().get("error"):
                raise RuntimeError(error)

        try:
            yield {name: partial(run, name) for name in answer()["jobs"]}
        finally:
            asked.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            answers.close()


def _environment() -> dict[str, str]:
    """Without what points at our own Spark and Python."""
    ours = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    return {name: value for name, value in os.environ.items() if name not in ours} | {"SPARK_LOCAL_IP": "127.0.0.1"}


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip() or "nothing").splitlines()[-1][:300]


def _java() -> str:
    try:
        return str(java_home() / "bin" / "java")
    except JavaNotFoundError as error:
        raise MissingTool(str(error)) from error


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if ran.returncode:
        last = (ran.stderr.strip() or ran.stdout.strip() or "nothing").splitlines()[-1]
        raise MissingTool(f"{Path(command[0]).name} {command[1]} ended with {ran.returncode}: {last[:300]}")


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise MissingTool(f"the Kafka broker did not start: {_last_line(log)}")
