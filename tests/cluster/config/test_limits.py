"""Limits on resources: each has a row in docs/operations/limits.md; tests of those without another place are here."""

import asyncio
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.config.bounds import rule_of
from raftlog.cluster.config.settings import LimitSettings, LogSettings, Settings
from raftlog.cluster.http.request_log import RequestLog
from raftlog.cluster.peers.refusals import REASON_CHARACTERS_MAX
from raftlog.cluster.protocol.request import NEVER
from raftlog.cluster.runtime import logging
from raftlog.cluster.runtime.line_limit import LINES_MAX
from raftlog.raft.codec.frame import FRAME_SIZE
from raftlog.raft.options import Options
from tests.cluster.fake_node import serve
from tests.cluster.http.http_probe import ask
from tests.cluster.nodes import cluster_of, deadline, host_of
from tests.support import hang_s, wait_until_async

ROOT = Path(__file__).parents[3]
NO_RESOURCES = {"raft.catch_up_rounds_max", "raft.election_timeout_max_ms", "raft.link_closed_delay_max_ms"}
"""Bounds of the election and of a learner's patience."""


def rows() -> list[list[str]]:
    """The cells of each row of the table, without its head."""
    page = (ROOT / "docs" / "operations" / "limits.md").read_text("utf-8")
    section = page.partition("# Limits on resources\n")[2].partition("\n## ")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert len(found) > 40
    return found[2:]


def test_every_limit_of_the_settings_has_its_row_with_its_default() -> None:
    """Finds an undocumented limit, or a default that differs from the table."""
    settings = Settings()
    told = {row[1].strip("`"): row[2] for row in rows() if row[1].startswith("`") and "ulimit" not in row[1]}
    for name, default in told.items():
        section, _, key = name.partition(".")
        assert str(getattr(getattr(settings, section), key)) == default.split(" ")[0], name
        rule = re.search(r"\((\S.*?)\)", default)
        assert rule_of(name).removeprefix("limits.") == (rule[1] if rule else ""), name
    limits = {f"limits.{field.name}" for field in msgspec.structs.fields(LimitSettings) if field.name.endswith("_max")}
    limits |= {f"raft.{field.name}" for field in fields(Options) if field.name.endswith("_max")}
    limits |= {f"log.{field.name}" for field in msgspec.structs.fields(LogSettings) if "file" in field.name}
    assert limits - NO_RESOURCES - {"log.file", "log.audit_file"} <= set(told), limits - NO_RESOURCES - set(told)


def test_every_row_names_a_test_that_there_is() -> None:
    """A test that was renamed, or never written."""
    for row in rows():
        match = re.fullmatch(r"`(test_\w+)` \((tests/\S+\.py)\)", row[4])
        assert match is not None, row
        assert f"def {match[1]}(" in (ROOT / match[2]).read_text("utf-8"), row


async def test_readers_that_wait_are_bounded(tmp_path: Path) -> None:
    """Long polls by themselves, and linearizable reads, also those whose round is under way: one too many is busy."""
    async with cluster_of(1, tmp_path, limits__waiters_max=2) as nodes:
        leader = await nodes.leader()
        polls = [asyncio.ensure_future(leader.wait_applied(1 << 40, deadline(60))) for _ in range(2)]
        await wait_until_async(lambda: len(leader.state.applier.waiters) == 2, what="two long polls")
        with pytest.raises(ApiError, match=r"limits\.waiters_max") as refused:
            await leader.wait_applied(1 << 40, deadline(60))
        assert refused.value.code is Code.BUSY
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        leader.state.applier.waiters.expire(NEVER, leader.state.name)
        for _ in range(2):
            leader.read_barrier(deadline(60))
            leader.state.reads.rounds.start(1, 0.0)  # a round that nothing comes of
        assert leader.state.reads.rounds.waiting == []
        with pytest.raises(ApiError, match=r"limits\.waiters_max"):
            leader.read_barrier(deadline(60))


