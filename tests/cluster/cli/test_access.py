"""The commands about users, roles and tokens, in this process, against a node behind the real HTTP layer."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.config.cluster_file import render_cluster_file
from raftlog.cluster.node.formatting import new_cluster
from raftlog.cluster.security.authority import make_authority, make_client, make_node
from raftlog.cluster.security.bearer import TokenError, bearer_for
from raftlog.cluster.security.tls import TlsFiles, server_context
from raftlog.cluster.security.tokens import token_id
from raftlog.raft.codec.configuration import encode_configuration
from raftlog.raft.configuration import Configuration
from raftlog.raft.types import EntryKind
from raftlog.statemachine.versions import CLUSTER_VERSION
from tests.cluster.cli.test_cli import Running


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A node of the newest cluster version, and its command line."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    running = Running()
    newest = Configuration(running.node.configuration.members, (1,), version=CLUSTER_VERSION)
    running.node.append(EntryKind.CONFIGURATION, encode_configuration(newest), 1)
    yield running
    running.stop()


def test_a_token_is_asked_for_on_a_terminal_alone(
    cli: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `RAFTLOG_TOKEN_FILE=-`. Without a terminal, the input is not taken for a token."""
    admin = tmp_path / "root.token"
    cli.json("access", "init", "root", "--out", str(admin))
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", "-")
    monkeypatch.setenv("RAFTLOG_TOKEN", "")  # which the command sets in this process

    def typed(text: str) -> None:
        monkeypatch.setattr(getpass, "getpass", lambda prompt: text)

    typed("two words")
    assert (refused := cli.run("put", "a", "1")).exit_code == 2, refused.output
    with monkeypatch.context() as without:
        without.setattr(getpass, "getpass", lambda prompt: getpass.fallback_getpass(prompt))  # type: ignore[attr-defined]
        assert "there is none" in cli.run("put", "a", "1", stdin=admin.read_text()).stderr
    typed(admin.read_text())
    done = cli.run("put", "a", "1")
    assert done.exit_code == 0, done.output


