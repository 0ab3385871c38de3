"""The table of what each cluster version permits."""

import pytest

from raftlog.raft.configuration import NAMES_REMOVED
from raftlog.statemachine import versions
from raftlog.statemachine.versions import CLUSTER_VERSION, UnknownClusterVersion, check


def test_a_version_that_this_code_knows_is_passed_on() -> None:
    """From the first to the newest."""
    assert [check(version, 7) for version in range(1, CLUSTER_VERSION + 1)] == [*range(1, CLUSTER_VERSION + 1)]


def test_pitfall_71_a_newer_version_is_refused_by_name() -> None:
    """Both versions, where it began, and what to do."""
    with pytest.raises(UnknownClusterVersion, match=rf"entry 7 .* version {CLUSTER_VERSION + 1}, .* up to .*upgrade"):
        check(CLUSTER_VERSION + 1, 7)


def test_every_line_of_the_table_is_of_a_version_that_there_is() -> None:
    """Each begins behind the first version, and a newly formatted cluster has all of them."""
    since = {name: value for name, value in vars(versions).items() if name.isupper() and name != "CLUSTER_VERSION"}
    assert set(since) == {"POINTS_COVER_LIMITS", "SNAPSHOTS_NAME_VERSION", "ACCESS_CONTROL", "SHARES", "ROLE_CHANGES"}
    assert all(1 < value <= CLUSTER_VERSION for value in (*since.values(), NAMES_REMOVED))
