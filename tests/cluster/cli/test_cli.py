"""Every command, in this process, against a node behind the real HTTP layer: output, exit codes, what errors say."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.values import LeaderHint
from raftlog.cluster.cli.commands import build
from raftlog.cluster.cli.frame import last_cluster
from raftlog.cluster.cli.frame.last_cluster import forget, remember, remembered, state_folder
from raftlog.cluster.config.cluster_file import first_entry, parse_cluster_file
from raftlog.cluster.config.settings import load_settings
from raftlog.raft.changes import AddLearners, ChangeAddresses, Promote, Remove, Replace
from tests.cluster.fake_node import FakeNode, serve
from tests.support import HANG_S, free_port


class Running:
    """A node in a thread of its own, and the command line against it."""

    def __init__(self) -> None:
        self.node = FakeNode()
        self.url = ""
        self.app: typer.Typer = build()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        async with serve(self.node) as served:
            self.url = self.node.url = served.url
            self._ready.set()
            await self._stop.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def run(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """`raftlog ARGUMENTS` against the node."""
        return CliRunner().invoke(self.app, arguments, input=stdin, env={"RAFTLOG_ENDPOINTS": self.url})

    def json(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        """The same with -o json; it must succeed."""
        result = self.run(*arguments, "-o", "json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


ADD_FOUR = ("members", "add", "4", "--peer", "127.0.0.1:7104", "--url", "http://127.0.0.1:7004")


@pytest.fixture(scope="module")
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def cli(_state: None) -> Iterator[Running]:
    """A node and its command line."""
    running = Running()
    yield running
    running.stop()


def test_cli_puts_gets_and_deletes_keys(cli: Running) -> None:
    """put, get, range, del: what went in comes out, in every format, and 3 says that it was not there."""
    assert cli.json("put", "a", "1") == {
        "outcome": "applied",
        "result": "applied",
        "revision": 2,
        "index": 4,
        "term": 1,
    }
    assert cli.run("put", "b", stdin=b"\xff\x00").exit_code == 0
    assert cli.run("get", "b", "-o", "raw").stdout_bytes == b"\xff\x00"
    assert cli.json("get", "b") == {"key": "b", "value_b64": "/wA=", "create": 3, "mod": 3, "version": 1}
    assert cli.run("get", "a").stdout == "key\tvalue\tmod\tversion\tcreate\na\t1\t2\t1\t2\n"
    assert cli.run("put", "--base64", "/w==", "YQ==").exit_code == 0
    assert [row["key_b64"] for row in cli.json("range", "--encoding", "base64", "--keys-only")] == [
        "YQ==",
        "Yg==",
        "/w==",
    ]
    assert len(cli.json("range", "--limit", "2")) == 2
    assert len(cli.json("range", "a", "--prefix")) == 1
    assert cli.json("get", "a", "--at", "2", "--stale")["value"] == "1"
    assert cli.run("del", "a", "-o", "raw").stdout == "1\n"
    gone = cli.run("get", "a")
    assert (gone.exit_code, gone.stderr) == (3, "raftlog: no key 'a'\n")
    assert cli.run("del", "a").exit_code == 3
    assert cli.json("del", "b", "c")["deleted"] == 1


def test_compare_and_transactions(cli: Running) -> None:
    """A failed compare is 4; both branches of a transaction are 0; JSON and the short form mean the same."""
    cli.run("put", "a", "1")
    failed = cli.run("put", "a", "2", "--if-revision", "7", "-o", "json")
    assert failed.exit_code == 4
    told = json.loads(failed.stderr)
    assert (told["code"], told["outcome"]) == ("compare_failed", "not_applied")
    short = ["txn", "--if", "a value = 1", "--if", "a mod > 0", "--then", "put 'b c' x", "--else", "get a"]
    assert cli.json(*short)["succeeded"] is True
    condition = {"target": "value", "operator": "!=", "key": "a", "value": "1"}
    long = {"compare": [condition], "else": [{"operation": "get", "key": "b c"}]}
    answer = cli.json("txn", "-", stdin=json.dumps(long))
    assert answer["succeeded"] is False
    assert answer["responses"][0]["items"][0]["value"] == "x"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["txn"], "either a JSON document or --if"),
        (["txn", "{"], "not what it should be"),
        (["txn", "--if", "a mod ="], "OPERAND"),
        (["txn", "--if", "a mod = x"], "a number"),
        (["txn", "--then", "eat"], "no step"),
        (["txn", "--if", "a 'mod"], "quote as in a shell"),
        (["put", "a", "1", "--session", "3"], "go together"),
        (["put", "a", "?", "--base64"], "not base64"),
        (["get", "a", "--encoding", "hex"], "auto or base64"),
        (["range", "a", "b", "--prefix"], "not both"),
        (["get"], "Missing argument"),
        (["del", "a", ""], "END is empty"),
        (["watch", "--from", "1", "--from-revision", "9"], "not both"),
        (["log", "--from-time", "noon"], "ISO 8601"),
        (["append", "x", "--header", "h"], "NAME=VALUE"),
        (["get", "a", "-e", "nonsense"], "http://HOST:PORT"),
        (["get", "a", "-e", ","], "--endpoints is empty"),
        (["settings", "show", "--set", "limits.record_max=1"], "did you mean limits.records_max"),
        (["get", ""], "at least one byte"),
        (["up", "--data", "x", "--set", "nonsense"], "KEY=VALUE"),
    ],
)
def test_usage_is_2_and_says_how(cli: Running, arguments: list[str], says: str) -> None:
    """What cannot be meant is refused before anything is sent, with what to write instead."""
    result = cli.run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_cli_appends_and_reads_the_log(cli: Running) -> None:
    """append and log: several records at once, headers, times, internal ones only if asked for."""
    appended = cli.json("append", "x", "y", "--key", "k", "--header", "h=1", "--time", "5")
    assert appended["count"] == 2
    cli.run("append", stdin=b"from\nstdin")
    rows = [json.loads(line) for line in cli.run("log", "-o", "jsonl").stdout.splitlines()]
    assert [row["value"] for row in rows] == ["x", "y", "from\nstdin"]
    assert (rows[0]["key"], rows[0]["headers"], rows[0]["client_time_ms"]) == ("k", [["h", "1"]], 5)
    assert cli.run("log", "-o", "raw", "--from", str(rows[1]["index"]), "--limit", "1").stdout == "y\n"
    assert "session_open" in cli.run("log", "--internal").stdout
    assert cli.run("log", "-o", "raw", "--to", str(rows[1]["index"])).stdout == "x\n"
    assert len(cli.run("log", "--from-time", "1970-01-01", "-o", "jsonl").stdout.splitlines()) == 3


def test_cli_watches_and_compacts_keys(cli: Running) -> None:
    """watch prints one row per change; compact lets go of old revisions, and `--at` then says so."""
    cli.run("put", "a", "1")
    cli.run("del", "a")
    rows = cli.run("watch", "a", "--from", "1", "--limit", "2", "-o", "jsonl").stdout.splitlines()
    assert [(json.loads(row)["deleted"], json.loads(row).get("value")) for row in rows] == [(False, "1"), (True, None)]
    assert cli.json("compact", "3")["oldest_revision"] == 3
    old = cli.run("get", "a", "--at", "2")
    assert old.exit_code == 1
    assert "compacted" in old.stderr


def test_cli_trims_the_log_below_an_index(cli: Running) -> None:
    """`log trim` removes records below an index: reads there report it, and `log` without --from begins behind it."""
    cli.run("append", "one", "two", "three")
    rows = [json.loads(line) for line in cli.run("log", "-o", "jsonl").stdout.splitlines()]
    last = rows[-1]["index"]
    assert cli.json("log", "trim", "--before", str(last))["oldest"] == last
    assert cli.json("log", "trim", "--before", "1")["oldest"] == last, "it never goes back"
    gone = cli.run("log", "--from", "1")
    assert (gone.exit_code, f"the oldest is {last}" in gone.stderr) == (1, True)
    assert cli.run("log", "-o", "raw").stdout == "three\n"
    beyond = cli.run("log", "trim", "--before", "1000000")
    assert (beyond.exit_code, "has not reached that index" in beyond.stderr) == (1, True)
    assert cli.run("log", "trim").exit_code == 2


def test_what_frees_disk_space_opens_no_session(cli: Running) -> None:
    """On a full disk a node takes a trim, a compaction and the deletion of a group, and no session."""
    cli.run("append", "one")
    cli.run("consumers", "claim", "g")
    before = cli.run("log", "--internal").stdout.count("session_open")
    for command in (("compact", "1"), ("consumers", "delete", "g"), ("log", "trim", "--before", "2")):
        assert cli.run(*command).exit_code == 0
    assert cli.run("log", "--internal").stdout.count("session_open") == before


def test_sessions_and_receipts(cli: Running) -> None:
    """A write with session and sequence is applied once; its receipt shows it; an unseen sequence can be made void."""
    session = str(cli.json("session", "open")["session"])
    write = ["append", "once", "--session", session, "--sequence", "1"]
    assert cli.json(*write)["result"] == "applied"
    assert cli.json(*write)["result"] == "repeated"
    assert cli.json("session", "receipt", session, "1")["state"] == "applied"
    assert cli.json("session", "void", session, "2")["state"] == "voided"
    assert cli.run("session", "keep", session).exit_code == 0
    assert cli.run("session", "close", session).exit_code == 0
    late = cli.run(*write)
    assert late.exit_code == 6, "it was applied, which no node knows any more"
    assert "expired, was closed, or never was" in late.stderr


def test_an_unknown_outcome_is_6_and_names_the_next_commands(cli: Running) -> None:
    """The answer is lost for good: exit code 6, and the commands that find the outcome."""
    cli.node.held = asyncio.Event()
    plain = cli.run("append", "x", "--no-session", "--deadline", "0.1")
    assert plain.exit_code == 6
    cli.node.held = None
    session = str(cli.json("session", "open")["session"])
    cli.node.held = asyncio.Event()
    result = cli.run("append", "x", "--session", session, "--sequence", "1", "--deadline", "0.1")
    assert result.exit_code == 6
    assert "may or may not have been applied" in result.stderr
    cli.node.held = None


def test_no_leader_and_no_server_are_5(cli: Running) -> None:
    """No leader, or no server: the error names the tried URLs and `raftlog up`."""
    cli.node.refusal = ApiError(Code.NO_LEADER, "node 1: there is no leader now")
    result = cli.run("put", "a", "1", "--deadline", "0.1")
    assert (result.exit_code, "no leader now" in result.stderr) == (5, True)
    assert "raftlog up" not in result.stderr
    url = f"http://127.0.0.1:{free_port()}"
    result = cli.run("put", "a", "1", "-e", url, "--deadline", "0.1")
    assert result.exit_code == 5
    assert url in result.stderr
    assert "raftlog up" in result.stderr


def test_status_members_digest(cli: Running) -> None:
    """The overview has a row per member; without a leader the exit code says so."""
    assert cli.json("members", "list")["members"][0]["role"] == "voter"
    assert len(cli.json("digest")["state"]["xor"]) == 16
    result = cli.run("status", "-o", "json")
    shown = json.loads(result.stdout)
    assert shown["nodes"][0]["url"] in (cli.url, "http://127.0.0.1:1")
    assert result.exit_code == (0 if shown["leader"] else 5)
    lines = cli.run("status", "--watch", "--count", "2", "--interval", "0.1", "-o", "jsonl").stdout.splitlines()
    assert len(lines) == 2


def test_members_and_leader(cli: Running, tmp_path: Path) -> None:
    """Each command asks for its change; a new node gets a join file, never written over, and the next steps."""
    file = tmp_path / "join-4.toml"
    add = (*ADD_FOUR, "--join-file", str(file))
    result = cli.run(*add)
    assert result.exit_code == 0, result.output
    assert f"raftlog format --join {file} --data node-4" in result.stderr
    settings = tmp_path / "join-4-node.toml"
    assert f"raftlog node --config {settings}\n" in result.stderr
    assert load_settings(settings).settings.node == 4
    joining = parse_cluster_file(file.read_text(), str(file))
    assert joining.cluster.join == 4
    assert cli.run(*add).exit_code == 2
    file.rename(tmp_path / "elsewhere")
    again = cli.run(*add)
    assert (again.exit_code, "join-4-node.toml is there already" in again.stderr) == (2, True)
    change = cli.node.changes.pop()
    assert isinstance(change, AddLearners)
    assert change.members[0] == joining.configuration().member(4)
    assert cli.run("members", "remove", "1", "--wait", "0").exit_code == 0
    assert cli.node.changes.pop() == Remove((1,))
    late = cli.run("members", "remove", "1", "--wait", "0.2")
    assert (late.exit_code, "was not done within" in late.stderr) == (1, True)
    moved_to = cli.json("members", "address", "1", "--peer", "127.0.0.1:9")
    assert (moved_to["change"], moved_to["outcome"], "settings" in moved_to) == ("address", "applied", False)
    assert cli.run("members", "address", "1").exit_code == 2
    moved = cli.node.changes.pop()
    assert isinstance(moved, ChangeAddresses)
    assert (moved.members[0].peer, moved.members[0].incarnation) == ("127.0.0.1:9", "ab" * 16)
    assert cli.run("members", "promote", "9", "--now", "--wait", "0").exit_code == 0
    assert cli.node.changes.pop() == Promote((9,))
    replaced = cli.run("members", "replace", "1", "--join-file", str(tmp_path / "join-1.toml"))
    assert replaced.exit_code == 0, replaced.output
    assert isinstance(cli.node.changes.pop(), Replace)
    assert cli.run("leader", "transfer", "--to", "2", "-o", "raw").stdout == "2\n"
    assert cli.node.transfers == [2]


@pytest.mark.parametrize(
    ("words", "why", "told"),
    [
        (("promote", "1", "--now"), "nothing_changes", "node 1 is a voter already"),
        (("address", "1", "--peer", "127.0.0.1:2"), "nothing_changes", "node 1 is known at these addresses"),
        (("remove", "9"), "unknown_node", "node 9 is no member"),
    ],
)
def test_a_change_that_is_made_already_is_no_error(
    cli: Running, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str, told: str
) -> None:
    """Repeated, a change of the members ends with 0, prints its row, and says that nothing was left to do: under `set
    -e` a script goes on. Another reason for a refusal stays an error."""

    async def refuse(node: FakeNode, change: object, deadline: float) -> int:
        raise ApiError(Code.MEMBERS_REFUSED, f"node 1: {told}; nothing is to be done", why=why)

    monkeypatch.setattr(FakeNode, "change_members", refuse)
    done = cli.run("members", *words, "-o", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["change"] == words[0]
    assert done.stderr == f"nothing to do: node 1: {told}\n"
    why = "last_voter"
    assert cli.run("members", *words).exit_code == 1


def test_leadership_is_handed_to_the_leader_for_nothing(cli: Running) -> None:
    """`leader transfer --to` the node that leads ends with 0, names it, and asks for no hand-over."""
    cli.node.leader = LeaderHint(1, cli.url)
    done = cli.run("leader", "transfer", "--to", "1", "-o", "raw")
    assert (done.exit_code, done.stdout) == (0, "1\n")
    assert done.stderr == "nothing to do: node 1 leads already\n"
    assert cli.node.transfers == []


def test_a_join_file_makes_one_data_folder(cli: Running, tmp_path: Path) -> None:
    """It is formatted from the log's own first entry, in the given folder, and the file records that. A second time, or
    as a cluster file, it is refused."""
    file, folder = tmp_path / "join-4.toml", tmp_path / "elsewhere" / "four"
    add = (*ADD_FOUR, "--join-file", str(file))
    assert cli.run(*add).exit_code == 0
    assert cli.run("format", str(file)).exit_code == 2
    done = cli.run("format", "--join", str(file), "--data", str(folder), "--segment-bytes", str(1 << 20))
    assert done.exit_code == 0, done.output
    loaded = load_settings(file)
    assert (loaded.settings.node, loaded.data.resolve()) == (4, folder.resolve())
    assert first_entry(parse_cluster_file(file.read_text(), str(file))) == cli.node.log[0][0]
    assert cli.run("format", "--join", str(file)).exit_code == 1
    assert cli.run("format").exit_code == 2


def test_settings_show(cli: Running, tmp_path: Path) -> None:
    """Every setting with its value, and where it is from."""
    file = tmp_path / "node.toml"
    file.write_text("[limits]\nrecords_max = 7\n")
    arguments = ("settings", "show", "--config", str(file), "--set", "log.level=debug", "--origin")
    rows = {row["key"]: row for row in cli.json(*arguments)}
    assert (rows["limits.records_max"]["value"], rows["limits.records_max"]["origin"]) == (7, str(file))
    assert rows["log.level"]["origin"].startswith("flag")
    assert rows["raft.heartbeat_ms"]["origin"] == "default"
    assert rows["limits.waiters_max"]["origin"] == "limits.connections_max * 4"
    assert "origin" not in cli.run("settings", "show").stdout.splitlines()[0]


def test_import_shows_progress_and_rejected_lines(cli: Running, tmp_path: Path) -> None:
    """One JSON line per batch and a last one; rejected lines are beside the file; a second run is refused with 1."""
    source = tmp_path / "in.ndjson"
    source.write_bytes(b"".join(b'{"id": "k%d"}\n' % number for number in range(7)) + b"{}\n")
    result = cli.run("import", str(source), "--key", "id", "--batch", "3", "-o", "jsonl")
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["records"], row["done"]) for row in rows] == [(3, False), (6, False), (7, False), (7, True)]
    assert "rejected lines: 1, in" in result.stderr
    assert json.loads((tmp_path / "in.ndjson.rejected").read_bytes())["line"] == 8
    again = cli.run("import", str(source), "--key", "id", "--batch", "3")
    assert again.exit_code == 0, "it is all in, so a loop that starts it until it succeeds ends"
    assert "an earlier run has imported all of it" in again.stderr
    missing = cli.run("import", str(tmp_path / "none"))
    assert (missing.exit_code, "No such file" in missing.stderr) == (1, True)
    piped = cli.run(
        "import", "-", "--state", str(tmp_path / "s"), "--rejects", str(tmp_path / "r"), stdin=b'{"a": 1}\n'
    )
    assert piped.exit_code == 0, piped.stderr
    log = [json.loads(line) for line in cli.run("log", "-o", "jsonl").stdout.splitlines()]
    assert [row["operation"] for row in log] == ["put", *["append"] * 7, "put", "append"]  # each put is a schema


def endpoints_of(found: tuple[last_cluster.RunningCluster | None, list[str]]) -> tuple[str, ...]:
    """Where it is."""
    return () if found[0] is None else tuple(found[0].endpoints)


@pytest.mark.usefixtures("_state")
def test_a_running_cluster_is_remembered_while_its_process_lives() -> None:
    """Another terminal finds it; the note of a dead process does not count, and no process removes another's."""
    file = state_folder() / f"{os.getpid()}.json"
    assert remembered() == (None, [])
    remember(["http://127.0.0.1:7001"])
    assert endpoints_of(remembered()) == ("http://127.0.0.1:7001",)
    told = json.loads(file.read_text())
    other = state_folder() / "1.json"
    other.write_text(json.dumps(told | {"endpoints": ["http://127.0.0.1:9001"]}))
    os.utime(other, ns=(1 << 62, 1 << 62))
    assert endpoints_of(remembered()) == ("http://127.0.0.1:7001",), "the first one"
    assert remembered()[1] == ["http://127.0.0.1:9001"]
    forget()
    assert endpoints_of(remembered()) == ("http://127.0.0.1:9001",), "the other one is still there"
    other.write_text(json.dumps(told | {"started": "0"}))
    assert remembered() == (None, [])
    assert not other.exists(), "files that a dead process left are removed"
    file.write_text("{")
    assert remembered() == (None, [])


