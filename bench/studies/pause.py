"""Measures how long a node stands still while it saves its state, by default a million keys: `bench pause`.

One node process runs with the shipped defaults, but takes a snapshot after little log. Its pauses are measured twice:
by its own metric of late ticks of the event loop, and from outside by the time of /livez, asked every few milliseconds.
The same is measured while no snapshot is saved. The result also shows how long the asking process itself was kept from
running, because such pauses come from the machine.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from bench.contenders.raftlog import Raftlog
from bench.instruments import conditions, machine
from bench.studies import study
from bench.studies.growth import puts
from bench.studies.overload import ask

PAUSE_MS = 50.0
SNAPSHOT_LOG_BYTES = 8 << 20
"""A snapshot is due after so much log: the state's size does not count (limits.snapshot_log_percent)."""
ASK_EVERY_S = 0.002
PATIENCE_S = 300.0
SETTLE_S = 30.0
_BUCKET = 0.05  # of raftlog_loop_lag_seconds


class Seen(msgspec.Struct, frozen=True):
    """One stretch of time; pauses in milliseconds."""

    seconds: float
    snapshots: int  # that were saved in it
    ticks: int
    late_ticks: int  # later than 50 ms, by the node's own metric
    answers: int
    slowest_answer_ms: float
    own_pause_ms: float  # the longest time for which the asking process did not run


class Result(msgspec.Struct, frozen=True):
    """The whole run."""

    when: str
    conditions: conditions.Conditions
    keys: int
    value_bytes: int
    memory_mib: float
    snapshot_mib: float
    snapshot_seconds: list[float]  # how long each took, by the node's log
    calm: Seen
    saving: Seen
    writing: Seen  # writes go on while it is saved

    @property
    def faults(self) -> list[str]:
        """The missed bounds, as sentences."""
        found = []
        for name, seen in (("saving", self.saving), ("saving under writes", self.writing)):
            if not seen.snapshots:
                found.append(f"{name}: no snapshot was saved")
            if seen.late_ticks:
                found.append(f"{name}: {seen.late_ticks} ticks came more than {PAUSE_MS:.0f} ms late")
        slowest = self.saving.slowest_answer_ms
        if slowest - self.saving.own_pause_ms > PAUSE_MS:  # with writes beside, an answer waits for their turns too
            found.append(f"saving: an answer took {slowest:.0f} ms")
        return found


def _numbers(url: str) -> dict[str, float]:
    """Of /metrics: ticks, those that were not late, the newest snapshot."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(ask(url, "/metrics").decode()):
        for sample in family.samples:
            if sample.name == "raftlog_loop_lag_seconds_count":
                found["ticks"] = sample.value
            elif sample.name == "raftlog_loop_lag_seconds_bucket" and float(sample.labels["le"]) == _BUCKET:
                found["in time"] = sample.value
            elif sample.name in ("raftlog_snapshot_index", "raftlog_snapshot_bytes"):
                found[sample.name] = sample.value
    return found


class Asker(threading.Thread):
    """Asks /livez over one connection, every few milliseconds, until it is stopped."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ended = threading.Event()
        self.answers = 0
        self.slowest_s = self.own_pause_s = 0.0

    def run(self) -> None:
        """The thread."""
        connection = http.client.HTTPConnection(self._url.removeprefix("http://"), timeout=60)
        while not self._ended.is_set():
            began = time.perf_counter()
            time.sleep(ASK_EVERY_S)
            asked = time.perf_counter()
            self.own_pause_s = max(self.own_pause_s, asked - began - ASK_EVERY_S)
            connection.request("GET", "/livez")
            connection.getresponse().read()
            self.answers += 1
            self.slowest_s = max(self.slowest_s, time.perf_counter() - asked)
        connection.close()

    def end(self) -> None:
        """Stops it."""
        self._ended.set()
        self.join(60)


def _watched(ours: Raftlog, work: threading.Thread | None, snapshots: int, seconds: float) -> Seen:
    """Watches the node until so many snapshots were saved, for so many seconds at least, while `work` goes on."""
    url = ours.url
    before = _numbers(url)
    asker = Asker(url)
    began = time.monotonic()
    asker.start()
    if work is not None:
        work.start()
    saved, newest = 0, before["raftlog_snapshot_index"]
    while (took := time.monotonic() - began) < PATIENCE_S and (saved < snapshots or took < seconds):
        time.sleep(0.2)
        if (index := _numbers(url)["raftlog_snapshot_index"]) != newest:
            saved, newest = saved + 1, index
    asker.end()
    if work is not None:
        work.join(60)
    after = _numbers(url)
    ticks = int(after["ticks"] - before["ticks"])
    return Seen(
        round(took, 1), saved, ticks, ticks - int(after["in time"] - before["in time"]), asker.answers,
        round(asker.slowest_s * 1e3, 1), round(asker.own_pause_s * 1e3, 1),
    )  # fmt: skip


