"""Serves the files of the console from memory: their types, entity tags, and the headers that keep a page safe.

`raftlog.cluster.http.routes.console` answers with them. The files lie in the wheel, and ask no other host for anything.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Final, NamedTuple

HTML: Final = "text/html; charset=utf-8"
_TYPES: Final = {
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
CACHED_TYPES: Final = frozenset(_TYPES.values())
"""Media types that a browser may keep, if it asks each time whether they have changed."""

POLICY: Final = (
    ("Content-Encoding", "gzip"),
    ("Vary", "Accept-Encoding"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)
"""Headers of each file: nothing from another host, no frame around it, no script in its text."""

WIRE_BYTES_MAX: Final = 150 << 10
"""Most bytes of all files together, as they are sent."""

_HERE: Final = Path(__file__).parent
_SHARED: Final = _HERE.parent / "drawing" / "page.css"


class ConsoleFile(NamedTuple):
    """A file, compressed as it is sent. Every browser reads gzip."""

    body: bytes
    kind: str
    tag: str


def console_files() -> dict[str, ConsoleFile]:
    """All files by their name in the path: `index.html`, `vendor/preact.mjs`, and the style that all pages share."""
    paths = [path for path in sorted(_HERE.rglob("*")) if path.suffix in _TYPES]
    named = {path.relative_to(_HERE).as_posix(): path for path in paths} | {_SHARED.name: _SHARED}
    return {name: _packed(path) for name, path in named.items()}


def _packed(path: Path) -> ConsoleFile:
    data = path.read_bytes()
    return ConsoleFile(gzip.compress(data, mtime=0), _TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:16]}"')