def test_the_first_admin_makes_users_and_tokens(cli: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an open cluster to a user that may do one thing, by the commands of docs/security.md. No output but the one
    that hands a token over has it, and its file is private and never overwritten."""
    admin, alice = tmp_path / "root.token", tmp_path / "alice.token"
    assert cli.run("put", "a", "1").exit_code == 0
    assert cli.json("access", "init", "root", "--out", str(admin))["file"] == str(admin)
    refused = cli.run("put", "a", "1")
    assert refused.exit_code == 9
    assert "RAFTLOG_TOKEN_FILE" in refused.stderr
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(admin))
    assert cli.run("put", "a", "1").exit_code == 0
    cli.json("role", "set", "orders", "read on keys:orders/*", "write on keys:orders/*")
    cli.json("user", "set", "alice", "--role", "orders")
    made = cli.json("token", "create", "alice", "--out", str(alice), "--label", "laptop", "--days", "9")
    assert alice.stat().st_mode & 0o777 == 0o600
    again = cli.run("token", "create", "alice", "--out", str(alice))
    assert (again.exit_code, "File exists" in again.stderr) == (1, True)
    [listed] = [token for token in cli.json("token", "list") if token["id"] == made["id"]]
    assert (listed["user"], listed["label"], bool(listed["expires"])) == ("alice", "laptop", True)
    assert cli.json("access", "show")["tokens"] == 2
    assert cli.run("access", "can", "alice", "write", "on", "keys:orders/1").exit_code == 0
    told = cli.run("access", "can", "alice", "read on log", "-o", "json")
    assert (told.exit_code, "no role of the user has the grant" in told.stdout) == (1, True)
    secret = alice.read_text().strip()[14:]
    for shown in (
        cli.run("token", "list"),
        cli.run("access", "show"),
        cli.run("user", "list"),
        cli.run("role", "list"),
    ):
        assert shown.exit_code == 0
        assert secret not in shown.output
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(alice))
    assert cli.run("put", "orders/1", "v").exit_code == 0
    refused = cli.run("put", "a", "2")
    assert (refused.exit_code, "write on keys:a" in refused.stderr) == (9, True)
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(admin))
    cli.json("token", "revoke", made["id"])
    assert cli.run("token", "revoke", alice.read_text().strip()).exit_code == 2, "a secret is no argument"
    cli.run("del", "--prefix", "none/")
    cli.run("txn", '{"then": [{"operation": "delete_range", "key": "some/", "end": ""}]}')
    cli.run("txn", '{"then": [{"operation": "put", "key": "a", "value": "1"}]}')
    listed = cli.json("audit")
    named = [(row["user"], row["what"].split(" ")[0]) for row in listed if row["operation"] == "access"]
    assert named == [("", "init"), *(("root", each) for each in ("set_role", "set_user", "add_token", "delete_token"))]
    assert [(row["operation"], row["user"], row["what"]) for row in listed[-2:]] == [
        ("delete_range", "root", "none/ to none0"),
        ("txn", "root", "deletes some/ to (the end)"),
    ]
    cli.json("user", "set", "reader", "--role", "reader")
    cli.json("token", "create", "reader", "--out", str(tmp_path / "reader.token"))
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(tmp_path / "reader.token"))
    seen = cli.run("audit", "-o", "json")
    assert (seen.exit_code, "set_role" in seen.stdout) == (0, False)
    assert all(f"{each} are left out" in seen.stderr for each in ("changes of permissions", "members, and users"))
    monkeypatch.setenv("RAFTLOG_TOKEN", alice.read_text())
    monkeypatch.delenv("RAFTLOG_TOKEN_FILE")
    assert "was revoked" in cli.run("put", "orders/1", "v").stderr
    monkeypatch.delenv("RAFTLOG_TOKEN")
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(admin))
    for words in (
        ("user", "delete", "alice"),
        ("role", "delete", "orders"),
        ("access", "disable"),
        ("access", "enable"),
    ):
        assert cli.json(*words)


def test_the_hint_of_a_refusal_gives_what_the_request_needs_and_nothing_else(
    cli: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a user that may write nothing too, whose session is refused before its key is known. The command of the hint
    leaves the role its other grants, and the same write is then applied."""
    admin, alice = tmp_path / "root.token", tmp_path / "alice.token"
    cli.json("access", "init", "root", "--out", str(admin))
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(admin))
    cli.json("role", "set", "orders", "read on keys:orders/*")
    cli.json("user", "set", "alice", "--role", "orders", "--role", "reader")
    cli.json("token", "create", "alice", "--out", str(alice))
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(alice))
    (tmp_path / "a.txt").write_text("a\n")
    imported = cli.run("import", str(tmp_path / "a.txt"))
    assert imported.exit_code == 9
    assert "an import needs `append on log` and `write on keys:raftlog/import/*`" in imported.stderr
    for write, grant, prefix in (
        (("put", "orders/7/a", "v"), "write on keys:orders/7/a", "write on keys:orders/7/*"),
        (("append", "v", "--key", "plain"), "append on keys:plain", None),
        (("append", "v"), "append on log", None),
        (("consumers", "claim", "g"), "write on groups:g", None),
    ):
        monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(alice))
        refused = cli.run(*write)
        assert refused.exit_code == 9, refused.output
        _, _, hint = refused.stderr.partition("raftlog role grant ROLE ")
        assert hint.strip() == f"'{grant}'" + (f", or of all with this prefix: '{prefix}'" if prefix else "")
        monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(admin))
        [role] = cli.json("role", "grant", "orders", grant)
        assert {"read on keys:orders/*", grant} <= {*role["grants"].split(", ")}
        monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(alice))
        assert cli.run(*write).exit_code == 0
    monkeypatch.setenv("RAFTLOG_TOKEN_FILE", str(admin))
    [role] = cli.json("role", "ungrant", "orders", "append on log", "write on groups:g")
    assert role["grants"] == "read on keys:orders/*, write on keys:orders/7/a, append on keys:plain"
    wide = cli.run("role", "ungrant", "orders", "write on keys:*")
    assert (wide.exit_code, "take that one (raftlog role list)" in wide.stderr) == (1, True)
    assert "raftlog role set makes one" in cli.run("role", "grant", "other", "read on log").stderr


