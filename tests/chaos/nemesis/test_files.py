"""Damage hits one bit of the right place, a majority of disks stays intact, and deployments fit their faults."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from raftlog.chaos.deploy.deployment import Deployment
from raftlog.chaos.deploy.disk_account import DiskAccount
from raftlog.chaos.nemesis import NEMESES, files
from raftlog.chaos.nemesis.damage import MARK, SLOT_AT, SLOT_BYTES, Area, flip, truncate
from raftlog.chaos.nemesis.fault import Field
from tests.raft.wal.journal_driver import written_log
from tests.support import free_ports

OLD, NEW = "shard-0/log/00000000000000000001.seg", "shard-0/log/00000000000000000040.seg"
SLOT = bytes(range(SLOT_BYTES))
FILES = {
    "identity.json": b'{"format": 1}',
    "shard-0/hard_state": SLOT.ljust(SLOT_AT[1], b"\0") + SLOT.ljust(SLOT_AT[1], b"\0"),
    OLD: b"e" * 500 + MARK + b"m" * 32 + bytes(464),
    OLD.replace(".seg", ".idx"): b"i" * 64,
    OLD.replace(".seg", ".ledger"): b"l" * 64,
    NEW: b"e" * 100 + (MARK + b"m" * 32) * 2 + b"e" * 128 + MARK + b"m" * 32 + b"t" * 164 + bytes(500),
    NEW.replace(".seg", ".idx"): b"i" * 64,
    NEW.replace(".seg", ".ledger"): b"l" * 64,
    "shard-0/log/spare-1": bytes(1000),
    "shard-0/snapshots/00000000000000000030/meta": b"s" * 40,
    "shard-0/snapshots/00000000000000000050.new/meta": b"s" * 40,
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder: two segments, the newer with a mark and a tail, two equal slots, a snapshot and a half one."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def changes(data: Path) -> list[tuple[str, int, int]]:
    """What differs from before: file, byte, and the bits of it."""
    return [
        (name, at, one ^ other)
        for name, content in FILES.items()
        for at, (one, other) in enumerate(zip(content, (data / name).read_bytes(), strict=False))
        if one != other
    ]


PLACES: list[tuple[Area, set[str], tuple[int, int]]] = [
    ("mark", {NEW}, (100, 172)),
    ("log", {NEW}, (0, 300)),
    ("history", {OLD}, (0, 536)),
    ("ledger", {OLD.replace(".seg", ".ledger")}, (0, 64)),
    ("index", {OLD.replace(".seg", ".idx"), NEW.replace(".seg", ".idx")}, (0, 64)),
    ("snapshot", {"shard-0/snapshots/00000000000000000030/meta"}, (0, 40)),
    ("identity", {"identity.json"}, (0, 13)),
]


@pytest.mark.parametrize(("area", "names", "between"), PLACES)
@pytest.mark.parametrize("seed", range(10))
def test_a_flip_is_one_bit_where_it_must_be_noticed(
    data: Path, area: Area, names: set[str], between: tuple[int, int], seed: int
) -> None:
    """Exactly one bit of one file of that kind flips. In the newest segment it lies below the newest durable mark, in
    an older mark or beside it, as asked. In a sealed segment it lies in the entries, never in a file that is still
    being written.
    """
    hit = flip(data, area, Random(seed))
    assert hit is not None
    ((name, at, bits),) = changes(data)
    assert name in names
    assert hit.file == data / name
    assert between[0] <= at < between[1]
    assert area != "log" or not 100 <= at < 172, "the next start writes an old mark again"
    assert bits.bit_count() == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_flip_of_the_newest_bytes_differs_from_every_torn_write(tmp_path: Path, seed: int) -> None:
    """Behind the newest durable mark, in an intact entry, and something follows it in its sector."""
    driver, entries = written_log()
    (tmp_path / "shard-0/log").mkdir(parents=True)
    content = driver.files.content()
    for name, data in content.items():
        (tmp_path / "shard-0" / name).write_bytes(data)
    hit = flip(tmp_path, "newest", Random(seed))
    assert hit is not None
    before, after = content[str(hit.file.relative_to(tmp_path / "shard-0"))], hit.file.read_bytes()
    ((at, bits),) = [(i, one ^ other) for i, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    assert before.index(entries[-1].header) <= at < driver.journal.active.end
    assert bits.bit_count() == 1
    sector_end = (at // 512 + 1) * 512
    assert after[at] > before[at] or any(before[at + 1 : sector_end])


@pytest.mark.parametrize("seed", range(10))
def test_the_hard_state_is_hit_in_both_slots_or_in_one_of_two_equal_ones(data: Path, seed: int) -> None:
    """Both: one bit in each. One: only as long as the other says the same, else a vote could be taken back."""
    assert flip(data, "hard-state", Random(seed)) is not None
    assert [at // SLOT_AT[1] for _, at, _ in changes(data)] == [0, 1]
    assert flip(data, "hard-state-slot", Random(seed)) is None, "the slots differ by now"
    (data / "shard-0/hard_state").write_bytes(FILES["shard-0/hard_state"])
    assert flip(data, "hard-state-slot", Random(seed)) is not None
    assert len(changes(data)) == 1


@pytest.mark.parametrize("area", ["log", "hard-state", "identity"])
def test_a_truncation_removes_durable_bytes(data: Path, area: Area) -> None:
    """The file ends before something that was promised: below the mark, in the first slot, within the identity."""
    hit = truncate(data, area, Random(1))
    assert hit is not None
    size = hit.file.stat().st_size
    assert size < {"log": 300, "hard-state": SLOT_BYTES, "identity": 13}[area]
    assert changes(data) == []


def test_a_missing_file_is_not_damaged(data: Path) -> None:
    """Without a mark nothing of the newest segment is known to be durable; without a sealed segment there is none."""
    (data / NEW).write_bytes(b"e" * 300 + bytes(700))
    assert flip(data, "log", Random(1)) is None
    (data / OLD).unlink()
    assert flip(data, "history", Random(1)) is None


@given(voters=st.integers(1, 9), losses=st.lists(st.integers(1, 9), max_size=12))
def test_a_majority_of_disks_stays_intact(voters: int, losses: list[int]) -> None:
    """However disks are lost one after the other, as long as the account allows it: more than half of all are whole;
    what it refuses would be too many; a replaced disk counts again."""
    account, everyone = DiskAccount(), list(range(1, voters + 1))
    for node in losses:
        if node > voters:
            continue
        refusal = account.refusal(node, everyone)
        gone = {*account.lost, node}
        assert (refusal is None) == (2 * (voters - len(gone)) > voters)
        if refusal is None:
            account.lose(node, "wiped")
    if account.lost:
        first = min(account.lost)
        account.replaced(first)
        assert account.refusal(first, everyone) is None


def test_a_deployment_has_proxies_for_spare_numbers(tmp_path: Path) -> None:
    """Spare numbers have addresses and proxies from the beginning, and every node dials them through its own proxies. A
    node's start options hold until it is prepared again.
    """
    deployment = Deployment(tmp_path / "nodes", free_ports, nodes=3, spares=1)
    assert (deployment.first_nodes, deployment.spares, deployment.cluster.nodes) == ([1, 2, 3], [4], [1, 2, 3])
    assert set(deployment.dial_of(1)) == {2, 3, 4}
    assert set(deployment.dial_of(4)) == {1, 2, 3}
    assert f'dial.4 = "{deployment.peer_address(1, 4)}"' in deployment.cluster.settings_file(1).read_text()
    assert list(deployment.dial) == [1, 2, 3]
    deployment.prepare(1, LD_PRELOAD="a.so", X="1")
    assert deployment.cluster.environments[1] == {"LD_PRELOAD": "a.so", "X": "1"}
    deployment.prepare(1)
    assert deployment.cluster.environments[1] == {}
    deployment.close()


def test_faults_that_lose_disks_or_change_members_are_heavy() -> None:
    """It takes several starts of a node, so beside others it comes less often; and it has its lane to itself."""
    families = {name: each for name, each in NEMESES.items() if each.is_heavy}
    assert {"flip-log", "wiped-disk", "rolled-back-disk", "member-added", "clock-forward"} <= set(families)
    assert {each.lane for each in families.values()} == {"process"}
    assert not {"kill-leader", "pause-leader", "sync-error", "power-cut-all"} & set(families)


@pytest.mark.parametrize(
    ("logged", "is_right"), [("peer_refuses_this_node", True), ("healing", True), ("serving", False)]
)
def test_a_disk_that_lost_its_promises_must_log_from_its_start_on_that_it_has_no_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: str, is_right: bool
) -> None:
    """It is refused by a peer, or it heals. What an earlier disk of that number has logged does not count."""
    log = tmp_path / "node-1.log"
    log.write_text('{"event":"peer_refuses_this_node"}\n{"event":"healing"}\n')

    def start(node: int) -> None:
        with log.open("a") as file:
            file.write(f'{{"event":"{logged}"}}\n')

    cluster = SimpleNamespace(
        log_file=lambda node: log, start_node=start, pid=lambda node: 1, status=lambda node: "it serves"
    )
    monkeypatch.setattr(files, "REFUSED_S", 0.0)
    deployment: Any = SimpleNamespace(cluster=cluster)
    field = Field(deployment, 1, Random(1))
    files._must_have_no_vote(field, 1, "wiped and formatted again", files.REFUSED, files.HEALING)
    assert (field.problems == []) is is_right