async def test_applying_waits_where_the_disk_takes_no_effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unwritten effects stay within the limit plus one entry's; committed entries are applied once the effects are
    written.
    """
    async with cluster_of(1, tmp_path, limits__ledger_queue_bytes_max=1_000) as nodes:
        leader = await nodes.leader()
        write, held = leader.state.disk.write_effects, asyncio.get_running_loop().create_future()

        def slow(frames: Any) -> asyncio.Future[None]:
            async def later() -> None:
                await held
                await write(frames)

            return asyncio.ensure_future(later())

        monkeypatch.setattr(leader.state.disk, "write_effects", slow)
        before = leader.applied
        while leader.state.applier.ledger.bytes <= leader.state.settings.limits.ledger_queue_bytes_max:
            await nodes.append(leader, b"v")
        late = asyncio.ensure_future(nodes.append(leader, b"v", seconds=60))
        await wait_until_async(lambda: leader.committed > leader.applied, what="a committed entry that waits")
        assert leader.applied > before
        assert not late.done()
        held.set_result(None)
        await late


async def test_a_page_is_bounded_in_records() -> None:
    """More than limits.page_records_max cannot be requested, and a request without a number gets no more either."""
    async with serve(page_records_max=5) as served:
        for _ in range(8):
            assert (await ask(served.port, "POST", "/v1/log", b"v")).status == 200
        for target in ("/v1/log?limit=6", "/v1/kv?limit=6"):
            problem = (await ask(served.port, "GET", target)).problem()
            assert problem.code is Code.BAD_REQUEST
        assert len((await ask(served.port, "GET", "/v1/log?from=1")).json()["records"]) <= 5


async def test_a_hello_is_bounded(tmp_path: Path) -> None:
    """A first frame that says that it is longer is refused before it is here."""
    async with cluster_of(1, tmp_path, limits__hello_bytes_max=100) as nodes:
        leader = await nodes.leader()
        reader, writer = await asyncio.open_connection(*leader.state.settings.peer.listen.split(":"))
        writer.write((101).to_bytes(4, "little") + bytes(FRAME_SIZE - 4))
        assert await asyncio.wait_for(reader.read(), hang_s()) == b""
        writer.close()
        assert "a first frame of" in host_of(leader).transport.refusals.lately[-1][2]


async def test_lines_about_requests_that_wait_are_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    """More than limits.request_lines_max are left out, and counted in the first one of the next batch."""
    structlog.reset_defaults()
    logging.configure("info", "json")
    try:
        log = RequestLog(1, 3, 1_000, has_all=True)
        for number in range(5):
            log.add("GET", "/", 200, 0.0, str(number), "")
        await asyncio.wait_for(log.close(), hang_s())
    finally:
        structlog.reset_defaults()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 3
    assert msgspec.json.decode(lines[0])["dropped"] == 2


async def test_refused_connections_leave_few_lines_whatever_their_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender with a new reason each time cannot fill the log: so many lines in EVERY_S, each no longer
    than so much; the next line says how many were left out."""
    async with cluster_of(1, tmp_path) as nodes:
        transport = host_of(await nodes.leader()).transport
        with structlog.testing.capture_logs() as lines:
            monkeypatch.setattr(transport.refusals, "_logger", structlog.get_logger())
            for number in range(100):
                transport.refusals.refused(f"127.0.0.1:{number}", f"no raftlog hello: {number} {'x' * 1_000}")
            told = [line for line in lines if line["event"] == "peer_refused"]
            monkeypatch.setattr(transport.refusals.lines, "_until", 0.0)  # as if the time had passed
            transport.refusals.refused("127.0.0.1:1", "another reason")
    assert len(told) == LINES_MAX
    assert all(len(line["reason"]) <= REASON_CHARACTERS_MAX for line in told)
    assert lines[-1]["left_out"] == 100 - LINES_MAX
