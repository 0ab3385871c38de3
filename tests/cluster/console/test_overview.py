"""Overview and Explain in a real Chromium, over real nodes: a killed node, a leader that moves, a partition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from raftlog import SyncClient
from raftlog.chaos.deploy.deployment import Deployment
from raftlog.chaos.nemesis.fault import peers
from raftlog.chaos.sim.network import topologies
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.raft.codec.block import BlockRecord, encode_block
from raftlog.statemachine.access.admission import encode_admission
from raftlog.statemachine.commands import Operation
from tests.browser import held, page
from tests.cluster.console.sending import log_in, nodes_in
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import AccessWorld
from tests.support import free_ports

pytestmark = pytest.mark.serial

SCRIPT = '<script>document.title="broken"</script>'


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes with some records, and a group that has read none."""
    with nodes_in(tmp_path_factory.mktemp("overview"), 3) as nodes:
        with SyncClient(nodes.urls, deadline_s=30) as client:
            client.consumer("billing").claim(owner="host-1")
            client.put(b"hall/1", b"20 degrees")
        yield nodes


@pytest.fixture
def cluster(nodes: LocalCluster) -> LocalCluster:
    """The same, all of them running."""
    nodes.restore()
    return nodes


def state_of(shown: Page) -> Any:
    """What `expect` asks of the sentence at the top."""
    return expect(shown.get_by_label("State of the cluster"))


def card(shown: Page, node: int) -> Any:
    """The card of that node."""
    return shown.locator("article.node").filter(has_text=f"Node {node}")


def gone(shown: Page) -> Any:
    """What says that the node of this page does not answer."""
    return shown.get_by_role("alert").filter(has_text="does not answer")


def test_one_look_says_which_node_leads_that_all_is_well_and_what_the_last_entry_was(
    cluster: LocalCluster, browser: Browser
) -> None:
    """Sentence, leader's card, key and value of the newest record, legends with the newest values; an event's words at
    its mark. The history comes whole once, then row by row. Then a follower and the shown node are killed: the values
    of the one say how old they are, the page of the other says since when it is gone and where the rest is."""
    leader = cluster.leader()
    killed = next(node for node in cluster.nodes if node != leader)
    asked: list[str] = []
    with page(browser, cluster.url(leader)) as shown, page(browser, cluster.url(killed), allowed="ERR_") as other:
        shown.on("request", lambda request: asked.append(request.url))
        state_of(shown).to_contain_text(f"Node {leader} leads")
        state_of(shown).to_contain_text("Nothing is wrong")
        expect(shown).to_have_title(f"raftlog: node {leader}")
        expect(card(shown, leader).locator(".role")).to_have_text("leader")
        expect(shown.get_by_label("Newest events")).to_contain_text("became leader")
        expect(shown.get_by_role("alert")).to_have_count(0)
        expect(shown.locator(".newest")).to_contain_text("hall/1")
        expect(shown.locator(".newest")).to_contain_text("20 degrees")
        expect(shown.locator(".newest time")).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:"))
        for member in set(cluster.nodes) - {leader}:
            expect(card(shown, member)).to_contain_text(re.compile(r"free of .* GB"))
        expect(shown.locator("figure", has_text="Memory of the process").locator(".legend")).to_contain_text(
            re.compile(r"\d MB")
        )
        # Which events share a mark depends on where a second ends, so the words are those of the mark itself.
        words = (
            shown.get_by_label("Events over time")
            .get_by_role("button")
            .first.evaluate("mark => { mark.focus(); return mark.getAttribute('aria-label'); }")
        )
        assert re.match(r"\d\d:\d\d:\d\d [a-z]", words), words
        expect(shown.locator(".told")).to_have_text(words)
        expect(card(other, leader).locator(".role")).to_have_text("leader")
        expect(shown.locator(".aged")).to_have_count(0)

        cluster.kill(killed)
        expect(card(shown, killed).locator(".role")).to_have_text("not reached")
        expect(card(shown, killed).locator(".aged").first).to_contain_text(re.compile(r"\d s old"))
        state_of(shown).to_contain_text(f"node {leader} does not reach node {killed}")
        state_of(shown).to_contain_text("See whether that node runs")
        expect(shown).to_have_title(f"▲ trouble, raftlog: node {leader}")

        expect(gone(other)).to_contain_text(f"Node {killed} does not answer")
        expect(gone(other).locator("time")).to_have_count(1)
        expect(gone(other).get_by_role("link")).to_have_count(2)
        expect(gone(other).get_by_role("link", name=f"node {leader}")).to_have_attribute("href", cluster.url(leader))
        expect(other).to_have_title(f"■ no answer, raftlog: node {killed}")
        cluster.start_node(killed)
        expect(gone(other)).to_have_count(0)
        state_of(other).to_contain_text(f"Node {leader} leads")
        expect(card(shown, killed).locator(".role")).to_have_text("follower")
    targets = [each.partition("/v1/")[2] for each in asked]
    whole = [each for each in targets if each.startswith("history") and "rows=" not in each]
    assert len(whole) <= 1
    assert "overview" in targets
    assert not [each for each in targets if each.startswith(("status", "members", "explain"))]


