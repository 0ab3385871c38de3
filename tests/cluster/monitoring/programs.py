"""Runs Debian's Prometheus and Alertmanager for a test; a test is skipped, with the reason, where one is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import HANG_S, free_port, wait_until


@contextmanager
def program(folder: Path, name: str, configuration: Mapping[str, Any], *options: str) -> Iterator[str]:
    """A program that serves with this configuration, in JSON, which is YAML too; its URL."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed; Debian: apt-get install {name}")
    file = folder / f"{name}.json"
    file.write_text(json.dumps(configuration))
    address = f"127.0.0.1:{free_port()}"
    command = [path, f"--config.file={file}", f"--web.listen-address={address}", *options]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(partial(_is_ready, f"http://{address}"), HANG_S, what=name)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(HANG_S)


@contextmanager
def prometheus(
    folder: Path, targets: Mapping[str, Sequence[int]], rules: Path, alertmanager: str = ""
) -> Iterator[str]:
    """A Prometheus that scrapes these ports of each job every second, and sends alerts to that Alertmanager."""
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
        for job, ports in targets.items()
    ]
    told = [alertmanager.removeprefix("http://")] if alertmanager else []
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": jobs,
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": told}]}]},
    }
    with program(folder, "prometheus", configuration, f"--storage.tsdb.path={folder / 'series'}") as url:
        yield url


@contextmanager
def alertmanager(folder: Path, receiver: str) -> Iterator[str]:
    """An Alertmanager that sends each alert by itself, and its end, to that URL; it has no peers."""
    configuration = {
        "route": {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "test", "webhook_configs": [{"url": receiver, "send_resolved": True}]}],
    }
    options = ["--cluster.listen-address=", f"--storage.path={folder / 'silences'}"]
    with program(folder, "prometheus-alertmanager", configuration, *options) as url:
        yield url


def answers(url: str, query: str) -> list[Any]:
    """The series that a query gives now, of the job `raftlog`."""
    query = query.replace("$job", "raftlog").replace("$__rate_interval", "10s")
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(query)}", timeout=HANG_S) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
        return found


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=HANG_S):
            return True
    except urllib.error.URLError:  # 503 while it starts
        return False
