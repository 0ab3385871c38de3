"""Measures how fast changes of PostgreSQL get into the log, beside `pg_recvlogical`: `python -m bench postgres`.

Both get the same changes, from two slots of one publication, in turns: `pg_recvlogical` writes them to a file, `raftlog
import --postgres` to three nodes with the shipped defaults. PostgreSQL has its own defaults too, and everything shares
the machine. Rates are those of whole commands. The copy is checked: every change is in the log once.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.instruments.tools import MissingTool
from bench.studies import study
from raftlog.chaos.deploy.postgres_server import PostgresNotFoundError, PostgresServer
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster, free_ports

GOAL_PER_S = 20_000
_IMPORT = (sys.executable, "-m", "raftlog.cluster.cli.main", "import")
_TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, amount numeric(12, 2), status text, at timestamptz, "
    "note text)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
)
_ROWS_OF_TRANSACTION = 100


class Round(msgspec.Struct, frozen=True):
    """Changes per second of one round, and processor time of the importer for each change."""

    recvlogical: float
    raftlog: float
    importer_us: float


class Result(msgspec.Struct, frozen=True):
    """The rates of all rounds."""

    changes: int
    rounds: list[Round]

    @property
    def faults(self) -> list[str]:
        """The goal, if it was missed: 20,000 changes a second, or the rate of pg_recvlogical."""
        ours = statistics.median(each.raftlog for each in self.rounds)
        goal = min(GOAL_PER_S, statistics.median(each.recvlogical for each in self.rounds))
        return [] if ours >= goal else [f"{ours:,.0f} changes/s, and the goal is {goal:,.0f}"]


def write(server: PostgresServer, first: int, changes: int) -> None:
    """Commits so many changes: half are inserts, the others update the same rows, in transactions of a hundred."""
    server.sql(
        f"""DO $$ BEGIN FOR number IN 0..{changes // 2 // _ROWS_OF_TRANSACTION - 1} LOOP
            INSERT INTO orders SELECT g, g % 1000, g * 0.01, 'new', now(), 'a note of some length about order ' || g
                FROM generate_series({first} + number * {_ROWS_OF_TRANSACTION},
                    {first} + (number + 1) * {_ROWS_OF_TRANSACTION} - 1) g;
            COMMIT;
            UPDATE orders SET status = 'paid', at = now() WHERE id >= {first} + number * {_ROWS_OF_TRANSACTION};
            COMMIT;
        END LOOP; END $$"""
    )


def _seconds(command: list[str]) -> tuple[float, float, str]:
    """Seconds, and those of the processor, that the command takes; and its output."""
    started, used = time.monotonic(), _processor_s()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    return time.monotonic() - started, _processor_s() - used, done.stdout


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of those that have ended
    return used.ru_utime + used.ru_stime


def measure(folder: Path, changes: int, rounds: int, nodes: int = 3) -> Result:
    """Measures in turns. Raises RuntimeError if a change is not in the log once, MissingTool without PostgreSQL."""
    changes -= changes % (2 * _ROWS_OF_TRANSACTION)
    try:
        server = PostgresServer(free_ports(1)[0])
    except PostgresNotFoundError as error:
        raise MissingTool(str(error)) from error
    found: list[Round] = []
    try:
        server.start()
        with LocalCluster(folder / "cluster", nodes) as cluster:
            cluster.start()
            cluster.wait_ready()
            cluster.leader()
            server.sql(*_TABLE)
            ours = [
                *_IMPORT, "--postgres", server.conninfo, "--tables", "orders", "--state", str(folder / "state"), "-o",
                "json", "-e", ",".join(cluster.urls),
            ]  # fmt: skip
            _seconds(ours)  # makes publication and slot; there are no rows yet
            server.sql("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
            for number in range(rounds):
                write(server, number * changes, changes)
                end = server.sql("SELECT pg_current_wal_flush_lsn()").strip()
                theirs = [
                    str(server.bin / "pg_recvlogical"), "-d", server.conninfo, "-S", "other", "--start", "-E", end,
                    "-f", str(folder / f"received-{number}"), "-o", "proto_version=1", "-o",
                    "publication_names=raftlog",
                ]  # fmt: skip
                turns = (theirs, ours) if number % 2 else (ours, theirs)
                taken = {each[0]: _seconds(each) for each in turns}
                our_s, used_s, told = taken[ours[0]]
                their_s, _, _ = taken[theirs[0]]
                records = json.loads(told)["records"]
                if records != (number + 1) * changes:
                    raise RuntimeError(f"{(number + 1) * changes} changes were to be copied, not {records}")
                found.append(Round(changes / their_s, changes / our_s, used_s / changes * 1e6))
            check(cluster.urls, rounds * changes)
    finally:
        server.stop()
    return Result(changes, found)


def check(urls: list[str], changes: int) -> None:
    """Raises RuntimeError unless the log has so many changes, each once."""
    with SyncClient(urls) as client:
        seen = set()
        for record in client.log():
            if record.operation == "append":
                value = json.loads(record.value or b"")
                seen.add((value["lsn"], value["n"]))
    if len(seen) != changes:
        raise RuntimeError(f"the log has {len(seen)} different changes of {changes}")


def _told(result: Result) -> list[str]:
    ours = statistics.median(each.raftlog for each in result.rounds)
    theirs = statistics.median(each.recvlogical for each in result.rounds)
    return [
        f"raftlog import  {ours:10,.0f} changes/s, {len(result.rounds)} rounds of {result.changes:,}",
        f"its processor   {statistics.median(each.importer_us for each in result.rounds):10.1f} µs for each change",
        f"pg_recvlogical  {theirs:10,.0f} changes/s; ratio {ours / theirs:.2f}",
    ]


def main(
    changes: Annotated[int, typer.Option(help="Changes of each round.", min=200)] = 200_000,
    rounds: Annotated[int, typer.Option(help="Rounds, of which the medians are shown.", min=1)] = 3,
    data: Annotated[Path | None, typer.Option(help="Folder on the disk to measure on.")] = None,
    save: Annotated[Path, typer.Option(help="Where the result goes.")] = Path("bench/results/postgres.json"),
) -> None:
    """Print the changes per second of a copy from PostgreSQL, beside pg_recvlogical."""
    study.run("postgres", data, save, lambda folder, _: measure(folder, changes, rounds), _told)
