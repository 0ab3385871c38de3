"""Certificates name their holder, and let in only that node or client."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.cluster.security.names import (
    Holder,
    HolderKind,
    UnknownHolder,
    client_refusal,
    holder_of,
    holder_uri,
    parse_holder_uri,
    peer_refusal,
)

LOG = "a" * 32
OTHER = "b" * 32


def certificate(*uris: str, common_name: str = "") -> dict[str, Any]:
    """As `ssl` returns a verified certificate."""
    subject = ((("commonName", common_name),),) if common_name else ()
    return {"subject": subject, "subjectAltName": (("DNS", "host"), *(("URI", uri) for uri in uris))}


@pytest.mark.parametrize(
    "holder",
    [
        Holder(LOG, HolderKind.NODE, "3"),
        Holder(LOG, HolderKind.CLIENT, "a b/ü"),
        Holder("", HolderKind.CLIENT, "any cluster"),
    ],
)
def test_a_uri_names_its_holder_again(holder: Holder) -> None:
    """Names are escaped and read back."""
    assert parse_holder_uri(holder_uri(holder)) == holder


@pytest.mark.parametrize(
    "uri",
    [
        "raftlog://x/node/",
        "raftlog://x/nodes/3",
        "raftlog://x/node/3/4",
        "raftlog://x/node/3?a",
        "raftlog://x",
        "raftlog:",
    ],
)
def test_a_malformed_uri_is_refused_by_name(uri: str) -> None:
    """The message shows the URI."""
    with pytest.raises(UnknownHolder, match=r"must be raftlog://LOG/node/ID"):
        parse_holder_uri(uri)


def test_a_certificate_from_elsewhere_is_a_clients() -> None:
    """Without a raftlog URI the common name counts, for any cluster of the authority. Two URIs are ambiguous."""
    assert holder_of(certificate("spiffe://x/y", common_name="alice")) == Holder("", HolderKind.CLIENT, "alice")
    with pytest.raises(UnknownHolder, match="neither"):
        holder_of(certificate())
    with pytest.raises(UnknownHolder, match="2 raftlog URIs"):
        holder_of(certificate(f"raftlog://{LOG}/node/1", f"raftlog://{LOG}/node/2"))


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (None, "no certificate"),
        (certificate(f"raftlog://{LOG}/node/2"), f"node 2 of log {LOG}, and it speaks as node 3"),
        (certificate(f"raftlog://{LOG}/node/33"), "node 33"),
        (certificate(f"raftlog://{OTHER}/node/3"), f"log {OTHER}"),
        (certificate(f"raftlog://{LOG}/client/3"), "client 3"),
        (certificate("raftlog:///node/3"), "node 3, and"),
        (certificate(common_name="3"), "client 3"),
        (certificate(), "neither"),
    ],
)
def test_only_the_certificate_of_that_node_speaks_as_a_peer(shown: dict[str, Any] | None, reason: str) -> None:
    """Another node's, another cluster's and a client's are refused, and the refusal says whose they are."""
    assert peer_refusal(certificate(f"raftlog://{LOG}/node/3"), LOG, 3) is None
    refused = peer_refusal(shown, LOG, 3)
    assert refused is not None
    assert reason in refused


def test_clients_of_another_cluster_are_refused() -> None:
    """Nodes and clients of this log come in, and clients whose certificate names no log."""
    for uri in (f"raftlog://{LOG}/node/3", f"raftlog://{LOG}/client/a", "raftlog:///client/a"):
        assert client_refusal(certificate(uri), LOG) is None
    assert client_refusal(certificate(common_name="alice"), LOG) is None
    assert "another cluster's" in str(client_refusal(certificate(f"raftlog://{OTHER}/client/a"), LOG))
    assert client_refusal({}, LOG) == "it shows no certificate"
