"""The core's tunables are checked once, and the message names field, value and bound."""

import pytest

from raftlog.raft.options import Options


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"heartbeat_ms": 0}, "heartbeat_ms is 0"),
        ({"append_bytes_max": -5}, "append_bytes_max is -5"),
        ({"election_timeout_max_ms": 300}, "must be above"),
        ({"heartbeat_ms": 200}, "at most half"),
        ({"uncommitted_bytes_max": 100}, "entry_bytes_max must not exceed"),
        (
            {"link_closed_delay_max_ms": 100},
            r"link_closed_delay_max_ms \(100\) must not be below .*_min_ms \(150\)",
        ),
        ({"link_refused_delay_min_ms": 50}, "link_refused_delay_max_ms"),
    ],
)
def test_bad_options_name_the_field(fields: dict[str, int], what: str) -> None:
    """ValueError at construction, never later."""
    with pytest.raises(ValueError, match=what):
        Options(**fields)


def test_default_options_are_unchanged() -> None:
    """Heartbeat 60 ms, elections drawn from 300 to 600 ms."""
    options = Options()
    assert (options.heartbeat_ms, options.election_timeout_min_ms, options.election_timeout_max_ms) == (60, 300, 600)
