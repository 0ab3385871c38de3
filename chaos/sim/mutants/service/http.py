"""Mutants of the HTTP layer, which the simulator does not run: directed tests find them."""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_REVIEW: Final = "raftlog itself, found by a review"

MUTANTS: Final = (
    Mutant(
        name="packed_body_stored_as_it_is",
        pitfall=85,
        title="a body in another transfer coding than chunked is stored packed",
        source=_REVIEW,
        story="tests/cluster/http/test_corners.py::test_corner_other_transfer_codings_are_501",
        target="raftlog.cluster.http.exchange.call:Call.check_framing",
        old='coding.strip().lower() != "chunked"',
        new="False",
    ),
    Mutant(
        name="chunk_extensions_not_counted",
        pitfall=85,
        title="chunk extensions and trailers count towards no limit",
        source=_REVIEW,
        story="tests/cluster/http/test_corners.py::test_corner_chunk_extensions_have_a_limit",
        target="raftlog.cluster.http.exchange.framing:ChunkOverhead.check",
        old="> self._bytes_max",
        new="> 1 << 60",
    ),
    Mutant(
        name="foreign_target_served",
        pitfall=85,
        title="an absolute target with another host's name is served",
        source=_REVIEW,
        story="tests/cluster/http/test_corners.py::test_corner_a_foreign_authority_is_refused",
        target="raftlog.cluster.http.exchange.query:authority_of",
        old="return authority",
        new="return None",
    ),
    Mutant(
        name="misspelt_headers_of_reads_passed_over",
        pitfall=85,
        title="an unknown header of raftlog's is refused on writes only",
        source=_REVIEW,
        story="tests/cluster/http/test_corners.py::test_corner_unknown_headers_are_refused_on_reads",
        target="raftlog.cluster.http.exchange.call:Call.check_own_headers",
        old="if self._request is None:",
        new='if self.method == "GET":',
    ),
    Mutant(
        name="probe_without_a_host_refused",
        pitfall=85,
        title="a load balancer's check without a Host header is refused, so every node counts as down",
        source=_REVIEW,
        story="tests/cluster/http/test_corners.py::test_corner_a_plain_check_needs_no_host",
        target="raftlog.cluster.http.hosts:HostCheck.check",
        old="and not (host is None and is_probe)",
        new="",
    ),
    Mutant(
        name="place_of_an_error_within_its_string",
        pitfall=85,
        title="the position in a JSON error counts within the string that is wrong",
        source=_REVIEW,
        story="tests/cluster/http/test_corners.py::test_corner_the_place_of_an_error_counts_within_the_body",
        target="raftlog.cluster.http.exchange.decoding:decode",
        old="at = _not_utf8_at(body)",
        new="at = error.start",
    ),
    Mutant(
        name="session_of_a_simple_head_passed_over",
        pitfall=85,
        title="the parser of the fast path passes over a session header: a retry is applied twice",
        source="raftlog itself",
        story="tests/cluster/http/test_corners.py::test_corner_a_session_on_the_fast_path_applies_once",
        target="raftlog.cluster.http.fast.head:HeadParser._parse_fields",
        old="pair[0] in _ASKING_NAMES",
        new='pair[0] in _ASKING_NAMES - {"Raftlog-Session", "Raftlog-Sequence"}',
    ),
    Mutant(
        name="unread_request_said_not_applied",
        pitfall=30,
        title="a request that was not read is said not to be applied, although its first copy may have been",
        source=_REVIEW,
        story="tests/cluster/http/test_corners.py::test_corner_the_outcome_of_a_request_that_was_not_read_is_unknown",
        target="raftlog.cluster.http.gate:Api.problem",
        old="call is None or",
        new="call is not None and",
    ),
    Mutant(
        name="session_accepted_where_it_does_nothing",
        pitfall=30,
        title="a route that carries out every copy of a request accepts a session",
        source=_REVIEW,
        story="tests/cluster/http/test_corners.py::test_corner_a_session_that_does_nothing_is_refused",
        target="raftlog.cluster.http.gate:Api._admit",
        old="if not route.takes_session and",
        new="if False and",
    ),
    Mutant(
        name="started_node_takes_writes_without_users",
        pitfall=30,
        title="a node that has applied little of the log takes writes as if access control were off",
        source="this project, until the acceptance tests ran with TLS",
        story="tests/cluster/http/test_access.py::test_a_node_that_catches_up_takes_no_write_by_permissions_that_it_does_not_know",
        target="raftlog.cluster.http.exchange.access:Access.admit",
        old="if self.is_behind and",
        new="if False and",
    ),
)
