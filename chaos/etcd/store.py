"""Serves etcd's keys over its JSON gateway, as the store of the register workload.

etcd has no sessions, so no request is sent twice. A write is unknown if its answer is lost, or if etcd refuses it after
it received it. Only a connection that could not be made proves that nothing happened.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from raftlog.chaos.workloads.workload import Refused, Told
from raftlog.cluster.api.errors import Code
from raftlog.cluster.client.aio.client import OutcomeUnknown


@dataclass(slots=True)
class EtcdStore:
    """A client of these URLs, which it takes in turns when one fails. `serializable`: reads are answered by whichever
    member is asked, without its leader: the mistake that the harness must see."""

    http: aiohttp.ClientSession
    urls: Sequence[str]
    deadline_s: float
    serializable: bool = False
    at: int = 0

    async def read(self, key: str) -> Told:
        """A range of one key."""
        body = {"key": _coded(key)} | ({"serializable": True} if self.serializable else {})
        told = await self._post("/v3/kv/range", body, writes=False)
        kvs = told.get("kvs", [])
        return Told(int(base64.b64decode(kvs[0]["value"])) if kvs else None)

    async def read_with_index(self, key: str) -> Told:
        """The same: etcd's revisions are no indexes of its log."""
        return await self.read(key)

    async def write(self, key: str, value: int) -> Told:
        """A put."""
        told = await self._post("/v3/kv/put", {"key": _coded(key), "value": _coded(str(value))})
        return Told(value, term=_term(told))

    async def cas(self, key: str, expected: int, value: int) -> Told:
        """A transaction."""
        compare = {"key": _coded(key), "target": "VALUE", "result": "EQUAL", "value": _coded(str(expected))}
        put = {"requestPut": {"key": _coded(key), "value": _coded(str(value))}}
        told = await self._post("/v3/kv/txn", {"compare": [compare], "success": [put]})
        return Told([expected, value], bool(told.get("succeeded", False)), term=_term(told))

    async def _post(self, path: str, body: Mapping[str, Any], *, writes: bool = True) -> dict[str, Any]:
        """One request to one member; the next one goes to another if it fails."""
        url = self.urls[self.at % len(self.urls)]
        try:
            timeout = aiohttp.ClientTimeout(total=self.deadline_s)
            async with self.http.post(f"{url}{path}", data=json.dumps(body), timeout=timeout) as answer:
                told: Any = json.loads(await answer.read())
                if answer.status == 200 and isinstance(told, dict) and "header" in told:
                    return told
                problem = f"{url} answered {answer.status}: {told}"
        except aiohttp.ClientConnectorError as error:
            self.at += 1
            raise Refused(str(error)) from error
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            problem = f"{url}: {type(error).__name__}: {error}"
        self.at += 1
        if not writes:
            raise Refused(problem)
        raise OutcomeUnknown(Code.TIMEOUT, problem)


def in_turns(urls: Sequence[str], chance: random.Random) -> list[str]:
    """All of them, each client in another order."""
    return chance.sample(list(urls), len(urls))


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _term(told: Mapping[str, Any]) -> int:
    return int(told["header"].get("raft_term", 0))
