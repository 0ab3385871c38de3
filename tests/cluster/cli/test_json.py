"""Every command that prints: one JSON document with -o json, one object a line with -o jsonl, a code in each error."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from raftlog.cluster.cli.commands import build
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.consumers import claim
from raftlog.cluster.config.cluster_file import render_cluster_file
from raftlog.cluster.node.formatting import new_cluster
from raftlog.cluster.security.authority import make_authority, make_client
from tests.cluster.cli.test_cli import Running
from tests.support import free_ports

SAMPLES = """
put a 2
get a
del a
range
txn --then 'put t 1' --then 'get a'
watch --from 2 --limit 2
compact 3
append y
import {folder}/input.csv
status
status --watch --count 2 --interval 0.1
bench {url} --seconds 0.2 --clients 2 --file {folder}/bench.json
top --once --interval 0.1
digest
format {folder}/cluster.toml
explain
explain 3
log
log --follow --limit 2
log --from {next} --to {next}
log --group h --limit 2
log trim --before 2
session open
session keep {session}
session close {session}
session receipt {session} 1
session void {session} 1
settings show
version
consumers list
consumers show g
consumers claim g
consumers commit g --to 3 --generation {generation}
consumers reset g --to 2
consumers delete g
members list
members add 4 --peer 127.0.0.1:9 --url http://127.0.0.1:8 --join-file {folder}/join.toml
members promote 4 --wait 0
members remove 1 --wait 0
members replace 1 --join-file {folder}/join.toml
members address 1 --url http://127.0.0.1:8
leader transfer
snapshot
create 127.0.0.1 --folder {folder}/made
cert ca --folder {folder}/tls
cert node 1 --cluster {folder}/cluster.toml --folder {folder}/tls
cert client alice --folder {folder}/tls
cert list --folder {folder}/tls
cert check {folder}/tls/client-bob.pem
cert renew {folder}/tls/client-bob.pem --folder {folder}/tls
cert revoke {folder}/tls/client-bob.pem --list {folder}/tls/revoked
access show
access can bob 'read on log'
audit
role list
user list
token list
profile set there http://127.0.0.1:8
profile list
profile use here
profile delete here
profile env here
query 'SELECT 1 AS one, NULL AS none, [2] AS two'
doctor --data {folder}
debug bundle --out {folder}/bundle.tar.gz
disk check {folder}/node-1
disk dump {folder}/node-1 entries
""".splitlines()[1:]
"""A command line for each command, and more for those whose options change the form of the output."""
ELSEWHERE = {
    *("backup", "restore", "recover"),  # tests/cluster/records/test_backup.py
    *(f"access {name}" for name in ("init", "enable", "disable")),  # these to test_access.py: with access control
    *(f"role {name}" for name in ("set", "grant", "ungrant", "delete")),
    *("user set", "user delete", "token create", "token revoke"),
    "import-postgres",  # tests/cluster/sinks/test_story.py
    *(f"sink {name}" for name in ("run", "check", "status", "verify", "rebuild", "skip", "retry", "wait", "drop")),
}
"""Those tests read their output, which is one document, too."""


def printing(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The commands of the tree that take -o, by their words."""
    below = getattr(command, "commands", None) or {}
    if any("--output" in each.opts for each in command.params):
        yield " ".join(path)
    for name, each in below.items():
        yield from printing(each, (*path, name))


def test_every_printing_command_is_in_the_list() -> None:
    """A new command is asked here, too: found by walking the tree."""
    found = set(printing(typer.main.get_command(build())))
    found = {name for name in found if not name.startswith("analyze")}  # tests/spark_export/commands: Spark takes long
    assert found == {name for name in found if any(f"{line} ".startswith(f"{name} ") for line in SAMPLES)} | ELSEWHERE
    assert len(found) > 30


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A node and its command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        running = Running()
        yield running
        running.stop()


def words_of(name: str, cli: Running, folder: Path) -> list[str]:
    """The command with its numbers and files in place; there are keys, a record and a consumer group."""
    with SyncClient(cli.url) as client:
        client.put(b"a", b"1")
        client.append(b"x")
        generation = client.call(claim("g")).generation
        session = client.open_session().session
    (folder / "input.csv").write_text("value\none\ntwo\n")
    if name.startswith("cert") and not name.startswith("cert ca"):
        make_authority(folder / "tls", "test")
        make_client(folder / "tls", "bob")
    if name.startswith("profile"):
        assert cli.run("profile", "set", "here", cli.url).exit_code == 0
    if name.startswith(("format", "cert node", "disk")):
        ports = free_ports(2)
        file = folder / "cluster.toml"
        file.write_text(render_cluster_file(new_cluster(1, peer_ports=ports[:1], http_ports=ports[1:])))
        assert not name.startswith("disk") or cli.run("format", str(file)).exit_code == 0
    return shlex.split(
        name.format(url=cli.url, folder=folder, next=cli.node.applied + 1, session=session, generation=generation)
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_json_is_one_document(name: str, cli: Running, tmp_path: Path) -> None:
    """The whole of standard output is one object or one array, and ends with a newline."""
    result = cli.run(*words_of(name, cli, tmp_path), "-o", "json")
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), dict | list)
    assert result.stdout.endswith("\n")


@pytest.mark.parametrize("name", [name for name in SAMPLES if "{next}" not in name])
def test_jsonl_is_one_object_a_line(name: str, cli: Running, tmp_path: Path) -> None:
    """Each line by itself, for results that come one by one and for single ones."""
    result = cli.run(*words_of(name, cli, tmp_path), "-o", "jsonl")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert lines or name.startswith(("disk", "user list", "token list"))


@pytest.mark.parametrize("format", ["json", "jsonl"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["get", "none"], "not_found"),
        (["put", "a", "1", "--if-revision", "99"], "compare_failed"),
        (["put", "a", "1", "--session", "3"], "usage"),
        (["put", "a", "?", "--base64"], "usage"),
        (["consumers", "show", "none"], "consumer_not_found"),
        (["import", "/none/at/all"], "failure"),
        (["session", "keep", "999999"], "session_expired"),
        (["log", "--from", "1", "--from-time", "2026-01-01"], "usage"),
        (["get"], "usage"),
        (["get", "a", "--frob"], "usage"),
        (["get", "a", "--deadline", "inf"], "usage"),
        (["get", "a", "--deadline", "nan"], "usage"),
        (["range", "--limit", "x"], "usage"),
        (["members", "frob"], "usage"),
        (["frob"], "usage"),
    ],
)
def test_errors_have_a_code(words: list[str], code: str, format: str, cli: Running) -> None:
    """One object on standard error, whatever went wrong: with words, the exit code and a code."""
    result = cli.run(*words, "-o", format)
    told = json.loads(result.stderr)
    assert (told["code"], told["exit"]) == (code, result.exit_code)
    assert told["error"]
