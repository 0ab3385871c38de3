"""Defines the commands of sinks: run, check, status, verify, rebuild, skip, retry, wait, drop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import stamina
import typer

from raftlog.cluster.api.text import as_row, counted
from raftlog.cluster.cli.consumers import owner_here
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, say
from raftlog.cluster.cli.frame.output import Row, view
from raftlog.cluster.cli.frame.stopping import StopSignal, interrupted
from raftlog.cluster.client import consumers as requests
from raftlog.cluster.client.errors import ClientError, ConsumerNotFound
from raftlog.cluster.sinks.discovery import SAMPLE_RECORDS
from raftlog.cluster.sinks.metrics import serve_metrics
from raftlog.cluster.sinks.retry import retry
from raftlog.cluster.sinks.runner import SinkRun, SinkStopped
from raftlog.cluster.sinks.settings import SinkFile, read_sinks
from raftlog.cluster.sinks.sinks import preview, rebuild, rejects_of, run_of, state_of, wait
from raftlog.cluster.sinks.store import StoreError
from raftlog.cluster.sinks.verify import verify

commands = Commands()
register = commands.register
_sink = commands.group("sink")

DONE: Final = view("name", "next", "rows", "batches", "rejected", "seconds", raw="next")
STATUS: Final = view("name", "to", "next", "lag", "lag_seconds", "rejected", "owner", "state", "error", raw="next")
RETRIED: Final = view("name", "retried", "left", raw="left")
VERIFIED: Final = view("name", "next", "rows", "missing", "extra", "changed", "rejected", "same", raw="same")

File = Annotated[Path, typer.Argument(metavar="SINKS.TOML", help="The file that describes the sinks.")]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME…", help="Sinks of the file; all of them if not given.")
]
SinkName = Annotated[str, typer.Argument(help="A sink of the file.")]


@_sink("run", writes=True)
def run_command(
    cli: Cli,
    file: File,
    names: Names = None,
    once: Annotated[bool, typer.Option("--once", help="End at the committed end of the log.")] = False,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", help="Serve /metrics on this port of loopback.", min=1, max=65_535)
    ] = None,
) -> None:
    """Keep stores up to date from the log, exactly once: start it again after a kill. Until Ctrl-C.

    docs/sinks.md has the file and the stores.
    """
    found = read_sinks(file)
    chosen = found.chosen(names or [])
    stop, started = StopSignal(), time.monotonic()
    with cli.client() as client:
        runs = [run_of(found, name, client, owner=owner_here(), stop=stop, tell=say) for name in chosen]
        if metrics_port is not None:
            serve_metrics(runs, metrics_port)
        errors = _run_all(runs, stop, once=once)
    cli.printer.all([_done(run, time.monotonic() - started) for run in runs], DONE)
    if errors:
        raise CommandFailed(f"{len(errors)} of {counted(len(runs), 'sink')} stopped; the messages are above")


def _run_all(runs: list[SinkRun], stop: StopSignal, *, once: bool) -> list[Exception]:
    """Runs each sink in a thread, until all have ended. A sink that stops leaves the others alone."""
    errors: list[Exception] = []

    def guarded(run: SinkRun) -> None:
        try:
            run.run(once=once)
        except (SinkStopped, StoreError, ClientError, OSError) as error:
            run.progress.error = str(error)
            errors.append(error)
            say(str(error) if isinstance(error, SinkStopped) else f"{run.name}: {error}")

    stamina.instrumentation.set_on_retry_hooks([])  # they print, and the command says it in its own words
    threads = [threading.Thread(target=guarded, args=(run,), name=f"sink {run.name}", daemon=True) for run in runs]
    with interrupted(stop, lambda: None):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return errors


@_sink("check")
def check_command(cli: Cli, file: File, names: Names = None) -> None:
    """Connect to the store, and print the mapping and the first ten rows as they would be stored. Writes nothing."""
    with cli.client() as client:
        found = read_sinks(file)
        for name in found.chosen(names or []):
            checked = preview(found, name, client)
            say(f"{name}: {checked.store}")
            say(f"{name}: {', '.join(checked.columns)}")
            rows = checked.rows
            none = f"none of the first {SAMPLE_RECORDS:,} records of the log makes a row"
            say(f"{name}: {counted(len(rows), 'row') + ' as stored' if rows else none}")
            if rows:
                cli.printer.all(rows, view(*rows[0], raw=next(iter(rows[0]))))


@_sink("status")
def status_command(cli: Cli, file: File, names: Names = None) -> None:
    """Show position, lag and owner of sinks. Exit code 3 if one never ran."""
    with cli.client() as client:
        found = read_sinks(file)
        rows = []
        for name in found.chosen(names or []):
            try:
                group = as_row(client.consumer(f"sink/{name}").status())
            except ConsumerNotFound:
                raise CommandFailed(
                    f"the sink {name} never ran: raftlog sink run {file} {name}", Exit.NOT_FOUND
                ) from None
            rows.append(_status(found, name, group))
        cli.printer.all(rows, STATUS)


@_sink("verify")
def verify_command(cli: Cli, file: File, names: Names = None) -> None:
    """Compare stores with the log, row by row. Exit code 7 if one differs, with the keys that do."""
    differ: list[str] = []

    def rows() -> Iterator[Row]:
        for name, sink in found.chosen(names or []).items():
            with closing(found.open_store(name)) as store:
                result = verify(name, sink, store, client)
            if result.unproven is not None:
                say(f"{name}: {result.unproven}")
            if not result.is_same:
                differ.append(f"{name} differs from the log: {'; '.join(result.differ)}")
            yield {"name": name, **as_row(result), "same": result.is_same}

    with cli.client() as client:
        found = read_sinks(file)
        cli.printer.all(rows(), VERIFIED)
    if differ:
        raise CommandFailed("; ".join(differ), Exit.NOT_VERIFIED)


@_sink("rebuild", writes=True)
def rebuild_command(cli: Cli, file: File, name: SinkName) -> None:
    """Fill a store again beside the old one, then exchange both in one step: after a change of settings or a trim."""
    with cli.client() as client:
        started = time.monotonic()
        run = rebuild(read_sinks(file), name, client, owner=owner_here(), tell=say)
        cli.printer.one(_done(run, time.monotonic() - started), DONE)


@_sink("skip", writes=True)
def skip_command(
    cli: Cli,
    file: File,
    name: SinkName,
    index: Annotated[int, typer.Argument(help="The record that the sink is not to write.", min=1)],
) -> None:
    """Go on behind one record that the store does not take. It is kept in NAME.rejected."""
    with cli.client() as client:
        started = time.monotonic()
        run = run_of(read_sinks(file), name, client, owner=owner_here(), tell=say)
        run.run(until=index, skip=index)
        cli.printer.one(_done(run, time.monotonic() - started), DONE)


@_sink("retry", writes=True)
def retry_command(cli: Cli, file: File, name: SinkName) -> None:
    """Send the records of NAME.rejected to the store again. A runner of the sink stops: start it again."""
    with cli.client() as client:
        found = read_sinks(file)
        sink = found.chosen([name])[name]
        result = retry(name, sink, found.open_store(name), client, rejects_of(found, name), owner=owner_here())
        cli.printer.one({"name": name, **as_row(result)}, RETRIED)


@_sink("wait")
def wait_command(
    cli: Cli,
    file: File,
    name: SinkName,
    index: Annotated[int, typer.Option("--index", help="What the store is to hold.", min=1)],
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait.", min=0)] = 30.0,
) -> None:
    """Wait until a store has a record: then an application reads its own write there. Exit code 1 after --timeout."""
    with cli.client() as client:
        found = read_sinks(file)
        position = wait(found, name, client, index, timeout_s=timeout)
        cli.printer.one({"name": name, "next": position.next}, view("name", "next", raw="next"))


@_sink("drop", writes=True)
def drop_command(
    cli: Cli,
    file: File,
    name: SinkName,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the rows in the store, and the sink's group.")] = False,
) -> None:
    """Delete what a sink has in its store, its position, and its consumer group."""
    if not yes:
        raise CommandFailed(f"this deletes the rows of {name} in its store: give --yes", Exit.USAGE)
    with cli.client() as client:
        found = read_sinks(file)
        sink = found.chosen([name])[name]
        with closing(found.open_store(name)) as store:
            store.drop(sink.identity(name, client.status().log))
        client.call(requests.delete(f"sink/{name}"))
        cli.printer.one({"name": name, "dropped": True}, view("name", "dropped", raw="name"))


def _done(run: SinkRun, seconds: float) -> dict[str, Any]:
    progress = run.progress
    return {
        "name": run.name,
        "next": None if progress.position is None else progress.position.next,
        "rows": progress.rows,
        "batches": progress.batches,
        "rejected": progress.rejected,
        "seconds": round(seconds, 3),
        "error": progress.error,
    }


def _status(found: SinkFile, name: str, group: dict[str, Any]) -> dict[str, Any]:
    state = state_of(found, name).read()
    return {
        "name": name,
        "to": found.sinks[name].__struct_config__.tag,
        "next": group["position"]["next"]["0"],
        "lag": group["lag"],
        "lag_seconds": group["lag_seconds"],
        "rejected": len(rejects_of(found, name).read()),
        "owner": group["owner"],
        "state": "unknown here" if state is None else state.state,
        "error": "" if state is None else state.error,
    }
