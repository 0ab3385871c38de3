"""A sink's store equals the log, through kills at each step, lost answers, restored stores and a second runner."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path

import msgspec
import pytest

from raftlog import KeyWrite, NewRecord
from raftlog.cluster.api.consumers import ConsumerMoved
from raftlog.cluster.api.errors import Code
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.consumers import SyncConsumer
from raftlog.cluster.client.errors import OutcomeUnknown
from raftlog.cluster.sinks import runner
from raftlog.cluster.sinks.changes import StorePosition, StoreRow
from raftlog.cluster.sinks.kept_files import Rejects, RunPhase, RunStateFile
from raftlog.cluster.sinks.runner import SinkRun, SinkStep, SinkStopped
from raftlog.cluster.sinks.settings import SinkSettings, SqliteSettings
from raftlog.cluster.sinks.store import StoreUnavailable
from raftlog.cluster.sinks.verify import verify
from tests.cluster.fake_node import FakeNode
from tests.cluster.importer.jobs import Killed
from tests.cluster.sinks.model_store import Kept, ModelServer, ModelStore, SendingModelStore
from tests.support import HANG_S, wait_until

KEYS = {"keys": "k/"}
COLUMNS = {"id": "suffix", "n": "value.n:bigint", "version": "version"}


class AtStep:
    """Acts when a run reaches a step, at some of the times that it does."""

    def __init__(self, step: SinkStep, act: Callable[[], object], *times: int) -> None:
        self.step, self.act, self.times = step, act, times
        self.seen = 0

    def __call__(self, reached: SinkStep) -> None:
        """For the argument `at` of a run."""
        if reached is self.step:
            self.seen += 1
            if self.seen in self.times:
                self.act()


def die() -> None:
    """Ends the run as a kill would."""
    raise Killed


class Bench:
    """One sink over a model store, which outlives its runs."""

    def __init__(self, client: SyncClient, folder: Path, **more: object) -> None:
        given = {"from": KEYS, "columns": COLUMNS, "primary_key": ["id"], "path": "", "table": ""} | more
        self.sink: SinkSettings = _converted(given)
        self.client, self.folder = client, folder
        self.store = ModelServer()
        self.kind = ModelStore
        self.said: list[str] = []

    def made(self, at: Callable[[SinkStep], None] = lambda _: None, stop: threading.Event | None = None) -> SinkRun:
        """A run, as another process would make it."""
        rejects = Rejects(self.folder / "s.rejected")
        store, tell = self.kind(self.store), self.said.append
        return SinkRun("s", self.sink, store, self.client, rejects, at=at, tell=tell, stop=stop)

    def run(self, **more: int) -> SinkRun:
        """A run to the end of the log."""
        made = self.made()
        made.run(once=not more, **more)
        return made

    @property
    def rows(self) -> dict[StoreRow, StoreRow]:
        """What the store has."""
        return self.store.kept.rows

    def check(self) -> None:
        """The store equals the log, as `raftlog sink verify` sees it."""
        found = verify("s", self.sink, ModelStore(self.store), self.client)
        assert found.is_same, found
        assert found.unproven is None


def _converted(given: dict[str, object]) -> SinkSettings:
    return msgspec.convert(given, SqliteSettings)


@contextmanager
def running(made: Callable[..., SinkRun]) -> Iterator[SinkRun]:
    """The run that `made` makes, in a thread of its own until the end."""
    stop = threading.Event()
    run = made(stop=stop)
    thread = threading.Thread(target=run.run)
    thread.start()
    try:
        yield run
    finally:
        stop.set()
        thread.join(HANG_S)
        assert not thread.is_alive()


def fill(
    client: SyncClient, count: int, seed: int = 1, value: Callable[[int], bytes] = lambda number: b'{"n": %d}' % number
) -> None:
    """Puts and deletes of a few keys, records of others, and a transaction; in few requests."""
    chance = random.Random(seed)
    keys: list[tuple[bytes, bytes | None]] = []
    others = [NewRecord(b"a record")]
    for number in range(count):
        key = b"k/%d" % chance.randrange(9)
        keys.append((key, None if chance.random() < 0.2 else value(number)))
        if chance.random() < 0.3:
            keys.append((b"other/%d" % number, b"no JSON"))
            others.append(NewRecord(b"a record"))
    session = client.open_session().session
    client.call(requests.write_batch(session, 1, [KeyWrite(at, *each, None) for at, each in enumerate(keys, 1)]))
    client.append_many(others)
    client.delete_range(b"k/7", b"k/9")


def expected(client: SyncClient) -> dict[StoreRow, StoreRow]:
    """The rows by the store of the cluster itself."""
    found = {}
    for item in client.range(prefix=b"k/"):
        name = item.key.decode().removeprefix("k/")
        found[(name,)] = (name, json.loads(item.value)["n"], item.version)
    return found


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, so that few records make many batches; no pauses, and every batch is reported."""
    monkeypatch.setattr(runner, "PAGE_RECORDS", 3)
    monkeypatch.setattr(runner, "REPORT_S", 0.0)
    monkeypatch.setattr(runner, "RETRY_MAX_S", 0.01)


