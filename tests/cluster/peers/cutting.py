"""A connection that is cut between a node's answer and its client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

from tests.support import streams_served


@asynccontextmanager
async def answers_cut(port: int, times: int, route: bytes = b"POST /v1/log") -> AsyncIterator[str]:
    """The URL of a way to the node on that port, which ends the connection instead of passing on its first `times`
    answers to that route. All of them must have been met by the end."""
    left = times

    async def cutting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(inner_writer):
            while data := await reader.read(65_536):
                inner_writer.write(data)
                answer = await inner_reader.read(65_536)
                if data.startswith(route) and left:
                    left -= 1
                    break
                writer.write(answer)

    async with streams_served(cutting) as proxy_port:
        yield f"http://127.0.0.1:{proxy_port}"
    assert left == 0, f"{left} of {times} answers were never cut"
