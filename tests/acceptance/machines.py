"""Several machines for a test: network namespaces with addresses of their own, and the commands that run there.

Where the system allows none, they are loopback addresses; the test says so in its output.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.conftest import Measure
from tests.support import HANG_S, raftlog

IP = shutil.which("ip")


def ip(*words: str) -> None:
    """Runs a command of iproute2. Raises CalledProcessError."""
    assert IP is not None
    subprocess.run([IP, *words], check=True, capture_output=True, timeout=HANG_S)


@contextlib.contextmanager
def machines(record_property: Measure, count: int = 3) -> Iterator[dict[str, tuple[str, ...]]]:
    """So many addresses, each with the words that run a command on its machine."""
    own = f"rl{os.getpid() % 100_000}"
    subnet = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
    with contextlib.ExitStack() as ends:
        try:
            if IP is None:
                raise OSError("no command ip")
            ip("link", "add", f"{own}b", "type", "bridge")
            ends.callback(ip, "link", "del", f"{own}b")
            ip("addr", "add", f"{subnet}.100/24", "dev", f"{own}b")
            ip("link", "set", f"{own}b", "up")
            found: dict[str, tuple[str, ...]] = {}
            for number in range(1, count + 1):
                name = f"{own}n{number}"
                ip("netns", "add", name)
                ends.callback(ip, "netns", "del", name)  # its link goes with it
                ip("link", "add", f"{own}v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("link", "set", f"{own}v{number}", "master", f"{own}b", "up")
                for words in (
                    ("addr", "add", f"{subnet}.{number}/24", "dev", "eth0"),
                    ("link", "set", "eth0", "up"),
                    ("link", "set", "lo", "up"),
                ):
                    ip("netns", "exec", name, IP, *words)
                found[f"{subnet}.{number}"] = (IP, "netns", "exec", name)
        except (OSError, subprocess.SubprocessError) as error:
            ends.close()
            record_property("measured", f"no network namespaces ({error}): loopback addresses instead")
            found = {f"127.0.0.{10 + number}": () for number in range(1, count + 1)}
        yield found


def run(*words: str, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """What a command prints that succeeds."""
    done = raftlog(*words, cwd=cwd, environment=environment)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout
