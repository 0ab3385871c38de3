"""Each store does what a sink asks of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.sinks.stores import kit
from tests.cluster.sinks.stores.conftest import MARKS
from tests.cluster.sinks.stores.kit import CASES, StoreBench

SQL = (kit.check_values, kit.check_generations, kit.check_target, kit.check_unchanged)
MORE: dict[str, tuple[Callable[[StoreBench], None], ...]] = {
    "sqlite": SQL,
    "duckdb": SQL,
    "postgresql": SQL,
    "redis": SQL,
    "redis-json": (*SQL[:-1], kit.check_unchanged_is_refused),
    "tantivy": (kit.check_values, kit.check_generations_in_turn, kit.check_target, kit.check_unchanged),
    "opensearch": (*SQL[:-1], kit.check_unchanged_is_refused),
    "webhook": (kit.check_generations, kit.check_owner),
    "mariadb": (kit.check_generations, kit.check_owner),
}
"""What each store does beside CASES."""


@pytest.mark.parametrize(
    ("bench", "case"),
    [
        pytest.param(store, case, id=f"{store}-{case.__name__}", marks=MARKS.get(store, ()))
        for store, more in MORE.items()
        for case in (*CASES, *more)
    ],
    indirect=["bench"],
)
def test_a_store_does_what_a_sink_asks(bench: StoreBench, case: Callable[[StoreBench], None]) -> None:
    """Rows, position, generation and owner."""
    case(bench)