def test_explain_draws_the_links_the_steps_of_a_record_and_the_readers(cluster: LocalCluster, browser: Browser) -> None:
    """With a leader: open ways and five steps that are done. A record that is not there, and words that are no index,
    say why. Without a majority the picture has cut ways, and the page still answers."""
    leader = cluster.leader()
    with page(browser, f"{cluster.url(leader)}/#/explain") as shown:
        expect(shown.get_by_role("img")).to_have_attribute("aria-label", re.compile("needs the votes of 2 of the 3"))
        expect(shown.locator(".way")).to_have_count(4)
        expect(shown.locator(".way.cut")).to_have_count(0)
        expect(shown.locator(".steps .done")).to_have_count(5)
        expect(shown.locator(".steps")).to_contain_text("on 3 of 3 voters")
        expect(shown.locator(".bar-row")).to_contain_text(["oldest", "billing"])
        expect(shown.get_by_role("link", name="All about record")).to_be_visible()
        for wrong, words in (("900719925474099", "not in this node's log"), ("x", "must be a whole number")):
            shown.get_by_label("Index of a record").fill(wrong)
            shown.get_by_role("button", name="Show").click()
            expect(shown.get_by_role("alert").filter(has_text=words)).to_be_visible()
        cluster.kill(*(node for node in cluster.nodes if node != leader))
        expect(shown.locator(".way.cut")).to_have_count(4)
        expect(shown.get_by_text("So it cannot be elected, and cannot elect.")).to_be_visible()
        expect(shown.get_by_role("heading", name="Why there is no leader")).to_be_visible()
        state_of(shown).to_contain_text("There is no leader")
        expect(shown).to_have_title(f"▲ no leader, raftlog: node {leader}")


def test_a_user_without_the_grant_sees_the_members_and_what_is_missing(browser: Browser) -> None:
    """The card of each member and the newest record as far as the user may see them; the missing grants have their
    names, and markup in a value is text."""
    world = AccessWorld()
    users = {"ada": world.user("ada", "read on log", "read on keys:*"), "bob": world.user("bob")}
    admission = encode_admission(world.node.machine.access.admission("root"))
    record = BlockRecord(int(Operation.PUT), b"hall/1", SCRIPT.encode())
    world.node.submit_now((encode_block((record,), admission=admission), 1))
    with held(serve(world.node)) as served, page(browser, served.url) as shown:
        for user, newest in (("ada", SCRIPT), ("bob", "the grant is missing: read on log")):
            log_in(shown, users[user].text)
            expect(shown.get_by_role("alert")).to_contain_text("watch on cluster")
            expect(shown.locator("article.node")).to_have_count(1)
            expect(shown.locator(".newest")).to_contain_text(newest)
            shown.get_by_role("button", name="Log out").click()


