"""Mutants of the HTTP layer, which the simulator does not run: directed tests find them."""

from __future__ import annotations

from typing import Final

from chaos.sim.mutants.mutant import Edit, Mutant

_REVIEW: Final = "raftlog itself, found by a review"

MUTANTS: Final = (
    Mutant(
        name="packed_body_stored_as_it_is",
        number=0,
        pitfall=85,
        title="a body in another transfer coding than chunked is stored packed",
        source=_REVIEW,
        story="tests/cluster/test_http_corners.py::test_corner_other_transfer_codings_are_501",
        edits=(Edit("cluster.http_call:Call.check_framing", 'coding.strip().lower() != "chunked"', "False"),),
    ),
    Mutant(
        name="chunk_extensions_not_counted",
        number=0,
        pitfall=85,
        title="chunk extensions and trailers count towards no limit",
        source=_REVIEW,
        story="tests/cluster/test_http_corners.py::test_corner_chunk_extensions_have_a_limit",
        edits=(Edit("cluster.http_framing:ChunkOverhead.check", "> self._bytes_max", "> 1 << 60"),),
    ),
    Mutant(
        name="foreign_target_served",
        number=0,
        pitfall=85,
        title="an absolute target with another host's name is served",
        source=_REVIEW,
        story="tests/cluster/test_http_corners.py::test_corner_a_foreign_authority_is_refused",
        edits=(Edit("cluster.http_query:authority_of", "return authority", "return None"),),
    ),
    Mutant(
        name="misspelt_headers_of_reads_passed_over",
        number=0,
        pitfall=85,
        title="an unknown header of raftlog's is refused on writes only",
        source=_REVIEW,
        story="tests/cluster/test_http_corners.py::test_corner_unknown_headers_are_refused_on_reads",
        edits=(
            Edit("cluster.http_call:Call.check_own_headers", "if self._request is None:", 'if self.method == "GET":'),
        ),
    ),
    Mutant(
        name="probe_without_a_host_refused",
        number=0,
        pitfall=85,
        title="a load balancer's check without a Host header is refused, so every node counts as down",
        source=_REVIEW,
        story="tests/cluster/test_http_corners.py::test_corner_a_plain_check_needs_no_host",
        edits=(Edit("cluster.http_api:Api._check_target", "and not (host is None and is_probe)", ""),),
    ),
    Mutant(
        name="place_of_an_error_within_its_string",
        number=0,
        pitfall=85,
        title="the position in a JSON error counts within the string that is wrong",
        source=_REVIEW,
        story="tests/cluster/test_http_corners.py::test_corner_the_place_of_an_error_counts_within_the_body",
        edits=(Edit("cluster.http_call:decode", "at = _not_utf8_at(body)", "at = error.start"),),
    ),
)
