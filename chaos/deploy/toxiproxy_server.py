"""Finds the Toxiproxy server and checks that it is the version the harness was measured with.

Order: the server with our own toxics where set-up built it (`chaos/toxics`, Toxiproxy's library with three more
toxics), the stock one that set-up built into `.tools/bin`, then `toxiproxy-server` on PATH. Standard library only, so
that set-up can run it first of all: `python -m raftlog.chaos.deploy.toxiproxy_server`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

VERSION = "2.12.0"  # its effect on a connection differs between versions, and the nemesis relies on this one
_NAME = "toxiproxy-server"
_OWN_NAME = "toxiproxy-server-own"
_CHECKOUT = Path(__file__).resolve().parent.parent.parent
_SOURCES = Path(__file__).resolve().parent.parent / "toxics"
_MEND = "`make setup` builds it where Go is found"


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


def own_server_path() -> Path:
    """The executable that has the toxics of `chaos/toxics` too. Raises ToxiproxyNotFoundError, which says why not."""
    built = _CHECKOUT / ".tools" / "bin" / _OWN_NAME
    if not os.access(built, os.X_OK):
        raise ToxiproxyNotFoundError(f"there is no Toxiproxy server with own toxics: {_MEND}")
    if _told(built, "-toxics") != source() or _version(built) != VERSION:
        raise ToxiproxyNotFoundError(f"{built} was built from other sources than those of chaos/toxics: {_MEND}")
    return built


def source() -> str:
    """A digest of the sources of the server with own toxics."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _candidates() -> Iterator[Path]:
    with suppress(ToxiproxyNotFoundError):
        yield own_server_path()
    built = _CHECKOUT / ".tools" / "bin" / _NAME
    if os.access(built, os.X_OK):
        yield built
    if found := shutil.which(_NAME):
        yield Path(found)


def _version(path: Path) -> str | None:
    """The last word of `toxiproxy-server version 2.12.0`; a build without the version flag says `git`."""
    return _told(path, "-version")


def _told(path: Path, flag: str) -> str | None:
    """The last word that it prints."""
    try:
        ran = subprocess.run([path, flag], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = (ran.stdout + ran.stderr).split()
    return words[-1] if words else None


def main(words: Sequence[str]) -> int:
    """Prints the server's path; with `--own` that of the server with own toxics, with `--source` the digest of its
    sources.

    1 and a message if there is none.
    """
    try:
        print(source() if "--source" in words else own_server_path() if "--own" in words else server_path())
    except ToxiproxyNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
