"""Sends one request straight to one node, once: no proxy, no session, no second attempt.

The workload of direct requests and the tracer of the log use it. A client that asks again hides a wrong first answer,
so these requests keep each answer as the node gave it. Every request has a bound in time: a node that runs answers
by then, or closes the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import msgspec

from raftlog.chaos.workloads.workload import OperationGivenUp
from raftlog.cluster.api.errors import Code, Outcome, Problem
from raftlog.cluster.api.headers import H_DEADLINE
from raftlog.cluster.client.errors import NotApplied, OutcomeUnknown
from raftlog.cluster.security.tls import credentials_for

LATE_S: Final = 30.0
"""Seconds after a request's own deadline in which its answer must come. A paused node stands for four seconds, and all
nodes that start at once on two busy cores take several more."""

_problem = msgspec.json.Decoder(Problem).decode


@dataclass(frozen=True, slots=True)
class Reply:
    """The status and the body of one answer."""

    status: int
    body: bytes

    @property
    def problem(self) -> Problem:
        """The body of an error. Raises msgspec.MsgspecError."""
        return _problem(self.body)


@dataclass(slots=True)
class Direct:
    """Sends the requests. `late` gets a sentence for each request that no answer came to within its bound."""

    late: list[str] = field(default_factory=list)
    late_s: float = LATE_S
    _http: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        url: str,
        *,
        deadline_s: float,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Asks once, by GET or POST: aiohttp sends a PUT again when its connection breaks. Any status is an answer.

        Raises OperationGivenUp where nothing was sent, OutcomeUnknown where the link broke later or the bound passed.
        """
        if self._http is None:
            credentials = credentials_for((url,), None)
            connector = aiohttp.TCPConnector(limit=0, ssl=credentials is None or credentials.context("client"))
            self._http = aiohttp.ClientSession(trust_env=False, connector=connector, timeout=aiohttp.ClientTimeout())
        began = time.monotonic()
        all_headers = {H_DEADLINE: str(int(deadline_s * 1_000)), **(headers or {})}
        try:
            async with asyncio.timeout(deadline_s + self.late_s):
                async with self._http.request(method, url, data=data, headers=all_headers) as answer:
                    return Reply(answer.status, await answer.read())
        except aiohttp.ClientConnectorError as error:
            raise OperationGivenUp(str(error)) from error
        except TimeoutError as error:
            self.late.append(
                f"{method} {url} was not answered within {time.monotonic() - began:.1f} s; its own deadline was "
                f"{deadline_s:g} s"
            )
            raise OutcomeUnknown(Code.TIMEOUT, self.late[-1]) from error
        except aiohttp.ClientError as error:
            raise OutcomeUnknown(Code.TIMEOUT, f"{url}: {type(error).__name__}: {error}") from error

    async def write(self, url: str, *, deadline_s: float, data: bytes, headers: Mapping[str, str]) -> bytes:
        """The body of the answer to a POST that was applied. Raises OperationGivenUp, NotApplied and OutcomeUnknown, as
        the node's own answer says."""
        reply = await self.ask("POST", url, deadline_s=deadline_s, data=data, headers=headers)
        if reply.status == 200:
            return reply.body
        problem = reply.problem
        if problem.outcome is Outcome.NOT_APPLIED:
            raise NotApplied(problem.code, problem.message, problem=problem)
        raise OutcomeUnknown(problem.code, problem.message, problem=problem)

    async def close(self) -> None:
        """Closes all connections."""
        if self._http is not None:
            await self._http.close()
