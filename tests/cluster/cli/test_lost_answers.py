"""Commands whose answer is lost, or which fail half-way: what they leave behind lets the user go on."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from typer.testing import Result

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.protocol.request import RequestResult
from tests.cluster.cli.test_cli import Running
from tests.cluster.fake_node import FakeNode


def test_the_receipt_of_a_write_of_unknown_outcome_is_there_after_its_command(
    cli: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command leaves its session open, and says how long the receipt is there. An answered write leaves no session.
    Guard: `SessionBook.is_settled` in `close` of both clients."""

    def lose(
        node: FakeNode, block: bytes, count: int, *, deadline: float, session: int = 0, sequence: int = 0
    ) -> asyncio.Future[RequestResult]:
        if sequence:
            raise ApiError(Code.TIMEOUT, "the answer is lost")
        return submit(node, block, count, deadline=deadline, session=session, sequence=sequence)

    def lost(*more: str) -> Result:
        for seconds in ("0.2", "2", "20"):  # 5: a busy machine had not opened the session before the deadline
            ended = cli.run("put", "lost", "v", "--deadline", seconds, *more)
            if ended.exit_code != 5:
                break
        return ended

    submit = FakeNode.submit
    with monkeypatch.context() as losing:
        losing.setattr(FakeNode, "submit", lose)
        ended, said = lost("-o", "json"), lost()
    assert (ended.exit_code, said.exit_code) == (6, 6)
    assert "To find out, within 30 s: raftlog session receipt" in said.stderr
    error = json.loads(ended.stderr)
    assert cli.json("session", "receipt", str(error["session"]), str(error["sequence"]))["state"] == "not_seen"
    assert "session_close" not in cli.run("log", "--internal").stdout
    cli.run("put", "a", "1")
    assert "session_close" in cli.run("log", "--internal").stdout


def test_a_join_file_that_cannot_be_written_stops_the_change(
    cli: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is made before the change, with room for its content, and is gone again if the change is not made. If
    its content cannot be written at the end, standard error has it; if the answer is lost, it says how to get one."""
    file = tmp_path / "join-4.toml"
    add = ("members", "add", "4", "--peer", "127.0.0.1:7104", "--url", "http://127.0.0.1:7004", "--join-file")
    assert cli.run(*add, str(tmp_path / "none" / "join-4.toml")).exit_code == 1
    assert cli.node.changes == []

    def fail(error: Exception) -> None:
        async def change_members(node: FakeNode, change: object, deadline: float) -> int:
            raise error

        monkeypatch.setattr(FakeNode, "change_members", change_members)

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", lambda path, _: path.touch() or os.write(-1, b""))
        assert (cli.run(*add, str(file)).exit_code, file.exists(), cli.node.changes) == (1, False, [])
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", lambda *_, **__: os.write(-1, b""))
        done = cli.run(*add, str(file))
    assert (done.exit_code, "[cluster]" in done.stderr, len(cli.node.changes)) == (1, True, 1)
    file.unlink()
    fail(ApiError(Code.MEMBERS_REFUSED, "no", why="last_voter"))
    assert (cli.run(*add, str(file)).exit_code, file.exists()) == (1, False)
    fail(ApiError(Code.TIMEOUT, "lost"))
    done = cli.run(*add, str(file))
    assert (done.exit_code, file.exists(), "raftlog members replace 4" in done.stderr) == (6, False, True)
