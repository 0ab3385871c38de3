"""The table of what each cluster version permits."""

import pytest

from raftlog.statemachine.versions import CLUSTER_VERSION, UnknownClusterVersion, check


def test_a_version_that_this_code_knows_is_passed_on() -> None:
    """From the first to the newest."""
    assert [check(version, 7) for version in range(1, CLUSTER_VERSION + 1)] == [*range(1, CLUSTER_VERSION + 1)]


def test_pitfall_71_a_newer_version_is_refused_by_name() -> None:
    """Both versions, where it began, and what to do."""
    with pytest.raises(UnknownClusterVersion, match=rf"entry 7 .* version {CLUSTER_VERSION + 1}, .* up to .*upgrade"):
        check(CLUSTER_VERSION + 1, 7)