def test_bytes_of_the_command_line_reach_the_log_as_they_are(cli: Running) -> None:
    """Keys, values and headers that are no UTF-8 go through the short forms too, not only through `put`."""
    assert cli.run("txn", "--then", "put \udcff \udcfe", "--if", "\udcff mod = 0").exit_code == 0
    assert cli.run("get", "\udcff", "-o", "raw").stdout_bytes == b"\xfe"
    assert cli.run("append", "x", "--header", "a=\udcff").exit_code == 0
    assert cli.json("range")[0]["key_b64"] == "/w=="


def test_tables_in_a_pipe_are_never_cut(cli: Running) -> None:
    """A table that goes to a file has every value whole: nothing is folded to the 80 columns of no terminal."""
    cli.run("put", "a", "v" * 200)
    assert "v" * 200 in cli.run("get", "a", "-o", "table").stdout
    assert f"{cli.url}\n" in cli.run("status", "-o", "table").stdout.replace(" ", "")


def test_a_closed_standard_output_is_no_bug(cli: Running) -> None:
    """`raftlog get a >&-`: Python has None for it then; the command does its work without a traceback."""
    cli.run("put", "a", "1")
    script = f"exec {sys.executable} -m raftlog.cluster.cli.main get a -e {cli.url} >&-"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_has_the_options_that_all_commands_share(cli: Running) -> None:
    """Of each command that prints; tests/cluster/cli/test_json.py walks all of them."""
    shown = cli.run("get", "--help").stdout
    assert all(option in shown for option in ("--output", "--encoding", "--endpoints", "--deadline"))
    assert cli.run("--version").stdout.startswith("raftlog ")
