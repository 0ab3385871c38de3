"""Runs a closed loop over bare sockets, in its own process, for protocols that no load generator speaks.

Every connection keeps `window` requests in flight. What an answer is, `Answers` says; nothing is decoded, so that the
client is never the limit. `run` starts the process (`python -m bench.loads.raw`), which reads its job as JSON.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys
import time
from collections import deque

import msgspec

from bench.instruments import apart
from bench.instruments.figures import Run, run_of

_RECEIVE_BYTES = 1 << 20
_HELLO_S = 10.0


class Answers(msgspec.Struct, frozen=True, tag_field="kind", tag="marker"):
    """Each answer holds `good` once; one that holds `bad` instead is a failure."""

    good: bytes
    bad: bytes


class Frames(msgspec.Struct, frozen=True, tag_field="kind", tag="frames"):
    """Each answer is a frame with its length in front (u32, big-endian), and an error number at `error_at`."""

    error_at: int


NUMBER = b"@@@@"
"""Stands for the connection's number in `Job.hello` and `Job.request`."""


class Job(msgspec.Struct, frozen=True):
    """What to send to `port` of this machine; `hello` first, whose answer holds `welcome` (or is one frame)."""

    port: int
    request: bytes
    answers: Answers | Frames
    hello: bytes = b""
    welcome: bytes = b""
    connections: int = 1
    window: int = 1
    seconds: float = 1.0
    answers_each: int = 1  # of one request
    requests_max: int = 0  # ends once so many are answered; 0: only by time


class Tally:
    """Counts answers in bytes that come in any pieces."""

    __slots__ = ("_answers", "_carry", "bad")

    def __init__(self, answers: Answers | Frames) -> None:
        self._answers = answers
        self._carry = b"\r\n" if isinstance(answers, Answers) else b""  # as behind a line
        self.bad = 0

    def feed(self, data: bytes) -> int:
        """How many answers these bytes end."""
        answers, joined = self._answers, self._carry + data
        if isinstance(answers, Answers):
            # The carried bytes are shorter than a marker or were counted before, so only matches that end in `data` are
            # new.
            good = joined.count(answers.good) - self._carry.count(answers.good)
            bad = joined.count(answers.bad) - self._carry.count(answers.bad) if answers.bad else 0
            self._carry = joined[1 - max(len(answers.good), len(answers.bad)) :]
            self.bad += bad
            return good + bad
        at = frames = 0
        while len(joined) - at >= 4:
            end = at + 4 + int.from_bytes(joined[at : at + 4], "big")
            if end > len(joined):
                break
            self.bad += any(joined[at + answers.error_at : at + answers.error_at + 4])
            frames += 1
            at = end
        self._carry = joined[at:]
        return frames


class _Connection:
    """One socket, the times of its requests in flight, and its answers."""

    __slots__ = ("_request", "sent", "sock", "tally")

    def __init__(self, job: Job, number: int) -> None:
        name = b"%04d" % number
        self._request = job.request.replace(NUMBER, name)
        self.sock = socket.create_connection(("127.0.0.1", job.port), _HELLO_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent: deque[tuple[float, int]] = deque()
        self.tally = Tally(job.answers)
        if job.hello:
            self.sock.sendall(job.hello.replace(NUMBER, name))
            seen = self.sock.recv(_RECEIVE_BYTES)
            while (job.welcome not in seen) if job.welcome else not _is_frame(seen):
                more = self.sock.recv(_RECEIVE_BYTES)
                if not more:
                    raise ConnectionError(f"the server closed the connection after {seen[-200:]!r}")
                seen += more

    def send(self, count: int, now: float) -> None:
        """So many requests at once."""
        self.sent.append((now, count))
        self.sock.sendall(self._request * count)

    def settle(self, count: int, now: float, latencies: list[float]) -> None:
        """The oldest `count` requests are answered."""
        while count and self.sent:
            when, number = self.sent[0]
            took = min(count, number)
            latencies.extend([(now - when) * 1e3] * took)
            count -= took
            if took == number:
                self.sent.popleft()
            else:
                self.sent[0] = (when, number - took)


def _is_frame(data: bytes) -> bool:
    return len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">I", data)[0]


def perform(job: Job) -> Run:
    """The loop, in this process. Raises OSError."""
    connections = [_Connection(job, number) for number in range(job.connections)]
    latencies: list[float] = []
    unsent = job.requests_max or sys.maxsize
    left = [0] * len(connections)  # answers of requests that are answered in part
    with selectors.DefaultSelector() as selector:
        start = now = time.perf_counter()
        for number, connection in enumerate(connections):
            selector.register(connection.sock, selectors.EVENT_READ, number)
            connection.send(min(job.window, unsent), now)
            unsent -= min(job.window, unsent)
        end = start + job.seconds
        while now < end and (unsent or any(connection.sent for connection in connections)):
            for key, _ in selector.select(min(0.5, end - now)):
                number = key.data
                connection = connections[number]
                data = connection.sock.recv(_RECEIVE_BYTES)
                if not data:
                    raise ConnectionError("the server closed a connection")
                done, left[number] = divmod(connection.tally.feed(data) + left[number], job.answers_each)
                now = time.perf_counter()
                if done:
                    connection.settle(done, now, latencies)
                    if again := min(done, unsent):
                        unsent -= again
                        connection.send(again, now)
            now = time.perf_counter()
    for connection in connections:
        connection.sock.close()
    bad = sum(connection.tally.bad for connection in connections)
    return run_of(job.connections * job.window, now - start, latencies, bad)


def run(job: Job) -> Run:
    """The loop in a process of its own. Raises RuntimeError with what it wrote."""
    return apart.run("bench.loads.raw", Run, job=job, seconds=job.seconds)


if __name__ == "__main__":
    apart.tell(perform(apart.job(Job)))
