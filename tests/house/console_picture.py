"""Writes docs/console.png: the console over a cluster with some load, in Chromium (`make demo-picture`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Final

from raftlog import SyncClient
from raftlog.cluster.node.local_cluster import LocalCluster
from tests.house.rules import ROOT

PICTURE: Final = ROOT / "docs" / "console.png"
SECONDS: Final = 60.0
WIDTH, HEIGHT = 1_200, 890


def load(urls: list[str], is_over: threading.Event) -> None:
    """Writes and reads at every node in turn, until that is set."""
    clients = [SyncClient([url]) for url in urls]
    number = 0
    while not is_over.is_set():
        client = clients[number % len(clients)]
        client.put(b"sensor/%d" % (number % 40), json.dumps({"hall": number % 5, "celsius": 20 + number % 7}).encode())
        client.get(b"sensor/1")
        number += 1
    for client in clients:
        client.close()


def main() -> None:
    """Starts three nodes, writes for a while, and takes the picture of the node that leads."""
    browser = shutil.which("chromium")
    if browser is None:
        raise SystemExit("the picture of the console needs Chromium (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder, "nodes"), 3) as cluster:
        cluster.restore()
        is_over = threading.Event()
        loading = threading.Thread(target=load, args=(cluster.urls, is_over))
        loading.start()
        loading.join(SECONDS)  # it goes on while the picture is taken
        with SyncClient(cluster.urls) as client:
            leader = client.status().leader
        assert leader is not None
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=4000", f"--screenshot={PICTURE}"]
        subprocess.run([*command, f"--user-data-dir={folder}/profile", leader.url], check=True, capture_output=True)
        is_over.set()
        loading.join()
        cluster.kill(*cluster.running)
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
