"""Backup, restore and recover: real nodes in one process, the command line in another thread, real files."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from raftlog.cluster.cli.commands import build
from raftlog.cluster.client.backup import ATTEMPTS_MAX, BackupCursor
from raftlog.cluster.client.cursors import BadStream
from raftlog.cluster.client.errors import Unavailable
from raftlog.cluster.client.http1 import BadResponse
from raftlog.cluster.config.cluster_file import render_cluster_file
from raftlog.cluster.files.folder import IDENTITY
from raftlog.cluster.node.formatting import new_cluster
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.offline.backup_file import read_backup
from raftlog.cluster.offline.check import check_folder
from raftlog.cluster.records.backup_format import (
    PART_BYTES_MAX,
    BackupDamaged,
    BackupDecoder,
    BackupEncoder,
    BackupHead,
)
from raftlog.cluster.security.authority import holder_of_file
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.raft.wal.formats import encode_chunk
from raftlog.statemachine.access.admission import Admission, encode_admission
from raftlog.statemachine.access.commands import AccessAction, AccessCommand, encode_access
from raftlog.statemachine.commands import Operation, Result as Told
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.digest import SetDigest
from tests.cluster.fake_node import FakeNode, serve
from tests.cluster.http.http_probe import ask
from tests.cluster.nodes import Nodes, append_block, cluster_of, deadline, put_block
from tests.support import free_ports, wait_until_async

SEGMENT = ("--segment-bytes", str(1 << 20))


async def run(*arguments: object, url: str = "http://127.0.0.1:1", ok: bool = True) -> Result:
    """`raftlog ARGUMENTS -o json` in another thread."""
    words = [*map(str, arguments), "-o", "json"]
    result = await asyncio.to_thread(CliRunner().invoke, build(), words, env={"RAFTLOG_ENDPOINTS": url})
    assert (result.exit_code == 0) == ok, (result.exit_code, result.output)
    return result


def answer(result: Result) -> Any:
    """What it printed; the nodes of this process may write their log there too."""
    return json.loads("\n".join(line for line in result.stdout.splitlines() if not line.startswith("20")))


async def fill(nodes: Nodes, count: int = 40) -> tuple[int, int]:
    """Some keys with history, users, a session that was used, a consumer group; (session, last index)."""
    leader = await nodes.leader()
    root = encode_admission(Admission("root", 1))
    for command, admission in (
        (AccessCommand(AccessAction.INIT, "root", token="t1", token_hash=bytes(32)), b""),
        (AccessCommand(AccessAction.SET_USER, "ada", roles=("reader",)), root),
        (AccessCommand(AccessAction.DISABLE), root),
    ):
        record = BlockRecord(Operation.ACCESS, None, encode_access(command))
        await leader.submit(encode_block([record], admission=admission), 1, deadline=deadline())
    opened = encode_block([BlockRecord(Operation.SESSION_OPEN, None, None, None, 600_000)])
    session = (await leader.submit(opened, 1, deadline=deadline())).last
    await leader.submit(
        append_block(b"once", session=session, sequence=1), 1, deadline=deadline(), session=session, sequence=1
    )
    claim = encode_consumer(ConsumerCommand(ConsumerAction.CLAIM, next=3, owner=b"x"))
    await leader.submit(encode_block([BlockRecord(Operation.CONSUMER, b"group", claim)]), 1, deadline=deadline())
    for number in range(count):
        settled = await leader.submit(put_block(b"k%02d" % (number % 20), b"v%d" % number), 1, deadline=deadline())
    return session, settled.last


def new_file(folder: Path, count: int = 3, scheme: str = "http") -> Path:
    """A cluster file of a cluster that does not exist yet."""
    ports = free_ports(2 * count)
    file = folder / "cluster.toml"
    folder.mkdir()
    cluster = new_cluster(count, peer_ports=ports[:count], http_ports=ports[count:], scheme=scheme)
    file.write_text(render_cluster_file(cluster))
    return file


def started_from(file: Path) -> Nodes:
    """The nodes of folders that were made already."""
    from raftlog.cluster.config.cluster_file import read_cluster
    from tests.cluster.nodes import QUICK

    nodes = object.__new__(Nodes)
    nodes.folder, nodes.file, nodes.cluster = file.parent, file, read_cluster(file)
    nodes.flags, nodes.running, nodes.first = dict(QUICK), {}, ""
    return nodes


@asynccontextmanager
async def running(file: Path):  # type: ignore[no-untyped-def]
    """A cluster of those folders, until the end of the block."""
    nodes = started_from(file)
    try:
        for node in nodes.cluster.node:
            await nodes.start(node.id)
        yield nodes
    finally:
        for number in list(nodes.running):
            await nodes.kill(number)


async def test_a_backup_of_a_follower_becomes_a_new_cluster(tmp_path: Path) -> None:
    """It is taken while writes go on, and its state is that of one index. The new cluster has the same digest, values
    and history there, `oldest` behind it, and a log id of its own. It has its users and tokens, but no session and no
    group of the old one, and takes writes.
    """
    async with cluster_of(3, tmp_path / "old") as nodes:
        session, last = await fill(nodes)
        follower = (await nodes.followers())[0]
        async with serve(follower) as served:
            made = answer(await run("backup", "--state-only", tmp_path / "b", url=served.url))
        assert made["index"] >= last
        assert made["log"] == follower.log_id
        assert made["state"]["xor"] == follower.machine.digest_at(made["index"]).as_hex()[1]
        old = follower.machine.digest_at(made["index"])
        assert follower.machine.session_count == len(follower.machine.consumers) == 1
        users = follower.machine.access.rows()
        assert len(users) == 4
    file = new_file(tmp_path / "new")
    rows = answer(await run("restore", tmp_path / "b", "--cluster", file, *SEGMENT))
    assert [row["after"] for row in rows] == [made["index"]] * 3
    for row in rows:
        assert check_folder(row["data"]).troubles == []
    async with running(file) as again:
        leader = await again.leader()
        assert leader.log_id == rows[0]["log"] != made["log"]
        assert leader.oldest == leader.machine.oldest == made["index"] + 1
        assert leader.machine.digest_at(made["index"]) == old
        assert leader.machine.session_count == len(leader.machine.consumers) == 0
        assert leader.machine.access.rows() == users
        late = append_block(b"once", session=session, sequence=1)
        told = await leader.submit(late, 1, deadline=deadline(), session=session, sequence=1)
        assert told.effect.result is Told.EXPIRED
        claim = encode_consumer(ConsumerCommand(ConsumerAction.CLAIM))
        await leader.submit(encode_block([BlockRecord(Operation.CONSUMER, b"new", claim)]), 1, deadline=deadline())
        group = leader.machine.consumers.get(b"new")
        assert group is not None
        assert group.next == made["index"] + 1  # not an index that no reader can read
        last = (await leader.submit(put_block(b"new", b"1"), 1, deadline=deadline())).last
        await again.all_at(last)
        assert len({node.machine.digest() for node in again.running.values()}) == 1
        item = leader.machine.get(b"k01")
        assert item is not None
        assert item.value == b"v21"
    async with running(file) as again:  # and after a restart
        await again.all_at(last)


async def test_recover_takes_the_newest_log_and_names_possible_losses(tmp_path: Path) -> None:
    """Two of three are gone: the survivor's whole log becomes a new cluster, after --yes-lose-data alone; of several
    folders the newest is taken; the old ones are byte for byte as they were."""
    async with cluster_of(3, tmp_path / "old") as nodes:
        leader = await nodes.leader()
        behind = next(number for number in nodes.running if number != leader.node_id)
        await nodes.stop(behind)
        _, last = await fill(nodes)
        digest = leader.machine.digest()
        number = leader.node_id
    folders = [tmp_path / "old" / f"node-{each}" for each in (behind, number)]
    before = {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    file = new_file(tmp_path / "new", 1)
    refused = await run("recover", *folders, "--cluster", file, *SEGMENT, ok=False)
    assert "--yes-lose-data" in refused.stderr
    assert not (tmp_path / "new" / "node-1").exists()
    done = await run("recover", *folders, "--cluster", file, "--yes-lose-data", *SEGMENT)
    assert f"Taken: {folders[1]}, its log up to entry {last}" in done.stderr
    assert f"writes after entry {last}" in done.stderr
    assert before == {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    async with running(file) as again:
        leader = await again.leader()
        assert leader.machine.digest_at(last) == digest
        assert leader.oldest == last + 1
        assert (await again.append(leader, b"on")).last > last


async def test_a_cluster_file_of_the_old_cluster_is_refused(tmp_path: Path) -> None:
    """The same log id or an old incarnation would make two logs look like one; --new-ids repairs it, once."""
    async with cluster_of(1, tmp_path / "old") as nodes:
        await fill(nodes, 3)
        async with serve(nodes.running[1]) as served:
            await run("backup", "--state-only", tmp_path / "b", url=served.url)
    file = tmp_path / "old" / "cluster.toml"
    refused = await run("restore", tmp_path / "b", "--cluster", file, ok=False)
    assert refused.exit_code == 2
    assert "is the old cluster's" in refused.stderr
    text = file.read_text()
    other = new_file(tmp_path / "new", 1)
    old = next(line for line in text.splitlines() if line.startswith("incarnation"))
    mixed = [old if line.startswith("incarnation") else line for line in other.read_text().splitlines()]
    other.write_text("\n".join(mixed))
    assert (
        "has the incarnation of the old node 1"
        in (await run("restore", tmp_path / "b", "--cluster", other, ok=False)).stderr
    )
    await run("restore", tmp_path / "b", "--cluster", other, "--new-ids", *SEGMENT)
    identity = json.loads((tmp_path / "new" / "node-1" / IDENTITY).read_text())
    assert identity["log"] in other.read_text()
    assert "something already" in (await run("restore", tmp_path / "b", "--cluster", other, ok=False)).stderr


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A small backup of a fake node."""

    async def make() -> None:
        node = FakeNode()
        for number in range(30):
            node.put(b"k%d" % number, b"v" * 50)
        async with serve(node) as served:
            await run("backup", "--state-only", tmp_path / "b", url=served.url)

    asyncio.run(make())
    return tmp_path / "b"


