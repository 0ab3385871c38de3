"""Finds the Toxiproxy server and checks that it is the version the harness was measured with.

Order: the one that set-up built into `.tools/bin`, then `toxiproxy-server` on PATH. Standard library only, so that
set-up can run it first of all: `python -m raftlog.chaos.deploy.toxiproxy_server`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSION = "2.12.0"  # its effect on a connection differs between versions, and the nemesis relies on this one
_NAME = "toxiproxy-server"
_CHECKOUT = Path(__file__).resolve().parent.parent.parent


class ToxiproxyNotFoundError(RuntimeError):
    """No Toxiproxy server of the right version; the message says where it was looked for and how to get it."""


def server_path() -> Path:
    """The Toxiproxy server's executable. Raises ToxiproxyNotFoundError, which names the places that were searched and
    the fix.
    """
    refused: list[str] = []
    for path in _candidates():
        version = _version(path)
        if version == VERSION:
            return path
        refused.append(f"{path} is version {version or 'unknown'}")
    looked_at = "; ".join(refused) or f"there is none in .tools/bin and no `{_NAME}` on PATH"
    raise ToxiproxyNotFoundError(
        f"the Toxiproxy server {VERSION} is needed: {looked_at}. Run `make setup`, which builds it, or put that "
        f"version on PATH as `{_NAME}`."
    )


def _candidates() -> Iterator[Path]:
    built = _CHECKOUT / ".tools" / "bin" / _NAME
    if os.access(built, os.X_OK):
        yield built
    if found := shutil.which(_NAME):
        yield Path(found)


def _version(path: Path) -> str | None:
    """The last word of `toxiproxy-server version 2.12.0`; a build without the version flag says `git`."""
    try:
        ran = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = (ran.stdout + ran.stderr).split()
    return words[-1] if words else None


def main() -> int:
    """Prints the server's path; 1 and a message if there is none."""
    try:
        print(server_path())
    except ToxiproxyNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
