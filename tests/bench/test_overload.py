"""The verdict on an overload, from what was seen."""

import msgspec
import pytest

from bench.overload import Phase, Result, markdown

PEAK = Phase(64, 1_000.0, 0.0, 0, 5.0, 9.0)
GOOD = Result(0.0, 8_192, PEAK, Phase(12_000, 900.0, 50.0, 0, 900.0, 2_000.0), PEAK, 0.9, 0, (100.0, 110.0, 120.0), [])


def test_a_node_that_keeps_its_rate_its_leader_and_its_memory_passes() -> None:
    """Nine tenths of the peak, no change of leader, memory flat, and the rest refused."""
    assert GOOD.faults == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kept_share": 0.79}, "kept 79%"),
        ({"leader_changes": 1}, "1 changes"),
        ({"memory_mib": (100.0, 131.0, 131.0)}, "memory grew"),
        ({"overload": Phase(12_000, 900.0, 0.0, 0, 1.0, 1.0)}, "nothing was refused"),
        ({"overload": Phase(12_000, 900.0, 5.0, 3, 1.0, 1.0)}, "3 answers"),
    ],
)
def test_each_fault_is_named(change: dict[str, object], says: str) -> None:
    """A run that proves nothing, or that shows a node giving way, says why it fails."""
    (fault,) = msgspec.structs.replace(GOOD, **change).faults
    assert fault.startswith(says)


def test_the_page_says_what_was_seen_and_what_is_wrong() -> None:
    """Three phases in a table, what was kept, and each fault in a line of its own."""
    page = markdown(msgspec.structs.replace(GOOD, kept_share=0.5))
    assert "| overload | 12,000 | 900 | 50 | 0 | 900.0 | 2000.0 |" in page
    assert "Kept 50% of its peak (asked: 80%)" in page
    assert "- Not as it should be: kept 50%" in page
    assert "Not as" not in markdown(GOOD)
