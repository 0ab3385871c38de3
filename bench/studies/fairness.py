"""Measures what a greedy user costs another one: the other's latencies alone, beside it without turns, and with them.

`python -m bench.studies.fairness` prints the three, and ends with 1 if turns (the default) do not keep the 99th
percentile below FACTOR_MAX times that of the user alone. One node with access control, on this machine. The greedy user
sends writes from a process of its own, on many connections, as fast as they are answered. The other sends 100 a second.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from raftlog import Client, ClientError, SyncClient
from raftlog.cluster.api.access import AccessIn
from raftlog.cluster.client.access_requests import change
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.security.bearer import save_token
from raftlog.cluster.security.tokens import make_token

FACTOR_MAX: Final = 2.0
SECONDS: Final = 8.0
RATE: Final = 100
CONNECTIONS: Final = 200
NO_TURNS: Final = 8_192
"""Slots for requests in progress of which none is ever missing."""


def set_up(cluster: LocalCluster) -> dict[str, Path]:
    """Access control with two users that may write; the files of their tokens."""
    files: dict[str, Path] = {}
    for name in ("root", "greedy", "modest"):
        token = make_token()
        files[name] = cluster.folder / f"{name}.token"
        save_token(files[name], token.text)
        fields = {"token": token.identifier, "token_hash": token.digest.hex()}
        own = None if name == "root" else str(files["root"])
        with SyncClient(cluster.urls, sessions=False, token_file=own) as client:
            if name == "root":
                client.call(change(AccessIn("init", name, **fields)))  # type: ignore[arg-type]
            else:
                client.call(change(AccessIn("set_user", name, roles=["writer"])))
                client.call(change(AccessIn("add_token", name, **fields)))  # type: ignore[arg-type]
    return files


async def hammer(url: str, token: str) -> None:
    """The greedy user, until the process is ended."""
    client = Client(url, bound=True, sessions=False, token_file=token, connections_max=CONNECTIONS, batch_records_max=1)

    async def again(number: int) -> None:
        while True:
            with suppress(ClientError):
                await client.put(b"greedy %d" % number, b"v" * 100)

    await asyncio.gather(*(again(number) for number in range(CONNECTIONS)))


async def modest(url: str, token: Path) -> list[float]:
    """Milliseconds of each write of the other user, from the time at which it was due."""
    took: list[float] = []
    async with Client(url, bound=True, sessions=False, token_file=str(token), batch_records_max=1) as client:
        began = time.monotonic()

        async def write(number: int) -> None:
            due = began + number / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await client.put(b"modest %d" % number, b"v" * 100)
            took.append(1_000 * (time.monotonic() - due))

        await asyncio.gather(*(write(number) for number in range(int(SECONDS * RATE))))
    return sorted(took)


def measure(folder: Path, slots: int | None, *, is_beside: bool) -> list[float]:
    """One run on a new node. `slots`: for requests in progress while users compete; None: the default."""
    folder.mkdir()
    settings = {} if slots is None else {"limits.fair_requests_max": slots}
    with LocalCluster(folder, 1, settings=settings) as cluster:
        cluster.start()
        cluster.wait_ready()
        files = set_up(cluster)
        words = [sys.executable, "-m", "bench.studies.fairness", cluster.urls[0], str(files["greedy"])]
        greedy = subprocess.Popen(words) if is_beside else None
        try:
            time.sleep(1.0)  # it begins
            return asyncio.run(modest(cluster.urls[0], files["modest"]))
        finally:
            if greedy is not None:
                greedy.kill()
                greedy.wait()


def main() -> int:
    """Prints the table; the exit code."""
    if len(sys.argv) == 3:
        asyncio.run(hammer(sys.argv[1], sys.argv[2]))
    told: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="raftlog-fairness-") as place:
        for name, slots, is_beside in (
            ("alone", None, False),
            ("beside it, without turns", NO_TURNS, True),
            ("beside it, with turns", None, True),
        ):
            took = measure(Path(place) / name.replace(" ", "-"), slots, is_beside=is_beside)
            told[name] = took[int(len(took) * 0.99)]
            print(f"{name:28} p50 {took[len(took) // 2]:7.2f} ms   p99 {told[name]:7.2f} ms   ({len(took)} writes)")
    factor = told["beside it, with turns"] / told["alone"]
    print(f"p99 with turns: {factor:.2f} times that of the user alone, load of the machine {os.getloadavg()[0]:.1f}")
    return 0 if factor <= FACTOR_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
