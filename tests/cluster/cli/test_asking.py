"""Commands ask before they do something that the user may not want: which cluster, which input, which variable."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raftlog.cluster.cli.commands import command_first
from raftlog.cluster.cli.frame.common import find_endpoints
from raftlog.cluster.cli.frame.last_cluster import forget, remember, state_folder
from raftlog.cluster.security.tls import TlsFiles
from tests.cluster.cli.test_cli import Running


def test_with_two_running_clusters_a_write_must_name_one(cli: Running) -> None:
    """A write without endpoints ends with 2 and lists both; a read goes to the first one, and says so."""
    remember([cli.url])
    own = state_folder() / f"{os.getpid()}.json"
    other = state_folder() / "1.json"
    other.write_text(json.dumps(json.loads(own.read_text()) | {"endpoints": ["http://127.0.0.1:1"]}))
    os.utime(other, ns=(1 << 62, 1 << 62))
    try:
        for words in (("put", "a", "1"), ("append", "x"), ("log", "trim", "--before", "1"), ("role", "set", "r", "x")):
            refused = CliRunner().invoke(cli.app, words)
            assert refused.exit_code == 2, words
            assert cli.url in refused.stderr
            assert "-e http://127.0.0.1:1" in refused.stderr
        read = CliRunner().invoke(cli.app, ("range", "-o", "json"))
        assert (read.exit_code, read.stdout) == (0, "[]\n")
        assert read.stderr.startswith(f"reading from the cluster at {cli.url};")
        local = CliRunner().invoke(cli.app, ("profile", "list", "-o", "json"))
        assert (local.exit_code, local.stderr) == (0, ""), "it asks no cluster"
        assert cli.run("put", "a", "1").exit_code == 0, "it names one"
    finally:
        forget()
        other.unlink()


def test_the_files_of_a_running_secure_cluster_are_known_by_its_url(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside an older cluster, the line that `raftlog up --secure` prints is enough. A user's own files stay, and
    another cluster gets none. Guard: `running_at`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    names = {"RAFTLOG_CA": "ca", "RAFTLOG_CERTIFICATE": "c", "RAFTLOG_KEY": "k", "RAFTLOG_TOKEN_FILE": "t"}
    remember(["https://127.0.0.1:1", "https://127.0.0.1:2"], TlsFiles("ca", "c", "k"), "t")
    try:
        for url, own, found in (
            ("https://127.0.0.1:3,https://127.0.0.1:2", {}, names),
            ("https://127.0.0.1:3", {}, {}),
            ("https://127.0.0.1:2", {"RAFTLOG_CA": "mine"}, {"RAFTLOG_CA": "mine"}),
        ):
            for name in (*names, "RAFTLOG_TOKEN"):
                monkeypatch.setenv(name, "")
                monkeypatch.delenv(name)
            for name, path in own.items():
                monkeypatch.setenv(name, path)
            find_endpoints(url, writes=True)
            assert {name: os.environ[name] for name in names if name in os.environ} == found
    finally:
        forget()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["-e", "U", "put", "k", "v"], ["put", "k", "v", "-e", "U"]),
        (
            ["--endpoints=U", "-ojson", "log", "trim", "--before", "1"],
            ["log", "trim", "--before", "1", "--endpoints=U", "-ojson"],
        ),
        (["-e", "U", "put", "--", "-k", "v"], ["put", "-e", "U", "--", "-k", "v"]),
        (["put", "-e", "U", "k"], ["put", "k", "-e", "U"]),
        (
            ["-o", "json", "consumers", "--deadline", "3", "-eU", "list"],
            ["consumers", "list", "-o", "json", "--deadline", "3", "-eU"],
        ),
        (["put", "--", "-e", "U"], ["put", "--", "-e", "U"]),
        (["--version"], ["--version"]),
        (["-e", "U"], ["-e", "U"]),
        (["-e"], ["-e"]),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else None,
)
def test_common_options_may_stand_before_the_command_or_behind_its_group(before: list[str], after: list[str]) -> None:
    """They are moved behind it; all other arguments stay as they are."""
    assert command_first(before) == after


def test_a_put_or_append_without_a_value_writes_nothing(cli: Running) -> None:
    """A script that forgot its input does not replace a value by nothing; '' is an empty value."""
    cli.run("put", "a", "1")
    for words in (("put", "a"), ("append",)):
        refused = cli.run(*words, stdin=b"")
        assert refused.exit_code == 2, words
        assert "name it: ''" in refused.stderr
    assert cli.json("get", "a")["value"] == "1"
    assert cli.run("put", "a", "").exit_code == 0
    assert cli.json("get", "a")["value"] == ""


def test_log_from_behind_the_end_says_so(cli: Running) -> None:
    """No record is printed, and standard error has the newest index; the end itself and one past it say nothing."""
    cli.run("append", "x")
    last = cli.json("digest")["index"]
    assert cli.run("log", "--from", str(last)).stderr == ""
    assert cli.run("log", "--from", str(last + 1)).stderr == ""
    behind = cli.run("log", "--from", str(last + 2))
    assert (behind.exit_code, len(behind.stdout.splitlines())) == (0, 1), "the heading alone"
    assert f"ends at index {last}" in behind.stderr


@pytest.mark.parametrize("name", ["RAFTLOG_ENDPOINT", "RAFTLOG_ENDPIONTS"])
def test_a_misspelt_variable_is_not_passed_over(cli: Running, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Else the command would go to another cluster, on the default ports; with the right one it does not matter."""
    monkeypatch.setenv(name, cli.url)
    result = CliRunner().invoke(cli.app, ["put", "a", "1"], env={"RAFTLOG_ENDPOINTS": None})
    assert (result.exit_code, name in result.stderr, "RAFTLOG_ENDPOINTS" in result.stderr) == (2, True, True)


def test_an_empty_variable_is_named_as_such(cli: Running) -> None:
    """A shell script that found no URL is to see why."""
    result = CliRunner().invoke(cli.app, ["put", "a", "1"], env={"RAFTLOG_ENDPOINTS": ""})
    assert (result.exit_code, "RAFTLOG_ENDPOINTS is empty" in result.stderr) == (2, True)
    assert cli.run("put", "a", "1").exit_code == 0
