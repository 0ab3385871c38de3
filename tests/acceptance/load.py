"""Load for a cluster under faults: raw keep-alive connections, and writers that retry until they are answered.

Every writer has a session and one sequence open at a time, and sends the same bytes under the same sequence until it
is acknowledged, at the next node whenever one fails: so every value ends in the log exactly once, or, if the load was
stopped before its answer, at most once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from raftlog.cluster.api.errors import ERRORS, Problem
from raftlog.cluster.api.headers import H_DEADLINE, H_SEQUENCE, H_SESSION, H_SETTLED, JSON
from raftlog.cluster.api.records import Appended
from raftlog.cluster.api.sessions import SessionAnswer
from raftlog.cluster.api.status import Status
from raftlog.cluster.client.aio.connection import Connection
from raftlog.cluster.client.decisions import Failure
from raftlog.cluster.client.flow import LostAnswer, Response
from raftlog.cluster.client.http1 import encode_request
from raftlog.cluster.security.tls import credentials_for
from tests.support import TooSlow, pace, wait_until_async

RETRY_S = 0.005
"""Between two attempts after a failure: short beside the fail-over times that are measured through it."""


class Door:
    """One keep-alive connection to one node; opened again when it was lost. One request at a time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._host = urlsplit(url).netloc
        self._credentials = credentials_for((url,), None)
        self._connection: Connection | None = None

    async def ask(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> Response | LostAnswer:
        """Sends one request and waits for its whole answer."""
        if self._connection is None or not self._connection.is_usable:
            self.close()
            host, _, port = self._host.rpartition(":")
            context = self._credentials.context("client") if self._credentials else None
            try:
                async with asyncio.timeout(timeout_s):
                    _, self._connection = await asyncio.get_running_loop().create_connection(
                        Connection, host, int(port), ssl=context
                    )
            except (OSError, TimeoutError) as error:
                return LostAnswer(Failure.NOT_SENT, str(error))
        data = encode_request(method, target, self._host, list((headers or {}).items()), body)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connection.send(data, stream=False)
        except TimeoutError:
            self.close()
            return LostAnswer(Failure.TIMED_OUT, f"no answer within {timeout_s:g} s")
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def check_no_election(before: Status | None, after: Status | None) -> None:
    """Of the node that led at first: it leads still, in the same term.

    Raises TooSlow if not: what the test did may be the reason, and then it is the reason the next time too.
    """
    assert before is not None, "it did not answer"
    if after is None or (after.role, after.term) != ("leader", before.term):
        raise TooSlow(f"the leader changed: {before} became {after}")


def problem_of(response: Response) -> Problem:
    """The problem that an answer carries."""
    return msgspec.json.decode(response.body, type=Problem)


async def open_session(urls: Sequence[str], deadline_s: float = 10.0) -> int:
    """A session of the cluster, from whichever node gives one."""
    end = time.monotonic() + deadline_s
    answer: Response | LostAnswer | None = None
    while time.monotonic() < end:
        for url in urls:
            door = Door(url)
            answer = await door.ask(
                "POST", "/v1/sessions", body=b'{"ttl_ms":600000}', headers={"Content-Type": JSON}, timeout_s=2.0
            )
            door.close()
            if isinstance(answer, Response) and answer.head.status == 200:
                return msgspec.json.decode(answer.body, type=SessionAnswer).session
        await pace(RETRY_S)
    raise AssertionError(f"no session within {deadline_s:g} s; the last answer was {answer}")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One write that was answered with applied: `at` in monotonic seconds."""

    value: bytes
    index: int
    term: int
    at: float
    url: str


@dataclass(slots=True)
class Load:
    """`writers` concurrent appenders over `urls`; a context manager.

    Each has a home among the nodes, where it sends every new write first: no fault can drive all of them to one node.
    """

    urls: Sequence[str]  # may be replaced while it runs: members come and go
    writers: int = 8
    attempt_s: float = 1.0
    think_s: float = 0.0  # of every writer between two writes
    sessions: list[int] = field(default_factory=list)  # of the writers
    acknowledged: list[Acknowledged] = field(default_factory=list)
    open: dict[int, bytes] = field(default_factory=dict)  # session -> value sent and not yet acknowledged
    answers: Counter[str] = field(default_factory=Counter)  # outcome/code of every answer, or how it was lost
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Load:
        self.sessions = list(await asyncio.gather(*(open_session(self.urls) for _ in range(self.writers))))
        self._tasks = [asyncio.create_task(self._write(home, session)) for home, session in enumerate(self.sessions)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """No new writes; those under way get their answer, or stay in `open` after a last attempt."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def more(self, count: int, deadline_s: float = 30.0) -> None:
        """Waits until that many more writes are acknowledged."""
        goal = len(self.acknowledged) + count
        what = f"{count} more writes; answers so far: {self.answers}"
        await wait_until_async(lambda: len(self.acknowledged) >= goal, deadline_s, what=what)

    async def _write(self, home: int, session: int) -> None:
        doors: dict[str, Door] = {}
        sequence = 0
        try:
            while not self._stopping.is_set():
                sequence += 1
                turn = home
                value = b"session %d sequence %d" % (session, sequence)
                self.open[session] = value
                headers = {
                    H_SESSION: str(session),
                    H_SEQUENCE: str(sequence),
                    H_SETTLED: str(sequence),
                    H_DEADLINE: str(int(self.attempt_s * 1000)),
                    "Content-Type": "application/octet-stream",
                }
                while True:
                    url = self.urls[turn % len(self.urls)]
                    door = doors.setdefault(url, Door(url))
                    answer = await door.ask(
                        "POST", "/v1/log", body=value, headers=headers, timeout_s=self.attempt_s + 0.25
                    )
                    if isinstance(answer, Response) and answer.head.status == 200:
                        told = msgspec.json.decode(answer.body, type=Appended)
                        self.answers[f"{told.outcome}/{told.result}"] += 1
                        self.acknowledged.append(Acknowledged(value, told.index, told.term, time.monotonic(), door.url))
                        del self.open[session]
                        break
                    self.answers[_word(answer)] += 1
                    if self._stopping.is_set():
                        return
                    turn += 1
                    await pace(RETRY_S)
                if self.think_s:
                    await pace(self.think_s)
        finally:
            for door in doors.values():
                door.close()


def _word(answer: Response | LostAnswer) -> str:
    if isinstance(answer, LostAnswer):
        return f"lost/{answer.failure}"
    problem = problem_of(answer)
    assert problem.retryable, f"a writer met an error that no retry removes: {problem}"
    copy = ERRORS[problem.code].outcome  # of this copy; with a session `problem.outcome` is about earlier ones, too
    return f"{copy}/{problem.code}"
