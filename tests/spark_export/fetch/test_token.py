"""Tasks read the token from a file of their own machine: no option has it, and so no plan; no Spark runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from raftlog.spark_export.errors import UsageError
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.options import parse_options


@pytest.mark.parametrize("name", ["token", "tokenFile", "accessToken", "authorization", "password"])
def test_a_token_is_no_option(name: str) -> None:
    """Spark shows options in plans, its UI and its event log. The message does not repeat the value."""
    with pytest.raises(UsageError, match="RAFTLOG_TOKEN_FILE") as refused:
        parse_options({"endpoints": "http://127.0.0.1:7001", name: "rl_secret"})
    assert "rl_secret" not in str(refused.value)


def test_a_task_sends_the_token_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over https and on this machine; to another URL it sends none. The options that are pickled for it hold none."""
    file = tmp_path / "token"
    file.write_text("rl_secret\n")
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(file))
    door._bearer.cache_clear()
    try:
        assert door._token("https://10.0.0.1:7001") == {"Authorization": "Bearer rl_secret"}
        assert door._token("http://10.0.0.1:7001") == {}
        options = parse_options({"endpoints": "https://10.0.0.1:7001"})
        assert "rl_secret" not in repr(options)
    finally:
        door._bearer.cache_clear()


def test_a_job_without_a_token_is_told_how_to_name_one() -> None:
    """Not only which header the request lacks: a user of an export sends no headers."""
    body = msgspec.json.encode(
        {
            "code": "unauthorized",
            "message": "the request names no user",
            "status": 401,
            "outcome": "not_applied",
            "retryable": False,
            "request_id": "1",
            "node": 1,
        }
    )
    with pytest.raises(door.ForbiddenError, match=r"names no user .*export RAFTLOG_TOKEN_FILE=") as refused:
        door._raise("http://127.0.0.1:7001", 401, body)
    assert refused.value.exit_code == 9
