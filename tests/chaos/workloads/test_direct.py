"""The workload of direct requests and the tracer: valid against a store in memory, and each bug of answers is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from raftlog.chaos.judge.log_truth import LogTruth
from raftlog.chaos.judge.verdicts import Verdict
from raftlog.chaos.runs.aftermath import Aftermath
from raftlog.chaos.runs.judgement import Judgement
from raftlog.chaos.runs.node_events import NodeEvent, NodeEvents, counts_of
from raftlog.chaos.workloads.direct import OVERTAKEN_MAX, DirectLog, DirectStore
from raftlog.chaos.workloads.direct_client import Direct, Reply
from raftlog.chaos.workloads.tracer import COMPACTED, Tracer
from raftlog.chaos.workloads.workload import Arena, Recorder
from raftlog.cluster.api.errors import Code, Outcome, Problem
from raftlog.cluster.api.records import Appended, LogPageJson, LogRecord
from raftlog.cluster.client.errors import OutcomeUnknown
from tests.chaos.workloads.memory_cluster import judged_alone
from tests.cluster.fake_node import serve

TERM = 1
WAIT_TURNS = 100 * OVERTAKEN_MAX


@dataclass
class MemoryNode(Direct):
    """One node that is a log in memory. `bug`: skipping, another, never, overwritten, behind, gone, asleep, or none."""

    bug: str = ""
    records: list[LogRecord] = field(default_factory=list)
    oldest: int = 1
    asked: int = 0

    async def ask(
        self,
        method: str,
        url: str,
        *,
        deadline_s: float,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """An append or a page."""
        self.asked += 1
        strikes = self.asked % 20 == 19
        await asyncio.sleep(0)
        if method == "POST":
            return self._append((data or b"").decode(), is_wrong=strikes and self.bug == "overwritten")
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        start, limit = int(query["from"]), int(query["limit"])
        if strikes and self.bug == "never":
            self.late.append(f"{url} was not answered")
            raise OutcomeUnknown(Code.TIMEOUT, "late")
        if start < self.oldest or (strikes and self.bug == "gone"):
            oldest = max(self.oldest, start + 1)
            gone = Problem(Code.COMPACTED, "gone", COMPACTED, Outcome.NOT_APPLIED, False, "1", 1, oldest=oldest)
            return Reply(COMPACTED, msgspec.json.encode(gone))
        if "wait" in query:
            await self._wait(start, is_asleep=self.bug == "asleep")
        if not await self._wait(int(query.get("min_index", 0))):
            late = Problem(Code.FUTURE_INDEX, "not there", 503, Outcome.NOT_APPLIED, True, "1", 1)
            return Reply(503, msgspec.json.encode(late))
        last = len(self.records)
        told = self.records[start - 1 : min(start - 1 + limit, last)]
        after = start + len(told)
        if strikes and told and self.bug == "skipping":
            told = told[:-2] + told[-1:] if len(told) > 2 else []
        if strikes and told and self.bug == "another":
            told = [msgspec.structs.replace(told[0], value="another"), *told[1:]]
        index = 0 if strikes and self.bug == "behind" else last
        page = LogPageJson("l", told, after, self.oldest, last, last, index, TERM)
        return Reply(200, msgspec.json.encode(page))

    async def _wait(self, index: int, *, is_asleep: bool = False) -> bool:
        """Whether that index came within some turns of the loop; one that is asleep waits for all of them."""
        for _ in range(WAIT_TURNS):
            if len(self.records) >= index and not is_asleep:
                return True
            await asyncio.sleep(0)
        return len(self.records) >= index

    def _append(self, value: str, *, is_wrong: bool) -> Reply:
        index = len(self.records) + 1
        self.records.append(LogRecord(index, TERM, 0, "commands", "append", value=value))
        if is_wrong:
            refused = Problem(Code.OVERWRITTEN, "another", 503, Outcome.NOT_APPLIED, True, "1", 1)
            return Reply(503, msgspec.json.encode(refused))
        done = Appended(Outcome.APPLIED, "applied", index, index, 1, index, TERM)
        return Reply(200, msgspec.json.encode(done))


async def judged(bug: str) -> Judgement:
    """What the harness says of some hundred requests to a node with that bug."""
    arena = Arena(seed=3, pace=0.0)
    tracer = Tracer({1: "http://n1"}, MemoryNode(bug=bug))
    workload = DirectLog(arena, Recorder(arena), tracer=tracer)
    node = tracer.direct
    assert isinstance(node, MemoryNode)
    return await judged_alone(
        workload,
        1_200,
        lambda: len(node.records),
        lambda: Aftermath([*tracer.problems, *node.late], LogTruth(node.records)),
    )


async def test_a_node_without_bugs_is_valid() -> None:
    """Reads, waiting reads and long polls of a log that grows: nothing is wrong."""
    told = await judged("")
    assert told.verdict is Verdict.VALID, (told.problems, told.workloads[0].problems, told.workloads[0].report.problems)
    assert {"append", "read"} == set(told.workloads[0].counts)


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        ("skipping", "but not index"),
        ("another", "at an index where another answer gave"),
        ("never", "was not answered"),
        ("overwritten", "failed, and its records lie at"),
        ("behind", "when it had applied 0"),
        ("gone", "is trimmed, the oldest"),
        ("asleep", "later answers from a state that it waited for"),
    ],
)
async def test_each_bug_of_answers_is_seen(bug: str, said: str) -> None:
    """One request in twenty meets it: a record passed over or changed, no answer, an applied write answered as
    overwritten, a state from before, a record answered as trimmed; or waiting requests that stay asleep."""
    told = await judged(bug)
    assert told.verdict is Verdict.INVALID
    assert said in " ".join((*told.problems, *told.workloads[0].problems)), told


async def test_a_request_without_an_answer_is_a_finding() -> None:
    """A server that takes a request and says nothing: the bound passes, and the sentence names the request. One that
    closes the connection has answered."""
    silent = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    direct = Direct(late_s=0.05)
    with pytest.raises(OutcomeUnknown):
        await direct.ask("GET", f"http://127.0.0.1:{port}/v1/log", deadline_s=0.05)
    (late,) = direct.late
    assert f"http://127.0.0.1:{port}/v1/log was not answered within" in late
    silent.set()
    with pytest.raises(OutcomeUnknown):
        await direct.ask("GET", f"http://127.0.0.1:{port}/v1/log", deadline_s=5)
    assert len(direct.late) == 1
    await direct.close()
    server.close()
    await server.wait_closed()


def test_events_are_read_from_logs_that_grow(tmp_path: Path) -> None:
    """Each whole line counts once, when it has come; other lines and a node without a log count for nothing."""
    file = tmp_path / "node-1.log"
    events = NodeEvents(Arena(seed=1), {1: file, 2: tmp_path / "node-2.log"})
    events.look()
    file.write_bytes(b'{"event":"snapshot_saved"}\n{"event":"other"}\nno JSON\n{"index":9,"event":"snapshot_in_fo')
    events.look()
    assert [(each.node, each.kind) for each in events.seen] == [(1, "snapshots saved")]
    with file.open("ab") as more:
        more.write(b'rce","level":"info"}\n')
    events.look()
    events.look()
    assert [each.kind for each in events.seen] == ["snapshots saved", "snapshots installed"]
    assert isinstance(events.seen[0], NodeEvent)
    assert {kind: count for kind, count in counts_of(events.seen).items() if count} == {
        "snapshots saved": 1,
        "snapshots installed": 1,
    }


async def test_keys_are_written_read_and_compared_at_the_routes_of_a_node() -> None:
    """The store of `direct-keys` against the routes themselves: a request that no route takes would only ever fail."""
    direct = Direct()
    async with serve() as served:
        store = DirectStore(f"http://127.0.0.1:{served.port}", direct)
        assert (await store.read("d/0/1")).value is None
        written = await store.write("d/0/1", 5)
        assert (await store.cas("d/0/1", 5, 6)).result is True
        refused = await store.cas("d/0/1", 5, 7)
        assert refused.result is False
        page = await store.read_with_index("d/0/1")
        assert ((await store.read("d/0/1")).value, page.value) == (6, 6)
        assert (written.index or 0) + 2 == refused.index == page.index
        await direct.close()