def _settle(ours: Raftlog) -> None:
    """Waits until no snapshot was saved for a while: one begun during replay has fewer keys and must not count."""
    since, newest = time.monotonic(), _numbers(ours.url)["raftlog_snapshot_index"]
    until = since + PATIENCE_S
    while time.monotonic() < min(until, since + SETTLE_S):
        time.sleep(0.5)
        if (index := _numbers(ours.url)["raftlog_snapshot_index"]) != newest:
            since, newest = time.monotonic(), index


class Writes(threading.Thread):
    """Appends a megabyte at a time, so much in all, and waits in between."""

    def __init__(self, ours: Raftlog, size: int, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._ours, self._size, self._pause_s = ours, size, pause_s

    def run(self) -> None:
        """The thread."""
        body = msgspec.msgpack.encode([b"x" * 1_000] * 100)
        for _ in range(self._size // 100_000):
            self._ours.ask("POST", "/v1/log", body, "application/msgpack")
            time.sleep(self._pause_s)


def measure(folder: Path, keys: int, value_bytes: int, snapshots: int, console: Console) -> Result:
    """The run. Raises RuntimeError or LocalClusterError."""
    seen = conditions.look(folder, console, 4 * keys * (value_bytes + 200))
    quiet = {"limits.snapshot_log_bytes": 1 << 40}
    often = {"limits.snapshot_log_bytes": SNAPSHOT_LOG_BYTES, "limits.snapshot_log_percent": 1}
    ours = Raftlog(folder / "nodes", 1, settings=quiet)
    try:
        ours.start()
        ours.ask_all("POST", "/v1/kv/txn", puts(0, keys, value_bytes), "application/json")
        calm = _watched(ours, None, 0, 20.0)
        console.print(f"{keys:,} keys; calm: {calm}")
        ours.cluster.stop()
        ours = Raftlog(folder / "nodes", 1, settings=often)
        ours.start()
        _settle(ours)
        saving = _watched(ours, Writes(ours, SNAPSHOT_LOG_BYTES, 0.0), 1, 10.0)
        console.print(f"saving: {saving}")
        writing = _watched(ours, Writes(ours, (snapshots + 1) * SNAPSHOT_LOG_BYTES, 0.05), snapshots, 10.0)
        console.print(f"saving under writes: {writing}")
        memory = machine.memory_mib(ours.pids)
        size = _numbers(ours.url)["raftlog_snapshot_bytes"]
        log = ours.cluster.log_file(ours.cluster.nodes[0]).read_text()
    finally:
        ours.cluster.kill(*ours.cluster.nodes)
    lines = [msgspec.json.decode(line) for line in log.splitlines() if '"snapshot_saved"' in line]
    return Result(
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), seen, keys, value_bytes, round(memory, 1),
        round(size / (1 << 20), 1), [line["seconds"] for line in lines], calm, saving, writing,
    )  # fmt: skip


def _told(result: Result) -> Iterator[str]:
    yield (
        f"snapshots of {result.snapshot_mib:.0f} MiB in {result.snapshot_seconds} s, memory {result.memory_mib:.0f} "
        f"MiB; slowest answer {result.calm.slowest_answer_ms:.0f} ms calm, {result.saving.slowest_answer_ms:.0f} ms "
        f"while it saves, {result.writing.slowest_answer_ms:.0f} ms with writes beside; ticks over 50 ms late: "
        f"{result.calm.late_ticks}, {result.saving.late_ticks}, {result.writing.late_ticks} of {result.writing.ticks}"
    )


def main(
    keys: Annotated[int, typer.Option(min=100, help="keys in the store")] = 1_000_000,
    size: Annotated[int, typer.Option(min=1, help="bytes of each value")] = 256,
    snapshots: Annotated[int, typer.Option(min=1, help="that are saved while writes go on")] = 2,
    data: Annotated[Path | None, typer.Option(help="folder on a real disk for the data")] = None,
    save: Annotated[Path, typer.Option(help="where the result goes")] = Path("bench/results/pause.json"),
) -> None:
    """Saves the state of a million keys of 256 bytes: does the event loop ever stand still for more than 50 ms?"""
    study.run("pause", data, save, lambda folder, console: measure(folder, keys, size, snapshots, console), _told)
