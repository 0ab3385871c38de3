"""Makes closed-loop load with wrk: one run of one request against one URL, its answers counted and timed.

wrk keeps each connection busy (a new request as soon as the answer is in), so its figures say how much a server can
do, not how it feels at a given rate: `bench.loads.openloop` says that.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from bench.instruments import tools
from bench.instruments.figures import Run

_SCRIPT = """
wrk.method = "%(method)s"
%(headers)s
wrk.body = %(body)s
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '{"requests":%%d,"duration_us":%%d,"bad":%%d,"p50_us":%%d,"p99_us":%%d,"p999_us":%%d}\\n',
    summary.requests, summary.duration, e.status + e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
"""


class Load(msgspec.Struct, frozen=True):
    """One request to repeat."""

    url: str
    method: str
    body: str | bytes = ""
    content_type: str = "application/octet-stream"
    headers: dict[str, str] = {}


def quoted(body: str | bytes) -> str:
    """Any bytes as a string literal of Lua."""
    raw = body.encode() if isinstance(body, str) else body
    return '"' + "".join(chr(c) if 32 <= c < 127 and c not in (34, 92) else f"\\{c:03d}" for c in raw) + '"'


def run(load: Load, *, connections: int, seconds: int, folder: Path) -> Run:
    """Run wrk once with one thread. Raises MissingTool, or RuntimeError with wrk's own words."""
    program = tools.debian("wrk", "wrk")
    script = folder / "request.lua"
    headers = {"Content-Type": load.content_type} | load.headers
    lines = [f"wrk.headers[{quoted(name)}] = {quoted(value)}" for name, value in headers.items()]
    fields = {"method": load.method, "headers": "\n".join(lines), "body": quoted(load.body)}
    script.write_text(_SCRIPT % fields)
    words = f"-t1 -c{connections} -d{seconds}s --timeout 10s -s".split()
    done = subprocess.run(
        [program.path, *words, str(script), load.url],
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=False,
        env=program.full_environment(),
    )
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last.startswith("{"):
        raise RuntimeError(f"wrk failed on {load.url}: {done.stderr.strip() or done.stdout.strip()}")
    seen = msgspec.json.decode(last)
    return Run(
        connections=connections,
        requests=seen["requests"],
        per_second=round(seen["requests"] / (seen["duration_us"] / 1e6), 1),
        bad=seen["bad"],
        p50_ms=seen["p50_us"] / 1e3,
        p99_ms=seen["p99_us"] / 1e3,
        p999_ms=seen["p999_us"] / 1e3,
    )
