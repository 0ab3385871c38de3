"""Makes closed-loop HTTP/2 load with h2load, for gRPC: one request per stream, as many streams as connections."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec

from bench.instruments import tools
from bench.instruments.figures import Run, run_of

_DONE = re.compile(r"requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded")


class Load(msgspec.Struct, frozen=True):
    """One gRPC call to repeat: `message` is its protobuf."""

    url: str
    message: bytes
    headers: dict[str, str] = {}


def field(number: int, value: bytes | int) -> bytes:
    """One field of a protobuf message: bytes or a whole number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number: int) -> bytes:
    """A whole number, seven bits a byte."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def run(load: Load, *, connections: int, seconds: int, folder: Path) -> Run:
    """h2load once, with one thread. Raises MissingTool, or RuntimeError with its own words."""
    program = tools.debian("h2load", "nghttp2-client")
    body, log = folder / "h2load.body", folder / "h2load.log"
    body.write_bytes(b"\0" + len(load.message).to_bytes(4, "big") + load.message)
    log.unlink(missing_ok=True)
    command = [
        program.path,
        "-t1",
        f"-c{connections}",
        "-m1",
        f"-D{seconds}",
        f"--data={body}",
        f"--log-file={log}",
        "-H",
        "content-type: application/grpc",
        "-H",
        "te: trailers",
        *(word for name, value in load.headers.items() for word in ("-H", f"{name}: {value}")),
        load.url,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 60, check=False, env=program.full_environment()
    )
    found = _DONE.search(done.stdout)
    if done.returncode or found is None:
        raise RuntimeError(f"h2load failed on {load.url}: {done.stderr.strip() or done.stdout.strip()}")
    rows = [line.split() for line in log.read_text().splitlines()]
    good = [float(row[2]) / 1e3 for row in rows if row[1] == "200"]
    return run_of(connections, seconds, good, bad=len(rows) - len(good))
