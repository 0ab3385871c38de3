"""Records the walk of one request through the code: every call of a function of the project, in order.

`python -m tests.cluster.http.walk PUT` prints the walk of a put, one line a call. `GET` and `LOG` print the other two.
`test_walk.py` bounds the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from raftlog.cluster.config.settings import Settings
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.server import build_runner
from raftlog.cluster.replica.replica import Replica
from tests.cluster.http.fast.fast_wire import turns
from tests.cluster.nodes import cluster_of

ROOT: Final = Path(__file__).resolve().parents[3]
_PRODUCT: Final = ("cluster", "raft", "statemachine")
_LAST: Final[CodeType | None] = getattr(HttpAnswer.write, "__code__", None)
"""The answer is written: the walk ends with this call."""
_VALUE: Final = b"v" * 100
REQUESTS: Final = {
    "PUT": b"PUT /v1/kv/walk HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 100\r\n\r\n" + _VALUE,
    "GET": b"GET /v1/kv/walk HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n",
    "LOG": b"GET /v1/log?from=3&limit=4 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n",
}
"""The recorded requests. The page of the log has four appends of one value each."""
_APPEND: Final = b"POST /v1/log HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 100\r\n\r\n" + _VALUE
_WALKS: Final = 60
"""Walks of each request. A tick of the node falls into some of them and adds calls of its own. The shortest walk has
none."""
_PHASES: Final = 7
_PHASE_TURNS: Final = 40
"""Turns of the event loop between two walks: 0 to 6 times so many, so that work of the node's own does not fall into
all of them."""


@functools.cache
def file_of(code_file: str) -> str:
    """The path from the top of the repository; empty for code that is not of the product. Follows links."""
    path = Path(code_file).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) and path.parts[len(ROOT.parts)] in _PRODUCT else ""


@dataclass(frozen=True, slots=True)
class Step:
    """One call: the file from the top of the repository, the function, how deep it is below what started it."""

    file: str
    function: str
    depth: int
    thread: str


@dataclass(slots=True)
class Walk:
    """The calls of one request, from its bytes to the writing of its answer."""

    steps: list[Step] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """Distinct files, in the order in which the walk comes to them."""
        return list(dict.fromkeys(step.file for step in self.steps))

    @property
    def figures(self) -> dict[str, int]:
        """What test_walk.py bounds: calls with resumptions of coroutines, files, and how often a call is in another
        file than the call before it."""
        hand_overs = sum(one.file != two.file for one, two in pairwise(self.steps))
        return {"calls": len(self.steps), "files": len(self.files), "hand_overs": hand_overs}

    def lines(self) -> Iterator[str]:
        """The walk for a reader: a blank line before each part, and the file where it changes."""
        before = ""
        for step in self.steps:
            if step.depth == 0:
                yield f"\n[{step.thread}]"
                before = ""
            name = step.file if step.file != before else '"'
            yield f"{name:<34} {'  ' * step.depth}{step.function}"
            before = step.file


class Recorder:
    """Notes calls between `begin` and the end of the walk. Watches this thread, and those that start while it is on."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        self.ended: Walk | None = None

    def begin(self) -> None:
        """The next request is recorded."""
        self._walk, self.ended = Walk(), None

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watches calls; while no walk is recorded each costs a look."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        walk = self._walk
        if walk is None or event != "call" or not (file := file_of(frame.f_code.co_filename)):
            return
        depth, above = 0, frame.f_back
        while above is not None:
            depth += bool(file_of(above.f_code.co_filename))
            above = above.f_back
        walk.steps.append(Step(file, frame.f_code.co_qualname, depth, threading.current_thread().name))
        if frame.f_code is _LAST:
            self.ended, self._walk = walk, None


class Client(asyncio.Protocol):
    """One connection that waits for each answer. Nothing of it is in the product's folders."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._answer: asyncio.Future[bytes]

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(data)

    async def ask(self, request: bytes) -> bytes:
        """The first bytes of the answer, which hold all of a short one."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


@asynccontextmanager
async def one_node(folder: Path, recorder: Recorder) -> AsyncIterator[tuple[Client, int, Replica]]:
    """A cluster of one node behind its HTTP server, and one connection to it; calls are watched."""
    loop = asyncio.get_running_loop()
    with recorder.on():
        async with cluster_of(1, folder, disk__mark_idle_ms=60_000) as nodes:
            node = await nodes.leader()
            runner = build_runner(node, Settings())
            await runner.setup()
            assert runner.server is not None
            server = await loop.create_server(runner.server, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            transport, client = await loop.create_connection(Client, "127.0.0.1", port)
            try:
                yield client, port, node
            finally:
                transport.close()
                server.close()
                await runner.cleanup()


async def record(folder: Path, count: int = _WALKS) -> dict[str, Walk]:
    """The shortest of `count` walks of each request, warm. Raises AssertionError for any answer but 200."""
    recorder = Recorder()
    found: dict[str, list[Walk]] = {name: [] for name in REQUESTS}
    async with one_node(folder, recorder) as (client, port, node):
        for warm in (*[_APPEND] * 4, *REQUESTS.values(), *REQUESTS.values()):
            await client.ask(warm % port)
        for number in range(count):
            for name, request in REQUESTS.items():
                await turns(number % _PHASES * _PHASE_TURNS)
                node._is_resting = False  # on a slow machine it rests before each walk, and then asks for a tick first
                recorder.begin()
                answer = await client.ask(request % port)
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer
                assert recorder.ended is not None, "the answer was not written by `HttpAnswer.write`"
                found[name].append(recorder.ended)
    return {name: min(walks, key=lambda walk: len(walk.steps)) for name, walks in found.items()}


async def _print(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        walks = await record(Path(folder))
    print("\n".join(walks[name].lines()), "\n")
    for each, walk in walks.items():
        print(f"{each}: {walk.figures}")


if __name__ == "__main__":
    asyncio.run(_print(sys.argv[1] if len(sys.argv) > 1 else "PUT"))
