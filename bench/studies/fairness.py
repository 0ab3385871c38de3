"""Measures what a greedy user costs another one: the other's latencies alone, beside it without turns, and with them.

`python -m bench.studies.fairness` prints the three, and ends with 1 if turns (the default) do not keep the 99th
percentile below FACTOR_MAX times that of the user alone. One node with access control, on this machine. The greedy user
is wrk on 512 connections (`make peers` fetches it), which sends writes as fast as they are answered and takes little
processor time itself. The other user sends 100 writes a second. ROUNDS rounds in turns; medians.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

from bench.instruments.tools import MissingTool
from bench.loads import wrk
from raftlog import Client, SyncClient
from raftlog.cluster.api.access import AccessIn
from raftlog.cluster.client.access_requests import change
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.security.bearer import save_token
from raftlog.cluster.security.tokens import make_token

FACTOR_MAX: Final = 2.0
SECONDS: Final = 8.0
RATE: Final = 100
CONNECTIONS: Final = 512
ROUNDS: Final = 3
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


def measure(folder: Path, slots: int | None, *, is_beside: bool) -> tuple[list[float], float]:
    """One run on a new node: the other user's latencies, and the greedy user's writes a second. `slots`: for requests
    in progress while users compete; None: the default."""
    folder.mkdir()
    settings = {} if slots is None else {"limits.fair_requests_max": slots}
    with LocalCluster(folder / "nodes", 1, settings=settings) as cluster, ThreadPoolExecutor(1) as beside:
        cluster.start()
        cluster.wait_ready()
        files = set_up(cluster)
        greedy = None
        if is_beside:
            headers = {"Authorization": f"Bearer {files['greedy'].read_text().strip()}"}
            load = wrk.Load(f"{cluster.urls[0]}/v1/kv/greedy", "PUT", b"v" * 100, headers=headers)
            seconds = int(SECONDS) + 3
            greedy = beside.submit(wrk.run, load, connections=CONNECTIONS, seconds=seconds, folder=folder)
        time.sleep(1.0)  # it begins
        took = asyncio.run(modest(cluster.urls[0], files["modest"]))
        return took, 0.0 if greedy is None else greedy.result().per_second


def main() -> int:
    """Prints the table; the exit code."""
    forms = (("alone", None, False), ("without turns", NO_TURNS, True), ("with turns", None, True))
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _, _ in forms}
    try:
        with tempfile.TemporaryDirectory(prefix="raftlog-fairness-") as place:
            for number in range(ROUNDS):
                for name, slots, is_beside in forms:
                    took, greedy = measure(Path(place) / f"{name} {number}", slots, is_beside=is_beside)
                    found[name].append((took[len(took) // 2], took[int(len(took) * 0.99)], greedy))
    except MissingTool as error:
        print(error, file=sys.stderr)
        return 2
    told = {name: [median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    for name, (p50, p99, greedy) in told.items():
        print(f"{name:14} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   the greedy user {greedy:8,.0f} writes/s")
    factor = told["with turns"][1] / told["alone"][1]
    print(
        f"p99 with turns: {factor:.2f} times that of the user alone (without: "
        f"{told['without turns'][1] / told['alone'][1]:.2f}); load of the machine {os.getloadavg()[0]:.1f}"
    )
    return 0 if factor <= FACTOR_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