@pytest.mark.parametrize("words", [(), ("--node", "9")])
def test_a_refused_restore_leaves_the_cluster_file_as_it_was(
    backup: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A folder has something in it, or the file has no such node. The ids of the file may be of a running cluster, so
    `--new-ids` writes others once the folders are made."""
    file = new_file(tmp_path / "new", 1)
    (file.parent / "node-1").mkdir(exist_ok=True)
    (file.parent / "node-1" / "something").touch()
    before = file.read_bytes()
    asyncio.run(run("restore", backup, "--cluster", file, "--new-ids", *words, *SEGMENT, ok=False))
    assert file.read_bytes() == before


async def test_a_restored_cluster_with_tls_names_the_certificates_that_it_lacks(backup: Path, tmp_path: Path) -> None:
    """Those of the old cluster name its log. `raftlog up` makes new ones where there is no folder of certificates;
    none is missing where they name the new log."""
    file = new_file(tmp_path / "new", 2, "https")
    told = (await run("restore", backup, "--cluster", file, "--new-ids", "--node", 1, *SEGMENT)).stderr
    assert f"raftlog cert node 1 --cluster {file};" in told
    told = (await run("restore", backup, "--cluster", file, "--node", 2, *SEGMENT)).stderr
    assert f"raftlog cert node 2 --cluster {file};" in told
    cluster = LocalCluster(file.parent)
    assert holder_of_file(Path(cluster.tls_files("node-2").certificate)).log == cluster.cluster.cluster.log
    shutil.rmtree(file.parent / "node-1")
    told = (await run("restore", backup, "--cluster", file, "--node", 1, *SEGMENT)).stderr
    assert "cert node" not in told


def test_every_altered_byte_and_every_cut_is_found(backup: Path, tmp_path: Path) -> None:
    """One bit anywhere, the file cut anywhere, bytes behind it: damaged, with the byte; nothing is restored from it."""
    whole = backup.read_bytes()
    for position in range(len(whole)):
        with pytest.raises(BackupDamaged):
            decode(whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :])
        with pytest.raises(BackupDamaged):
            decode(whole[:position])
    with pytest.raises(BackupDamaged, match="behind the end"):
        decode(whole + b"x")
    torn = tmp_path / "torn"
    torn.write_bytes(whole[:-3])
    with pytest.raises(BackupDamaged, match=f"{torn}: cut short"):
        read_backup(torn)


def decode(data: bytes) -> BackupDecoder:
    """Taken in pieces of 1,000 bytes."""
    decoder = BackupDecoder()
    for start in range(0, len(data), 1_000):
        decoder.feed(data[start : start + 1_000])
    decoder.finish()
    return decoder


@pytest.mark.usefixtures("usual_umask")
async def test_only_its_owner_can_read_a_backup(tmp_path: Path) -> None:
    """It holds every value. The file that it takes the place of may have been open to others."""
    (tmp_path / "old").touch(0o644)
    async with serve() as served:
        await run("backup", "--state-only", tmp_path / "new", url=served.url)
        await run("backup", "--state-only", tmp_path / "old", "--force", url=served.url)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "old")] == [0o600, 0o600]


async def test_disk_check_names_a_torn_backup(tmp_path: Path) -> None:
    """0 and what it is; 1 and where it is damaged; restore refuses it with 7."""
    async with serve() as served:
        await run("backup", "--state-only", tmp_path / "b", url=served.url)
        assert (
            "is there already" in (await run("backup", "--state-only", tmp_path / "b", url=served.url, ok=False)).stderr
        )
        await run("backup", "--state-only", tmp_path / "b", "--force", url=served.url)
    told = answer(await run("disk", "check", tmp_path / "b"))
    assert told["state"] == "intact"
    data = (tmp_path / "b").read_bytes()
    (tmp_path / "b").write_bytes(data[:200] + bytes([data[200] ^ 4]) + data[201:])
    bad = await run("disk", "check", tmp_path / "b", ok=False)
    assert bad.exit_code == 1
    assert "damaged at byte" in answer(bad)["findings"][0]["what"]
    file = new_file(tmp_path / "new", 1)
    refused = await run("restore", tmp_path / "b", "--cluster", file, ok=False)
    assert refused.exit_code == 7
    assert not (tmp_path / "new" / "node-1").exists()
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


async def test_the_state_is_that_of_one_index_although_writes_go_on() -> None:
    """Every part is made while keys change and new ones come: what comes out is the state at the head's index."""
    node = FakeNode()
    for number in range(6_000):
        node.put(b"k%04d" % number, b"v" * 100)
    digest = node.machine.digest()

    async def change() -> None:
        while not node.machine._store._pins:  # it has begun
            await asyncio.sleep(0)
        for number in range(1_000):  # the walk passes over these, and makes no part of them
            node.put(b"later %04d" % number, b"new")
        for number in range(2_000):
            node.put(b"k%04d" % number, b"new")
            await asyncio.sleep(0)

    async with serve(node) as served:
        task = asyncio.create_task(change())
        reply = await ask(served.port, "GET", "/v1/backup")
        task.cancel()
    decoder = decode(reply.body)
    assert decoder.head is not None
    assert decoder.head.digest.count == 6_000
    assert decoder.head.digest == node.machine.digest_at(decoder.head.index)
    assert decoder.parts > 6
    assert digest != node.machine.digest()


async def test_one_backup_at_a_time_and_only_after_the_barrier() -> None:
    """A second one is refused as busy (limits.backups_max). A linearizable one waits for the barrier, a stale one does
    not. One that takes longer than limits.backup_max_ms is cut off, and its end is missing.
    """
    node = FakeNode()
    async with serve(node) as served:
        node.barrier_held = asyncio.Event()
        first = asyncio.create_task(ask(served.port, "GET", "/v1/backup"))
        await wait_until_async(lambda: node.barriers == 1)
        refused = await ask(served.port, "GET", "/v1/backup")
        assert (refused.status, refused.problem().code) == (429, "busy")
        node.barrier_held.set()
        decode((await first).body)
        decode((await ask(served.port, "GET", "/v1/backup?consistency=stale")).body)
        assert node.barriers == 1
    async with serve(FakeNode(), backup_max_ms=0) as served:
        with pytest.raises((BackupDamaged, BadResponse, OSError)):
            decode((await ask(served.port, "GET", "/v1/backup")).body)


def test_limits_of_parts_and_attempts() -> None:
    """A part over PART_BYTES_MAX is neither made nor taken; after ATTEMPTS_MAX broken streams the client gives up."""
    encoder = BackupEncoder()
    begin = encoder.begin(BackupHead("0" * 32, 1, 1, 1, 1, SetDigest(), 0))
    for part in (b"", bytes(PART_BYTES_MAX + 1)):
        with pytest.raises(ValueError, match="a part of"):
            encoder.part(part)
    long, _ = encode_chunk(bytes(PART_BYTES_MAX + 1), 0)
    with pytest.raises(BackupDamaged, match=f"{PART_BYTES_MAX} is the most"):
        decode(begin + long)
    cursor = BackupCursor()
    for _ in range(ATTEMPTS_MAX):
        cursor.request()
        assert cursor.feed(begin)[0].is_first
        with pytest.raises(BadStream, match="cut short"):
            cursor.end()
    with pytest.raises(Unavailable, match="5 times, the last time so: cut short"):
        cursor.request()
