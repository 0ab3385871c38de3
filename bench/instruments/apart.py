"""Runs a module of the bench in a process of its own, and decodes the one value that it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_ROOT = Path(__file__).resolve().parents[2]
_TAIL = 600  # characters of what a failed process wrote
_SPARE_S = 60.0  # beyond what the load itself takes


def run(
    module: str,
    answer: type[T],
    *,
    words: Sequence[object] = (),
    job: object = None,
    seconds: float,
    packages: Path | None = None,
) -> T:
    """What `python -m MODULE WORDS` prints, as `answer`; `job` is its standard input, as JSON.

    `packages` is a folder with further modules. Raises RuntimeError with the process's output, or TimeoutExpired.
    """
    path = os.pathsep.join(str(each) for each in (_ROOT, packages) if each is not None)
    done = subprocess.run(
        [sys.executable, "-m", module, *(str(word) for word in words)],
        input=msgspec.json.encode(job),
        capture_output=True,
        check=False,
        timeout=seconds + _SPARE_S,
        env=os.environ | {"PYTHONPATH": path},
    )
    if done.returncode:
        raise RuntimeError(f"{module} failed: {done.stderr.decode(errors='replace')[-_TAIL:]}")
    return msgspec.json.decode(done.stdout, type=answer)


def job(kind: type[T]) -> T:
    """What `run` was given as `job`; for the module that it runs."""
    return msgspec.json.decode(sys.stdin.buffer.read(), type=kind)


def tell(value: Any) -> None:
    """What `run` returns; for the module that it runs."""
    sys.stdout.buffer.write(msgspec.json.encode(value))