ROWS = """async () => {
  const { Rows, marks, span } = await import("/console/charts.js");
  const answer = (end, values, step_s = 1) => ({ step_s, end_ms: end * 1000, columns: { writes: values } });
  const rows = new Rows();
  const seen = [];
  const take = (few, step = 1) => {
    const lacks = rows.lacks(step, few);
    if (!lacks) rows.go(few);
    seen.push(lacks ? "all" : rows.kept.columns.writes.join());
  };
  take(answer(100, [1, 2, 3]));
  rows.begin(answer(100, [1, 2, 3]));
  take(answer(102.1, [2, 3, 4, 5]));
  take(answer(102.2, [4, 5]));
  take(answer(110, [9, 9]));
  take(answer(50, [1]));
  take(answer(103, [6]), 60);
  rows.begin(answer(200, Array(600).fill(0)));
  seen.push(rows.go(answer(201, [0, 7])).columns.writes.length);
  const shown = span(answer(200, [1, 1]));
  const event = (s, level) => ({ time_ms: s * 1000, level, event: "x", fields: {} });
  const found = marks([event(199, "info"), event(199.1, "error"), event(150, "warning"), event(10, "error")], shown);
  seen.push(found.map((each) => `${each.level}x${each.events.length}`).join());
  return seen;
}"""


def test_new_rows_of_the_history_follow_the_old_ones_and_a_gap_brings_all(browser: Browser) -> None:
    """No row is missing or there twice, and 600 stay at most. After more time than the few rows cover, with a clock
    that was set back, or for minutes, all are asked for. Events of one place are one mark of the worst level."""
    with held(serve()) as served, page(browser, served.url) as shown:
        assert shown.evaluate(ROWS) == ["all", "1,2,3,4,5", "1,2,3,4,5", "all", "all", "all", 600, "1x1,2x2"]


def test_a_value_between_empty_seconds_is_drawn(browser: Browser) -> None:
    """A line has two ends, so a second with requests between seconds without any is a point."""
    with held(serve()) as served, page(browser, served.url) as shown:
        script = "async () => (await import('/console/charts.js')).lone([1, null, 2, 3, null, null, 4, null, 0])"
        assert shown.evaluate(script) == [0, 6, 8]


@pytest.mark.long
def test_the_page_follows_a_leader_that_moves(cluster: LocalCluster, browser: Browser) -> None:
    """By a transfer, and by the end of the leader: each time the page of a third node names the new one."""
    leader = cluster.leader()
    stays, other = (node for node in cluster.nodes if node != leader)
    with page(browser, cluster.url(stays)) as shown, SyncClient(cluster.urls, deadline_s=30) as client:
        expect(card(shown, leader).locator(".role")).to_have_text("leader")
        client.transfer_leadership(other)
        expect(card(shown, other).locator(".role")).to_have_text("leader")
        state_of(shown).to_contain_text(f"Node {other} leads")
        cluster.kill(other)
        state_of(shown).to_contain_text(re.compile(f"Node [{leader}{stays}] leads"))
        expect(card(shown, other).locator(".role")).to_have_text("not reached")
        expect(shown.get_by_label("Newest events")).to_contain_text(re.compile("became (follower|leader)"))


@pytest.mark.long
@pytest.mark.toxiproxy
def test_a_partition_is_drawn_as_the_node_on_its_side_sees_it(
    tmp_path: Path, toxiproxy_path: Path, browser: Browser
) -> None:
    """All links of one follower are cut: its page has no leader and cut ways, that of the leader names the follower.
    Once they are whole again both say that nothing is wrong."""
    with Deployment(tmp_path / "nodes", free_ports, nodes=3) as deployment:
        deployment.start()
        cluster = deployment.cluster
        leader = cluster.leader()
        alone = next(node for node in cluster.nodes if node != leader)
        proxies = peers(topologies.alone(cluster.nodes, alone))
        with page(browser, cluster.url(leader)) as shown, page(browser, f"{cluster.url(alone)}/#/explain") as cut:
            state_of(shown).to_contain_text("Nothing is wrong")
            state_of(cut).to_contain_text(f"Node {leader} leads")
            for proxy in proxies:
                deployment.toxiproxy.disable(proxy)
            state_of(cut).to_contain_text("There is no leader")
            expect(cut.locator(".way.cut")).to_have_count(4)
            state_of(shown).to_contain_text(f"does not reach node {alone}")
            for proxy in proxies:
                deployment.toxiproxy.enable(proxy)
            state_of(shown).to_contain_text("Nothing is wrong")
            state_of(cut).to_contain_text("Nothing is wrong")
