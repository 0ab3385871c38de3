"""Reads a raftlog's log from end to end over one bare socket, again and again, and counts: MB/s of values.

`python -m bench.loads.stream_client PORT FORMAT RECORDS VALUE_BYTES SECONDS` prints one run as JSON, whose rate is in
MB of values a second. A pass that is too short, or not as long as the first, is a failure.
"""

from __future__ import annotations

import socket
import sys
import time
from urllib.parse import urlsplit

import msgspec

from bench.instruments import apart
from bench.instruments.figures import Run, run_of

_BUFFER_BYTES = 1 << 20
_PASS_S = 240.0  # a pass that has begun is finished


def read_once(port: int, target: str) -> tuple[int, int]:
    """(bytes, lines) of one answer, read to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), 30) as sock:
        request = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        sock.sendall(request.encode())
        buffer = bytearray(_BUFFER_BYTES)
        view = memoryview(buffer)
        total = lines = 0
        first = True
        is_text = "ndjson" in target
        while size := sock.recv_into(view):
            if first and not buffer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"GET {target} answered {bytes(buffer[:300])!r}")
            first = False
            total += size
            if is_text:
                lines += buffer.count(b'{"index":', 0, size)
        return total, lines


def perform(port: int, form: str, records: int, value_bytes: int, seconds: float) -> Run:
    """Whole passes for so long, at least one."""
    target = f"/v1/log?from=1&limit={records}&format={form}"
    sizes: list[int] = []
    times: list[float] = []
    bad = 0
    start = now = time.perf_counter()
    while not sizes or now - start < seconds:
        total, lines = read_once(port, target)
        before, now = now, time.perf_counter()
        times.append((now - before) * 1e3)
        sizes.append(total)
        short = form == "ndjson" and lines < records * 0.99  # a record's first bytes may be split between two reads
        bad += total < records * value_bytes * 0.95 or short
    megabytes = len(sizes) * records * value_bytes / 1e6
    seen = run_of(1, now - start, times, bad)
    return msgspec.structs.replace(seen, requests=round(megabytes), per_second=round(megabytes / (now - start), 1))


def run(url: str, form: str, records: int, value_bytes: int, seconds: float) -> Run:
    """The same in a process of its own. Raises RuntimeError with its output."""
    words = (urlsplit(url).port, form, records, value_bytes, seconds)
    return apart.run("bench.loads.stream_client", Run, words=words, seconds=seconds + _PASS_S)


if __name__ == "__main__":
    _, _port, _form, _records, _bytes, _seconds = sys.argv
    apart.tell(perform(int(_port), _form, int(_records), int(_bytes), float(_seconds)))
