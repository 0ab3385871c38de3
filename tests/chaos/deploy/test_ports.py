"""Two chaos runs at once never take the same port."""

from __future__ import annotations

from raftlog.chaos.deploy.ports import Ports


def test_no_port_is_given_to_two_runs_at_once() -> None:
    """Both begin to look at the same number, and nothing listens on the first run's ports yet."""
    first, second = Ports(), Ports()
    assert not set(first(5)) & set(second(5))
