"""Closed-loop load from wrk: one run of one request against one URL, its answers counted and timed.

wrk keeps each connection busy (a new request as soon as the answer is in), so its figures say how much a server can
do, not how it feels at a given rate: `bench.openloop` says that.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec

_SCRIPT = """
wrk.method = "%(method)s"
wrk.headers["Content-Type"] = "%(content_type)s"
wrk.body = %(body)s
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '{"requests":%%d,"duration_us":%%d,"bad":%%d,"p50_us":%%d,"p99_us":%%d,"p999_us":%%d}\\n',
    summary.requests, summary.duration, e.status + e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
"""


class MissingTool(Exception):
    """A program the bench needs is not installed; the message names the command that installs it."""


class Load(msgspec.Struct, frozen=True):
    """One request to repeat."""

    url: str
    method: str
    body: str = ""  # text only: wrk's script holds it
    content_type: str = "application/octet-stream"


class Run(msgspec.Struct, frozen=True):
    """What one run of wrk saw. `bad` counts answers that were no 2xx, and broken connections."""

    connections: int
    requests: int
    per_second: float
    bad: int
    p50_ms: float
    p99_ms: float
    p999_ms: float


def run(load: Load, *, connections: int, seconds: int, folder: Path) -> Run:
    """Run wrk once with one thread. Raises MissingTool, or RuntimeError with wrk's own words."""
    program = shutil.which("wrk")
    if program is None:
        raise MissingTool("wrk is not installed: apt-get install wrk")
    script = folder / "request.lua"
    fields = {"method": load.method, "content_type": load.content_type, "body": json.dumps(load.body)}
    script.write_text(_SCRIPT % fields)
    command = [program, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(script), load.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last.startswith("{"):
        raise RuntimeError(f"wrk failed on {load.url}: {done.stderr.strip() or done.stdout.strip()}")
    seen = json.loads(last)
    return Run(
        connections=connections,
        requests=seen["requests"],
        per_second=round(seen["requests"] / (seen["duration_us"] / 1e6), 1),
        bad=seen["bad"],
        p50_ms=seen["p50_us"] / 1e3,
        p99_ms=seen["p99_us"] / 1e3,
        p999_ms=seen["p999_us"] / 1e3,
    )