def test_a_profile_names_a_cluster_and_its_files(cli: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is current, RAFTLOG_PROFILE goes before it, and --endpoints before both. The file has no secret."""
    monkeypatch.delenv("RAFTLOG_ENDPOINTS", raising=False)
    for name in ("RAFTLOG_CA", "RAFTLOG_TOKEN_FILE", "RAFTLOG_TOKEN"):
        monkeypatch.setenv(name, "")  # put back at the end
        monkeypatch.delenv(name)
    token = tmp_path / "token"
    token.write_text("rl_x\n")
    url, cli.url = cli.url, ""
    run = partial(CliRunner().invoke, cli.app, env={"RAFTLOG_ENDPOINTS": None})
    done = run(["profile", "set", "here", url, "--token-file", str(token)])
    assert done.exit_code == 0, done.output
    assert run(["put", "a", "1"]).exit_code == 0
    assert run(["profile", "set", "far", "https://10.255.255.1:7001", "--ca", "ca.pem"]).exit_code == 0
    assert run(["get", "a"]).exit_code == 0
    assert f"export RAFTLOG_TOKEN_FILE={token}" in run(["profile", "env", "here"]).stdout
    assert run(["profile", "use", "none"]).exit_code == 2
    assert run(["profile", "delete", "none"]).exit_code == 2
    assert "far" not in run(["profile", "delete", "far"]).stdout
    assert run(["get", "a"]).exit_code == 0, "another one is current"
    monkeypatch.setenv("RAFTLOG_PROFILE", "nowhere")
    assert "there is no profile 'nowhere'" in run(["get", "a"]).stderr
    assert run(["get", "a", "-e", url]).exit_code == 0
    assert "rl_x" not in (tmp_path / "config" / "raftlog" / "profiles.json").read_text()


@contextmanager
def encrypted(cli: Running, files: TlsFiles, *, is_optional: bool) -> Iterator[str]:
    """The URL of a port with TLS before the node, which takes clients without a certificate or does not."""
    port = int(cli.url.rpartition(":")[2])

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                sink.write(data)
        sink.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, forth), carry(back, writer))

    context = server_context(files, is_optional=is_optional)
    starting = asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    server = asyncio.run_coroutine_threadsafe(starting, cli._loop).result(10)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    cli._loop.call_soon_threadsafe(server.close)


@pytest.mark.parametrize("is_optional", [True, False])
def test_a_token_is_made_together_with_the_word_whether_its_user_needs_a_certificate(
    cli: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_optional: bool
) -> None:
    """The command asks as a client without a certificate, unless an option says it. A token that gets its user nowhere
    is not made, and a profile with a token alone is warned about. Guard: `_needs_certificate`."""
    admin = tmp_path / "root.token"
    cli.json("access", "init", "root", "--out", str(admin))
    make_authority(tmp_path, "own")
    made, client = make_node(tmp_path, "c" * 32, 1, ["127.0.0.1"]), make_client(tmp_path, "root", "")
    node = TlsFiles(str(tmp_path / "ca.pem"), str(made.certificate), str(made.key))
    files = {"CA": node.ca, "CERTIFICATE": client.certificate, "KEY": client.key, "TOKEN_FILE": admin}
    for name, path in files.items():
        monkeypatch.setenv(f"RAFTLOG_{name}", str(path))
    with encrypted(cli, node, is_optional=is_optional) as cli.url:
        asked, told, alone = (
            cli.run("token", "create", "root", "--out", str(tmp_path / name), *option)
            for name, option in (("asked", ()), ("told", ("--certificate",)), ("alone", ("--no-certificate",)))
        )
        profile = cli.run("profile", "set", "p", cli.url, "--ca", node.ca, "--token-file", str(admin))
    assert [asked.exit_code, told.exit_code, alone.exit_code, profile.exit_code] == [0, 0, 0 if is_optional else 1, 0]
    needs = "`raftlog cert client root` makes one"
    assert needs in told.stderr
    assert (needs in asked.stderr) is not is_optional
    assert (tmp_path / "alone").exists() is is_optional
    assert ("raftlog cert client root" in alone.stderr) is not is_optional
    assert ("this profile has none" in profile.stderr) is not is_optional
    cli.url = "https://127.0.0.1:1"
    unasked = cli.run("profile", "set", "p", cli.url, "--ca", node.ca, "--token-file", str(admin))
    assert (unasked.exit_code, "this profile has none" in unasked.stderr) == (0, False)


@pytest.mark.parametrize("in_environment", [True, False])
def test_the_settings_of_a_node_name_the_node_that_is_asked(
    cli: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_environment: bool
) -> None:
    """With --config the command has the certificate of that node. Without --token it makes no token."""
    lines = ['cluster_file = "cluster.toml"', *(() if in_environment else ("node = 2",))]
    (tmp_path / "node.toml").write_text("\n".join(lines))
    ports = (1, urlsplit(cli.url).port or 0, 3)
    cluster = new_cluster(3, peer_ports=(11, 12, 13), http_ports=ports)
    (tmp_path / "cluster.toml").write_text(render_cluster_file(cluster))
    if in_environment:
        monkeypatch.setenv("RAFTLOG_NODE", "2")
    answered, cli.url = cli.url, "http://127.0.0.1:1"
    made = cli.run("access", "init", "root", "--config", str(tmp_path / "node.toml"))
    assert made.exit_code == 0, made.output
    assert made.stderr.endswith("access control is on; root is its first admin\n")
    cli.url = answered
    assert cli.node.machine.access.is_on
    assert not cli.node.machine.access.tokens


def test_a_token_that_nobody_gets_is_not_made(cli: Running, tmp_path: Path) -> None:
    """The file cannot be made: nothing is sent. The request is refused: the file is gone again."""
    assert cli.run("access", "init", "root", "--out", str(tmp_path / "none" / "t")).exit_code == 1
    assert not cli.node.machine.access.is_on
    assert cli.run("access", "init", "raftlog:x", "--out", str(tmp_path / "t")).exit_code == 1
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("is_interrupted", [True, False])
@pytest.mark.parametrize("has_file", [True, False])
def test_a_token_that_may_count_is_kept(
    cli: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool, has_file: bool
) -> None:
    """The answer is lost, or the user interrupts the command: the file keeps the token, or it is printed."""
    file = tmp_path / "t"
    words = ("access", "init", "root", "--deadline", "0.1", *(("--out", str(file)) if has_file else ()))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    cli.node.held = asyncio.Event()
    if is_interrupted:
        monkeypatch.setattr(SyncClient, "call", interrupt)
    ended = cli.run(*words)
    assert ended.exit_code == (130 if is_interrupted else 6)
    assert "may count" in ended.stderr
    kept = file.read_text() if has_file else ended.stdout
    assert token_id(kept.strip()) in ended.stderr


@pytest.mark.parametrize(
    ("url", "content", "reason"),
    [
        ("http://10.0.0.1:7001", "rl_x", "https alone"),
        ("https://10.0.0.1:7001", "", "one token"),
        ("https://10.0.0.1:7001", "two tokens", "one token"),
        ("https://10.0.0.1:7001", "é", "one token"),
        ("https://10.0.0.1:7001", None, "token create"),
        ("https://10.0.0.1:7001", "rl_x\n", ""),
        ("http://127.0.0.1:7001", "rl_x\n", ""),
    ],
)
def test_a_client_sends_its_token_over_private_connections_alone(
    url: str, content: str | None, reason: str, tmp_path: Path
) -> None:
    """https, or this machine. A file that holds anything but a token is refused. A hint to another URL sends none."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    given: dict[str, Any] = {"environment": {"RAFTLOG_TOKEN_FILE": str(file)}}
    if reason:
        with pytest.raises(TokenError, match=reason):
            bearer_for([url], **given)
        return
    bearer = bearer_for([url], **given)
    assert bearer is not None
    assert bearer.header(url) == (("Authorization", "Bearer rl_x"),)
    assert bearer.header("http://10.0.0.9:7001") == ()
    assert "rl_x" not in repr(bearer)


@pytest.mark.parametrize("text", ["two\nlines", "two words", "é", " "])
def test_a_token_of_the_environment_is_one_word(text: str) -> None:
    """A line end in it would end the header, and the answer would show the rest of it."""
    with pytest.raises(TokenError, match=r"^RAFTLOG_TOKEN must hold one token and nothing else$"):
        bearer_for(["http://127.0.0.1:7001"], environment={"RAFTLOG_TOKEN": text})
