"""Follows one log a thousand times from one process of bare sockets: is each record delivered, when, at what cost.

The writer appends records that carry the moment they were due; every follower reads the raw stream of one of the nodes.
The lateness of a chunk is that of its oldest record, counted for all of its records: never better than it was.
`python -m bench.loads.followers` reads its job as JSON.
"""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections import Counter

import msgspec

from bench.instruments import apart
from bench.instruments.figures import at
from raftlog.raft.codec.raw import RAW_SIZE, decode_raw_header

_MARK = b"@due="
_DIGITS = 17
_STATUS = b"HTTP/1.1 "
_GOOD = b"HTTP/1.1 200"
_DRAIN_S = 30.0
_TICK_S = 0.005


class Job(msgspec.Struct, frozen=True):
    """Followers spread over the nodes at `ports`, records a second written at the first one, from index `start` on."""

    ports: list[int]
    start: int
    followers: int
    rate: int
    seconds: float
    writers: int = 64  # connections that the records are written over


class Delivery(msgspec.Struct, frozen=True):
    """What arrived. `missing`: records that some follower did not get, in all."""

    followers: int
    written: int
    delivered: int
    missing: int
    bad_writes: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    client_cpu_us: float  # of a delivered record
    nodes_cpu_us: float = 0.0  # of a delivered record, all nodes; filled in by the caller that knows their processes


class Follower:
    """One stream: takes HTTP's chunks apart, and adds up which records came."""

    __slots__ = ("_buffer", "has_head", "next", "sock")

    def __init__(self, sock: socket.socket, start: int) -> None:
        self.sock = sock
        self.next = start
        self.has_head = False
        self._buffer = b""

    def received(self, data: bytes, now: float, late: Counter[int]) -> None:
        """Counts the complete records. Raises RuntimeError at a gap, or at an answer that is no stream."""
        data = self._buffer + data if self._buffer else data
        position = 0
        if not self.has_head:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = data
                return
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"a follower was answered {data[:300]!r}")
            self.has_head, position = True, end + 4
        while (line := data.find(b"\r\n", position)) >= 0:
            size = int(data[position:line], 16)
            end = line + 2 + size + 2
            if end > len(data):
                break
            self._chunk(data, line + 2, size, now, late)
            position = end
        self._buffer = data[position:]

    def _chunk(self, data: bytes, start: int, size: int, now: float, late: Counter[int]) -> None:
        if size < RAW_SIZE:
            raise RuntimeError("a piece of a raw chunk came by itself")
        header = decode_raw_header(data, start)
        if not header.rows:
            return
        if header.first > self.next:
            raise RuntimeError(f"the stream goes on at {header.first}, not at {self.next}")
        found = data.find(_MARK, start, start + size)
        if found >= 0:
            due = int(data[found + len(_MARK) : found + len(_MARK) + _DIGITS]) / 1e6
            late[int((now - due) * 1e3)] += header.next - max(self.next, header.first)
        self.next = header.next


class Writer:
    """Appends over several connections in turn, because a node answers one request of a connection after the other."""

    def __init__(self, port: int, connections: int) -> None:
        self._port = port
        self.sockets = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(connections)]
        self._carry = [b""] * connections
        self._seen = [(0, 0)] * connections
        self.written = 0

    def write(self, due: float) -> None:
        """One more record."""
        value = _MARK + b"%0*d" % (_DIGITS, int(due * 1e6))
        head = b"POST /v1/log HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n" % (self._port, len(value))
        self.sockets[self.written % len(self.sockets)].sendall(head + value)
        self.written += 1

    def received(self, number: int, data: bytes) -> None:
        """Counts the answers on one of the connections."""
        joined = self._carry[number] + data
        carry = joined[1 - len(_GOOD) :]
        good, all_of_them = self._seen[number]
        good += joined.count(_GOOD)
        all_of_them += joined.count(_STATUS) - carry.count(_STATUS)
        self._seen[number], self._carry[number] = (good, all_of_them), carry

    @property
    def good(self) -> int:
        """Answers that said 200."""
        return sum(good for good, _ in self._seen)

    @property
    def answered(self) -> int:
        """Answers that are whole enough to count."""
        return sum(number for _, number in self._seen)

    def close(self) -> None:
        """All connections."""
        for sock in self.sockets:
            sock.close()


def _open_follower(job: Job, number: int) -> Follower:
    port = job.ports[number % len(job.ports)]
    sock = socket.create_connection(("127.0.0.1", port), 10)
    target = f"/v1/log?from={job.start}&format=raw&follow=true"
    sock.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    return Follower(sock, job.start)


def perform(job: Job) -> Delivery:
    """The run, in this process. Raises OSError or RuntimeError."""
    late: Counter[int] = Counter()
    followers = [_open_follower(job, number) for number in range(job.followers)]
    writer = Writer(job.ports[0], job.writers)
    total = int(job.rate * job.seconds)
    last = job.start + total
    with selectors.DefaultSelector() as selector:
        for each in followers:
            selector.register(each.sock, selectors.EVENT_READ, each)
        for number, sock in enumerate(writer.sockets):
            selector.register(sock, selectors.EVENT_READ, number)
        cpu = _cpu()
        start = time.perf_counter()
        give_up = start + job.seconds + _DRAIN_S
        while (now := time.perf_counter()) < give_up:
            for number in range(writer.written, min(total, int((now - start) * job.rate))):
                writer.write(start + number / job.rate)
            for key, _ in selector.select(_TICK_S):
                data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]  # all of them are sockets
                if not data:
                    raise RuntimeError("a node closed a connection")
                if isinstance(key.data, Follower):
                    key.data.received(data, time.perf_counter(), late)
                else:
                    writer.received(key.data, data)
            if writer.answered == total and all(each.next >= last for each in followers):
                break
    cpu = _cpu() - cpu
    for each in followers:
        each.sock.close()
    writer.close()
    return summary(job, late, sum(max(0, last - each.next) for each in followers), total - writer.good, cpu)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def summary(job: Job, late: Counter[int], missing: int, bad: int, cpu: float) -> Delivery:
    """Percentiles of the lateness of all delivered records."""
    delivered = sum(late.values())
    shares: dict[float, int] = {}
    passed = 0
    for milliseconds in sorted(late):
        passed += late[milliseconds]
        for share in (0.5, 0.99):
            if passed >= delivered * share:
                shares.setdefault(share, milliseconds)
    worst = at(sorted(late), 1.0)
    total = int(job.rate * job.seconds)
    return Delivery(
        job.followers,
        total,
        delivered,
        missing,
        bad,
        shares.get(0.5, 0),
        shares.get(0.99, 0),
        worst,
        round(cpu / max(1, delivered) * 1e6, 3),
    )


def run(job: Job) -> Delivery:
    """The same in a process of its own. Raises RuntimeError with what it wrote."""
    return apart.run("bench.loads.followers", Delivery, job=job, seconds=job.seconds + 2 * _DRAIN_S)


if __name__ == "__main__":
    apart.tell(perform(apart.job(Job)))