STARTS = ("oldest", "state")
STEPS = [*SinkStep][:5]  # those of a run


@pytest.mark.parametrize("start", STARTS)
def test_a_lost_connection_before_or_after_a_commit_changes_nothing(
    client: SyncClient, tmp_path: Path, start: str
) -> None:
    """After a lost answer the position says where to go on: no change comes twice."""
    fill(client, 60)
    bench = Bench(client, tmp_path, start=start)
    bench.store.lose = ["before", "after", "", "after", "before", "after"]
    run = bench.run()
    assert bench.rows == expected(client)
    assert run.progress.error == ""
    assert any("the answer was lost; trying again" in each for each in bench.said)


def test_a_store_that_was_restored_goes_back_and_says_so(client: SyncClient, tmp_path: Path) -> None:
    """Its position went back with its rows, so the log gives again what it lacks; the group follows."""
    fill(client, 30)
    bench = Bench(client, tmp_path)
    bench.run()
    backup = deepcopy(bench.store.kept)
    fill(client, 30, seed=2)
    with running(bench.made):
        wait_until(lambda: bench.rows == expected(client), 20, what="the store to follow")
        backup.generation = bench.store.kept.generation
        bench.store.kept = backup
        client.put(b"k/1", b'{"n": 5}')
        wait_until(lambda: bench.rows == expected(client), 20, what="the restored store to follow")
    assert any("it was restored from an older state" in each for each in bench.said)
    bench.check()


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_store_with_more_than_the_log_stops(client: SyncClient, tmp_path: Path, is_fenced: bool) -> None:
    """The cluster was restored from a backup that is older than the store. Before, a run with `once` ended as if all
    were well, and the next records under the store's indexes were left out. Claims are entries of the log, so the
    newest one that the store knows may be lost too: no other runner has taken over."""
    bench = Bench(client, tmp_path)
    fill(client, 10)
    bench.run()
    position = bench.store.kept.position
    assert position is not None
    bench.store.kept.position = StorePosition(position.next + 100)
    if is_fenced:
        bench.store.kept.generation = position.next + 50
    with pytest.raises(
        SinkStopped, match=r"the log ends with .*: the cluster was restored from a backup.* sink rebuild"
    ):
        bench.run()


@pytest.mark.parametrize("start", ["oldest", "newest"])
def test_a_store_that_was_emptied_is_filled_again_or_stops(client: SyncClient, tmp_path: Path, start: str) -> None:
    """By a later runner, which knows from the group how far the store was. `newest` would leave out what it lacks."""
    bench = Bench(client, tmp_path, start=start)
    bench.run()
    fill(client, 30)
    bench.run()
    bench.store.kept = Kept(generation=bench.store.kept.generation)
    if start == "newest":
        with pytest.raises(SinkStopped, match=r"s: the store was at index \d+, and has no position any more: start"):
            bench.run()
        return
    bench.run()
    assert any("it was emptied, and is filled again" in each for each in bench.said)
    assert bench.rows == expected(client)


