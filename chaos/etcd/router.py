"""Routes etcd's connections to its peers to the proxy of that ordered pair, by the address in each request.

All members of an etcd cluster know a peer by one and the same address. So that address alone cannot lead different
members through different proxies. The members get addresses of a range that no machine has (`PEER_HOST`), and
HTTP_PROXY. So each member sends its requests to its own port here, and the router passes them on to the Toxiproxy of
the pair. The router delays, drops and changes nothing except one header: with `Connection: close` every connection
carries one request. Then the address of that request holds for all bytes of the connection.

    python -m raftlog.chaos.etcd.router '{"127.0.0.1:21001": {"192.0.2.2:2380": "127.0.0.1:21007"}}'
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

PEER_HOST: Final = "192.0.2.{}"
"""RFC 5737: addresses for documentation, which are nowhere."""

HEAD_BYTES_MAX: Final = 1 << 16
CHUNK_BYTES: Final = 1 << 16

Routes = Mapping[str, str]
"""The host:port that a request names -> the host:port to dial."""


def rewritten(head: bytes) -> tuple[str, bytes]:
    """The host:port that a request is for, and its head as the peer takes it. Raises ValueError."""
    line, _, rest = head.partition(b"\r\n")
    method, target, version = line.split(b" ")
    place = urlsplit(target.decode("ascii"))
    path = f"{place.path or '/'}{'?' + place.query if place.query else ''}".encode()
    kept = [each for each in rest.split(b"\r\n") if each and not each.lower().startswith((b"connection:", b"proxy-"))]
    lines = [b" ".join((method, path, version)), b"Connection: close", *kept]
    return place.netloc, b"\r\n".join(lines) + b"\r\n\r\n"


async def serve(listen: str, routes: Routes) -> None:
    """Serves one member's requests until the task is cancelled."""

    async def took(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, KeyError):
            host, head = rewritten(await reader.readuntil(b"\r\n\r\n"))
            to, port = routes[host].rsplit(":", 1)
            peer_reader, peer_writer = await asyncio.open_connection(to, int(port), limit=HEAD_BYTES_MAX)
            try:
                peer_writer.write(head)
                both = {
                    asyncio.create_task(_pump(reader, peer_writer)),
                    asyncio.create_task(_pump(peer_reader, writer)),
                }
                _, left = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for each in left:
                    each.cancel()
            finally:
                peer_writer.close()
        writer.close()

    host, port = listen.rsplit(":", 1)
    async with await asyncio.start_server(took, host, int(port), limit=HEAD_BYTES_MAX) as server:
        await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


async def main(routes: Mapping[str, Routes]) -> None:
    """All members."""
    await asyncio.gather(*(serve(listen, each) for listen, each in routes.items()))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
