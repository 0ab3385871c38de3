"""Finds an etcd to run the harness against: the one that the benchmarks built, or Debian's on PATH."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

_TOOLS: Final = Path(__file__).resolve().parent.parent.parent / ".tools"


class EtcdNotFoundError(RuntimeError):
    """There is no etcd here; the message says how to get one."""


def etcd_path() -> Path:
    """The executable. Raises EtcdNotFoundError."""
    built = sorted(each for each in _TOOLS.glob("etcd-*") if each.is_file() and os.access(each, os.X_OK))
    if built:
        return built[-1]
    if found := shutil.which("etcd"):
        return Path(found)
    raise EtcdNotFoundError(
        "skipped: there is no etcd, neither in .tools (`make peers` builds one where Go is) nor on PATH "
        "(apt-get install etcd-server)"
    )