def test_a_second_runner_fences_the_first(client: SyncClient, tmp_path: Path) -> None:
    """The first one stops, also if it slept through the take-over; nothing is written twice."""
    fill(client, 10)
    bench = Bench(client, tmp_path)
    taken = False

    def take_over(step: SinkStep) -> None:
        nonlocal taken
        if step is SinkStep.MAPPED and not taken:
            taken = True
            bench.run()
            client.put(b"k/1", b'{"n": 1000}')

    with pytest.raises(SinkStopped, match="another runner has taken over"):
        bench.made(take_over).run(once=True)
    bench.run()
    assert bench.rows == expected(client)


@pytest.mark.parametrize("is_late", [True, False])
def test_an_own_claim_that_comes_late_does_not_stop_a_run(
    client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """A claim without an answer takes effect behind the next one: the run claims once more. It stops for another
    process of the same name, as two containers may have it: they would take the sink from each other for ever."""
    fill(client, 10)
    bench = Bench(client, tmp_path)
    claim = SyncConsumer.claim
    claims = 0

    def claimed(group: SyncConsumer, *, owner: str = "", start: int | None = None) -> ConsumerMoved:
        nonlocal claims
        claims += 1
        if is_late and claims == 1:
            raise OutcomeUnknown(Code.LEADER_LOST, "the leader was lost")
        return claim(group, owner=owner, start=start)

    monkeypatch.setattr(SyncConsumer, "claim", claimed)
    come_late = AtStep(SinkStep.MAPPED, lambda: claim(client.consumer("sink/s"), owner="a run"), 1)
    rejects = Rejects(tmp_path / "s.rejected")
    run = SinkRun("s", bench.sink, ModelStore(bench.store), client, rejects, owner="a run", at=come_late)
    if is_late:
        run.run(once=True)
        fill(client, 10, seed=2)
        come_late.seen = 0
    with pytest.raises(SinkStopped, match="another runner has taken over"):
        run.run(once=True)
    assert claims == (3 if is_late else 1)
    bench.run()
    assert bench.rows == expected(client)


@pytest.mark.parametrize("kind", [ModelStore, SendingModelStore])
@pytest.mark.parametrize("start", STARTS)
def test_the_group_follows_the_store_and_holds_the_log(
    client: SyncClient, tmp_path: Path, kind: type[ModelStore], start: str
) -> None:
    """It shows the lag under the sink's name, and never passes a store that carries out its batches late."""
    fill(client, 10)
    bench = Bench(client, tmp_path, start=start)
    bench.kind = kind
    passed: list[int] = []

    def look(step: SinkStep) -> None:
        position = bench.store.kept.position
        there = client.consumer("sink/s").status().position.next["0"]
        if step is SinkStep.REPORTED and (position is None or position.next < there):
            passed.append(there)

    run = bench.made(look)
    run.run(once=True)
    assert not passed
    group = client.consumer("sink/s").status()
    assert run.progress.position is not None
    assert group.position.next["0"] == run.progress.position.next
    assert group.lag == 0


@pytest.mark.parametrize(
    ("more", "choice"),
    [
        ({"start": "state"}, r"\): raftlog sink rebuild s fills it from the state of the keys, or drop it"),
        ({"start": "oldest"}, r'\): set start = "state", then raftlog sink rebuild s fills it again, or drop it'),
        ({"from": {"records": ""}, "columns": {"id": "index"}}, r"\): set start = \d+ to have what the log has, then"),
    ],
)
def test_a_trimmed_log_stops_the_sink_with_the_choices(
    client: SyncClient, node: FakeNode, tmp_path: Path, more: dict[str, object], choice: str
) -> None:
    """There is never a silent jump, and each choice is one that `sink rebuild` takes."""
    fill(client, 10)
    bench = Bench(client, tmp_path, **more)
    bench.run()
    fill(client, 10)
    node.oldest = node.applied
    with pytest.raises(SinkStopped, match=rf"needs the log from index \d+ on, and that is trimmed .*{choice}"):
        bench.run()


def test_a_record_that_does_not_fit_stops_the_sink(client: SyncClient, tmp_path: Path) -> None:
    """The message names index, key, column and the choices; everything before the record is written."""
    client.put(b"k/1", b'{"n": 1}')
    index = client.put(b"k/2", b'{"n": "x"}').index
    client.put(b"k/3", b'{"n": 3}')
    bench = Bench(client, tmp_path)
    message = rf"s: index {index}, with the key k/2: n is x, which is no integer .*sink skip s {index}"
    with pytest.raises(SinkStopped, match=message):
        bench.run()
    bench.run(until=index, skip=index)
    assert set(bench.rows) == {("1",)}
    bench.run()
    assert set(bench.rows) == {("1",), ("3",)}
    assert [each.index for each in Rejects(tmp_path / "s.rejected").read()] == [index]
    with pytest.raises(SinkStopped, match=rf"is at index \d+ already, behind {index}"):
        bench.run(until=index, skip=index)


def test_rejected_records_are_kept_once_with_their_reason(client: SyncClient, tmp_path: Path) -> None:
    """Those that the mapping refuses and those that the store refuses; also if a kill repeats them."""
    client.put(b"k/1", b'{"n": "x"}')
    client.put(b"k/2", b'{"n": 2}')
    client.put(b"k/3", b'{"n": 3}')
    bench = Bench(client, tmp_path, refused="reject")
    bench.store.refuses = {("2",)}
    bench.store.lose = ["before"]
    run = bench.run()
    assert set(bench.rows) == {("3",)}
    kept = Rejects(tmp_path / "s.rejected").read()
    assert [(each.key, each.reason) for each in kept] == [
        ("k/1", "n is x, which is no integer (value.n:bigint)"),
        ("2", "refused by the test"),
    ]
    assert run.progress.rows == 1


def test_what_the_store_refuses_stops_the_sink(client: SyncClient, tmp_path: Path) -> None:
    """And nothing of its batch is written."""
    client.put(b"k/1", b'{"n": 1}')
    bench = Bench(client, tmp_path)
    bench.store.refuses = {("1",)}
    with pytest.raises(SinkStopped, match=r"s: index 4, key 1: refused by the test\. Correct the settings"):
        bench.run()
    assert bench.rows == {}


@pytest.mark.parametrize("start", ["newest", 5])
def test_a_sink_begins_where_its_settings_say(client: SyncClient, tmp_path: Path, start: str | int) -> None:
    """`newest` is what comes after the first run, also if nothing came before a kill."""
    for number in range(6):
        client.put(b"k/%d" % number, b'{"n": 1}')
    bench = Bench(client, tmp_path, start=start)
    bench.run()
    client.put(b"k/new", b'{"n": 1}')
    bench.run()
    assert set(bench.rows) == ({("new",)} if start == "newest" else {(str(key),) for key in (1, 2, 3, 4, 5, "new")})


def test_a_compacted_state_begins_again_and_says_so(client: SyncClient, tmp_path: Path) -> None:
    """The half that was loaded of an older revision goes."""
    client.put(b"before/1", b"no key of the sink")
    fill(client, 60)
    bench = Bench(client, tmp_path, start="state")
    with pytest.raises(Killed):
        bench.made(AtStep(SinkStep.WRITTEN, die, 1)).run(once=True)
    fill(client, 20, seed=3)
    client.call(requests.compact(client.range_page(b"", limit=1).revision))
    bench.run()
    assert any("is compacted: it begins again" in each for each in bench.said)
    assert bench.rows == expected(client)


def test_the_state_of_a_run_is_kept(client: SyncClient, tmp_path: Path) -> None:
    """Running, tried again with its error, stopped with its error; a run whose process has gone was killed."""
    fill(client, 10)
    bench = Bench(client, tmp_path)
    bench.store.lose = ["after"]
    seen: list[tuple[str, str]] = []
    rejects = Rejects(tmp_path / "s.rejected")
    store = ModelStore(bench.store)
    file = RunStateFile(tmp_path / "s.state")

    def keep(state: RunPhase, error: str) -> None:
        seen.append((state, error))
        file.keep(state, error)

    SinkRun("s", bench.sink, store, client, rejects, keep_state=keep).run(once=True)
    assert seen == [("retrying", "the answer was lost"), ("running", ""), ("ended", "")]
    client.put(b"k/1", b"no JSON")
    with pytest.raises(SinkStopped):
        SinkRun("s", bench.sink, store, client, rejects, keep_state=keep).run(once=True)
    found = RunStateFile(tmp_path / "s.state").read()
    assert found is not None
    assert (found.state, found.error) == seen[-1]
    assert "the value is not readable" in found.error
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone = msgspec.structs.replace(found, state="retrying", pid=process.pid)
    (tmp_path / "s.state").write_bytes(msgspec.json.encode(gone))
    assert RunStateFile(tmp_path / "s.state").read() == msgspec.structs.replace(gone, state="killed")
    (tmp_path / "s.state").write_bytes(b"torn")
    assert RunStateFile(tmp_path / "s.state").read() is None
    nowhere = RunStateFile(tmp_path / "gone" / "s.state")
    nowhere.keep("running", "")
    assert nowhere.read() is None


def test_an_idle_sink_writes_nothing(client: SyncClient, node: FakeNode, tmp_path: Path) -> None:
    """Neither into its store nor into the log: a move of a group is no reason for another one."""
    fill(client, 5)
    bench = Bench(client, tmp_path)
    bench.run()
    before, writes = node.applied, len(bench.store.writes)
    bench.run()
    assert node.applied - before <= 1  # its claim
    assert len(bench.store.writes) == writes


def test_a_store_that_is_away_is_tried_again(
    client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the sink ends when it is asked to, also while the store is away."""
    fill(client, 5)
    bench = Bench(client, tmp_path)
    bench.store.lose = ["before"] * 5
    bench.run()
    assert bench.rows == expected(client)
    stop = threading.Event()

    def away(*_: object) -> None:
        stop.set()
        raise StoreUnavailable("away")

    monkeypatch.setattr(ModelStore, "open", away)
    bench.made(stop=stop).run()


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_lose_and_double_nothing(client: SyncClient, tmp_path: Path, seed: int) -> None:
    """Kills at any step, lost answers, restored stores, second runners, and writes meanwhile, in any order."""
    chance = random.Random(seed)
    bench = Bench(client, tmp_path, start=chance.choice(STARTS))
    bench.kind = (ModelStore, SendingModelStore)[seed % 2]
    backups: list[Kept] = []
    for turn in range(14):
        fill(client, chance.randrange(1, 20), seed=100 * seed + turn)
        match chance.choice(["kill", "lose", "restore", "take over", "nothing"]):
            case "kill":
                left = chance.randrange(1, 25)

                def kill(_: SinkStep) -> None:
                    nonlocal left
                    left -= 1
                    if not left:
                        raise Killed

                with suppress(Killed):
                    bench.made(kill).run(once=True)
            case "lose":
                bench.store.lose = [chance.choice(["before", "after", ""]) for _ in range(6)]
                bench.run()
            case "restore" if backups:
                kept = deepcopy(chance.choice(backups))
                kept.generation = bench.store.kept.generation
                bench.store.kept = kept
            case "take over":
                left = chance.randrange(1, 15)

                def take_over(_: SinkStep) -> None:
                    nonlocal left
                    left -= 1
                    if not left:
                        bench.run()

                with suppress(SinkStopped):
                    bench.made(take_over).run(once=True)
            case _:
                bench.run()
        backups.append(deepcopy(bench.store.kept))
    bench.store.lose = []
    bench.run()
    assert bench.rows == expected(client)
    bench.check()
