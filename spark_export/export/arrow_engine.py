"""Runs exports and verifications in this process, without Java: a few threads, numpy and pyarrow.

It holds a batch of rows of each thread, and to verify the state every live key. So it suits logs of some millions of
records (`engine.ARROW_RECORDS_MAX`).
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from raftlog.cluster.api.status import SetDigestHex
from raftlog.spark_export.columns.records import is_user
from raftlog.spark_export.export.cells import batches, indexes_of
from raftlog.spark_export.export.engine import UnreadableError
from raftlog.spark_export.export.place import Place
from raftlog.statemachine import digest

THREADS_MAX: Final = 4
"""More would wait for Python's lock: half of the work of a row is in numpy and Arrow, which let go of it."""
_STATE: Final = ["index", "key", "value", "create", "revision", "version", "changes"]


class ArrowEngine:
    """An engine of a few threads."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(THREADS_MAX, os.cpu_count() or 1)

    def run(self, task: Callable[[int], bytes], count: int) -> list[bytes]:
        """Some tasks at a time. Once one fails, no further one begins."""
        with ThreadPoolExecutor(self._threads, "raftlog-export") as pool:
            asked = [pool.submit(task, number) for number in range(count)]
            try:
                return [each.result() for each in asked]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def rows(self, paths: Sequence[Place]) -> "ArrowRows":
        return ArrowRows(paths)


class ArrowRows:
    """The rows of an export, read a batch at a time."""

    def __init__(self, paths: Sequence[Place]) -> None:
        self._paths = paths

    def state(self) -> SetDigestHex:
        newest: dict[bytes, tuple[int, bytes | None, int, int, int]] = {}

        def take(index: int, key: bytes, *version: Any) -> None:
            if key not in newest or newest[key][0] <= index:
                newest[key] = (index, *version)

        for path in self._paths:
            for batch in batches(path, _STATE):
                own = batch.filter(batch.column("version").is_valid())
                for row in zip(*(own.column(name).to_pylist() for name in _STATE[:6]), strict=True):
                    take(*row)
                spelled = batch.filter(batch.column("changes").is_valid())
                for index, changes in zip(indexes_of(spelled).tolist(), spelled.column("changes"), strict=True):
                    for key, value, _, *numbers in (change.values() for change in changes.as_py() if change):
                        take(index, key, value, *numbers)
        try:
            live = (
                digest.state_row_hash(key, value, create, mod, version)
                for key, (_, value, create, mod, version) in newest.items()
                if version and value is not None
            )
            return SetDigestHex(*digest.set_digest(live).as_hex())
        except (TypeError, OverflowError, AttributeError) as error:
            raise UnreadableError(f"a change of a key lacks its key or a number: {error}") from error

    def top_keys(self, most: int) -> list[tuple[bytes, int]]:
        times: Counter[bytes] = Counter()
        for path in self._paths:
            for batch in batches(path, ["key", "operation", "result"]):
                times.update(batch.filter(is_user(batch)).column("key").drop_null().to_pylist())
        return sorted(times.items(), key=lambda item: (-item[1], item[0]))[:most]
