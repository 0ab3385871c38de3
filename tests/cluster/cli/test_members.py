"""What the commands of members say besides their result."""

import pytest

from raftlog.cluster.api.members import ChangeIn, MemberAnswer
from raftlog.cluster.cli.members import certificate_advice


@pytest.mark.parametrize(
    ("peer", "url", "told"),
    [
        ("10.0.0.9:7101", None, "must name 10.0.0.9. Where ca.key is: raftlog cert renew FOLDER/node-1.pem --also"),
        ("10.0.0.9:7101", "https://one.example:7001", "--also one.example --also 10.0.0.9"),
        ("10.0.0.1:7203", "https://10.0.0.1:7005", ""),
        ("10.0.0.9:7101", "http://10.0.0.9:7001", ""),
    ],
)
def test_a_moved_node_is_told_which_host_its_certificate_must_name(peer: str, url: str | None, told: str) -> None:
    """With TLS alone, and only a host that it did not have."""
    old = MemberAnswer(1, "d", "10.0.0.1:7101", "https://10.0.0.1:7001", "voter")
    words = certificate_advice(old, ChangeIn("address", 1, peer=peer, url=url))
    assert told in words
    assert bool(told) is bool(words)
