"""The actions of the console in a real Chromium: groups, members, log, access; what each shows before and after."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from raftlog import SyncClient
from raftlog.cluster.api.access import AccessIn
from raftlog.cluster.client import access_requests
from raftlog.cluster.client.consumers import consumers
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.node.ports import free_ports
from raftlog.cluster.security.bearer import save_token
from raftlog.cluster.security.tokens import make_token
from tests.browser import held, page
from tests.cluster.console.sending import log_in, nodes_in, token_field
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import ADMIN, AccessWorld
from tests.support import HANG_S, wait_until

pytestmark = pytest.mark.serial

STRANGE = "<img src=x onerror=alert(1)> 'it' %2F/ü"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One node with 200 records."""
    with nodes_in(tmp_path_factory.mktemp("operate")) as made:
        with SyncClient(made.urls, deadline_s=30) as client:
            for number in range(200):
                client.append(b"record %d" % number)
        yield made


def action(shown: Page, name: str) -> Locator:
    """The form of an action."""
    return shown.get_by_role("region", name=name, exact=True)


def ask(shown: Page, name: str) -> Locator:
    """Presses the button of an action, and returns the action once its confirmation can be answered."""
    found = action(shown, name)
    found.get_by_role("button", name=f"{name} …").click()
    expect(found.get_by_role("button", name="Yes, ")).to_be_enabled()
    return found


def carry_out(shown: Page, name: str, outcome: str = "Done.") -> Locator:
    """The same, confirmed, with its outcome."""
    found = ask(shown, name)
    found.get_by_role("button", name="Yes, ").click()
    expect(found.get_by_text(outcome, exact=True)).to_be_visible()
    return found


def commands(found: Locator) -> list[str]:
    """The commands that a confirmation shows: of raftlog, of curl."""
    return found.locator("pre").all_inner_texts()


def run(command: str) -> None:
    """Runs a command that a page shows, in a shell."""
    command = command.replace("raftlog ", f"{sys.executable} -m raftlog.cluster.cli.main ", 1)
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=HANG_S)


def test_a_group_is_moved_after_its_numbers_were_shown_and_confirmed_once(
    cluster: LocalCluster, browser: Browser
) -> None:
    """How many records are skipped or read again, and nothing but reads until the confirmation. The commands that it
    shows do the same. Its name is text whatever it holds."""
    with SyncClient(cluster.urls) as client, page(browser, f"{cluster.urls[0]}/#/groups") as shown:
        group = client.consumer(STRANGE)
        group.claim(owner="host-1", start=10)
        sent: list[str] = []
        shown.on("request", lambda request: sent.append(request.method))
        shown.get_by_role("link", name=STRANGE).click()
        expect(shown.get_by_role("heading", name=f"Consumer group {STRANGE}")).to_be_visible()
        action(shown, "Reset the group").get_by_label("To").select_option("newest")
        found = ask(shown, "Reset the group")
        last = client.status().last_user_index
        expect(found.get_by_text(f"{last + 1 - 10} records will be skipped, 10 to {last}.")).to_be_visible()
        expect(found.get_by_text("owner host-1 is fenced")).to_be_visible()
        curl = commands(found)[1]
        found.get_by_role("button", name="Cancel").click()
        assert set(sent) == {"GET"}
        assert group.status().position.next["0"] == 10
        found = carry_out(shown, "Reset the group")
        expect(found.get_by_text(f"The group reads on at {last + 1}")).to_be_visible()
        assert sent.count("PUT") == 1
        found.get_by_role("button", name="Close").click()
        found.get_by_label("To").select_option("index")
        found.get_by_role("spinbutton", name="Index").fill("50")
        found = ask(shown, "Reset the group")
        expect(found.get_by_text(f"{last + 1 - 50} records will be read again, from 50 on.")).to_be_visible()
        for command, place in ((commands(found)[0], 50), (curl, last + 1)):
            run(command)
            assert group.status().position.next["0"] == place, command
        found.get_by_role("button", name="Cancel").click()
        carry_out(shown, "Delete the group")
        expect(shown.get_by_text("The group is deleted.")).to_be_visible()
        assert client.call(consumers()).consumers == []


def test_a_trim_shows_what_goes_and_a_refusal_its_reason(cluster: LocalCluster, browser: Browser) -> None:
    """Above the end of the log the node refuses it, in its own words, and the form keeps its content."""
    with SyncClient(cluster.urls) as client, page(browser, f"{cluster.urls[0]}/#/operate") as shown:
        oldest = client.status().oldest
        found = action(shown, "Trim the log")
        found.get_by_label("Oldest index that stays").fill("9007199254740991")
        found = carry_out(shown, "Trim the log", "Refused.")
        expect(found.get_by_role("alert")).to_contain_text("Nothing was changed: ")
        found.get_by_role("button", name="Back to the form").click()
        expect(found.get_by_label("Oldest index that stays")).to_have_value("9007199254740991")
        assert client.status().oldest == oldest
        found.get_by_label("Oldest index that stays").fill("60")
        found = ask(shown, "Trim the log")
        expect(found.get_by_text(f"{60 - oldest} records go for good, {oldest} to 59.")).to_be_visible()
        found.get_by_role("button", name="Yes, trim the log").click()
        expect(found.get_by_text("The oldest index is 60;")).to_be_visible()
        assert client.status().oldest == 60


def test_a_snapshot_is_saved_and_a_backup_is_a_file_that_can_be_checked(
    cluster: LocalCluster, browser: Browser, tmp_path: Path
) -> None:
    """The outcome has the index of the snapshot. The download is whole."""
    with page(browser, f"{cluster.urls[0]}/#/operate") as shown:
        found = carry_out(shown, "Save a snapshot")
        expect(found.get_by_text("The newest snapshot of node 1 ends at index")).to_be_visible()
        assert list(cluster.data(1).glob("*/snapshots/*"))
        with shown.expect_download() as download:
            carry_out(shown, "Back up the state")
        download.value.save_as(tmp_path / download.value.suggested_filename)
    run(f"raftlog disk check {tmp_path / 'raftlog-1.backup'}")


def test_without_an_answer_the_outcome_is_unknown_and_says_where_to_look(browser: Browser, tmp_path: Path) -> None:
    """The node is killed while it has the request. Nothing is sent again."""
    with nodes_in(tmp_path / "nodes") as cluster:
        with page(browser, f"{cluster.urls[0]}/#/operate", allowed="ERR_CONNECTION_") as shown:
            action(shown, "Trim the log").get_by_label("Oldest index that stays").fill("2")
            found = ask(shown, "Trim the log")
            cluster.pause(1)
            sent: list[str] = []
            shown.on("request", lambda request: sent.append(request.method))
            found.get_by_role("button", name="Yes, trim the log").click()
            expect(found.get_by_text("Sent. The answer takes")).to_be_visible()
            cluster.kill(1)
            expect(found.get_by_text("Unknown.", exact=True)).to_be_visible()
            expect(found.get_by_text("A trim may simply be sent again.")).to_be_visible()
            expect(shown.get_by_text("Node 1 does not answer")).to_be_visible()
            assert sent.count("POST") == 1


def test_a_token_is_made_here_shown_once_and_revoked(browser: Browser) -> None:
    """A user, its role and its token by the pages of an admin. The new token counts. Once closed it is nowhere in
    the page, and in no storage. Revoked it counts no more. Each step needs the confirmation."""
    world = AccessWorld()
    with held(serve(world.node)) as served, page(browser, f"{served.url}/#/access") as shown:
        log_in(shown, world.tokens[ADMIN].text)
        action(shown, "Make a role").get_by_label("Name").fill("billing")
        action(shown, "Make a role").get_by_label("Grants, one a line").fill("read on keys:bills/*\n read on log\n")
        carry_out(shown, "Make a role")
        action(shown, "Make a user").get_by_label("Name").fill("o'hara <b>")
        action(shown, "Make a user").get_by_label("billing").check()
        carry_out(shown, "Make a user")
        shown.get_by_role("link", name="o'hara <b>").first.click()
        action(shown, "Create a token").get_by_label("What it is for").fill("laptop")
        found = ask(shown, "Create a token")
        assert commands(found)[0].endswith("token create 'o'\\''hara <b>' --label laptop")
        assert "SHA-256 OF THE TOKEN" in commands(found)[1]
        found.get_by_role("button", name="Yes, create a token").click()
        expect(found.get_by_text("Done.", exact=True)).to_be_visible()
        token = found.locator("pre").inner_text()
        with page(browser, f"{served.url}/#/access") as other:
            log_in(other, token)
            expect(other.get_by_role("definition").get_by_text("read on keys:bills/*")).to_be_visible()
            found.get_by_role("button", name="Close").click()
            assert token not in shown.content()
            assert token not in shown.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
            shown.get_by_role("link", name=token[3:11]).click()
            carry_out(shown, "Revoke the token")
            expect(token_field(other)).to_be_visible()
        shown.goto(f"{served.url}/#/access?user=o'hara%20%3Cb%3E")
        carry_out(shown, "Delete the user")
        assert set(world.node.machine.access.users) == {ADMIN}


def test_access_is_shown_while_the_console_is_in_the_past(browser: Browser) -> None:
    """The moment stands in its address, and names no user, role or token."""
    world = AccessWorld()
    with held(serve(world.node)) as served, page(browser, f"{served.url}/#/access?as_of=1") as shown:
        log_in(shown, world.tokens[ADMIN].text)
        expect(shown.get_by_text("This page cannot go back: it shows now.")).to_be_visible()
        expect(shown.get_by_role("region", name="Users").get_by_role("link", name=ADMIN)).to_be_visible()


def test_a_reader_sees_every_action_and_the_grant_that_is_missing(browser: Browser) -> None:
    """No action is hidden. Those without their grant cannot be pressed, and name it; the others can."""
    world = AccessWorld()
    token = world.user("alice", "read on log", "read on keys:*", "read on groups:*", "write on groups:bill*")
    with held(serve(world.node)) as served, page(browser, f"{served.url}/#/keys") as shown:
        for name in ("billing", "other"):
            proof = {"Authorization": f"Bearer {world.tokens[ADMIN].text}"}
            assert shown.request.post(f"{served.url}/v1/consumers/{name}/claim", headers=proof).ok
        log_in(shown, token.text)
        expect(shown.get_by_text("0 keys, as of revision")).to_be_visible()  # a page that asks once asks again
        shown.goto(f"{served.url}/#/operate")
        for name, missing in (("Trim the log", "operate"), ("Back up the state", "operate"), ("Add a node", "members")):
            expect(action(shown, name).get_by_text(f"The missing grant: {missing} on cluster")).to_be_visible()
            expect(action(shown, name).get_by_role("button")).to_be_disabled()
        expect(action(shown, "Digest of this node").get_by_role("button")).to_be_enabled()
        shown.goto(f"{served.url}/#/access")
        expect(shown.get_by_text("Not shown. The missing grant: access on cluster")).to_have_count(3)
        expect(action(shown, "Make a user").get_by_role("button")).to_be_disabled()
        for name, missing in (("billing", ""), ("other", "write on groups:other")):
            shown.goto(f"{served.url}/#/groups?group={name}")
            expect(action(shown, "Reset the group").get_by_text("To", exact=True)).to_be_visible()
            if missing:
                expect(action(shown, "Reset the group").get_by_text(f"The missing grant: {missing}")).to_be_visible()
                expect(action(shown, "Reset the group").get_by_role("button")).to_be_disabled()
            else:
                expect(action(shown, "Reset the group").get_by_role("button")).to_be_enabled()


def test_a_form_outlives_the_end_of_its_login(browser: Browser) -> None:
    """The login ends before the confirmation. The page asks for a token, and then has the content still; the request is
    sent once, after a new confirmation."""
    world = AccessWorld()
    with held(serve(world.node)) as served, page(browser, f"{served.url}/#/access") as shown:
        log_in(shown, world.tokens[ADMIN].text)
        action(shown, "Make a role").get_by_label("Name").fill("billing")
        action(shown, "Make a role").get_by_label("Grants, one a line").fill("read on log")
        found = ask(shown, "Make a role")
        shown.evaluate("fetch('/v1/login', {method: 'DELETE'})")
        found.get_by_role("button", name="Yes, make a role").click()
        expect(token_field(shown)).to_be_visible()
        expect(found).to_be_hidden()
        assert "billing" not in world.node.machine.access.roles
        log_in(shown, world.tokens[ADMIN].text)
        expect(found.get_by_label("Name")).to_have_value("billing")
        found.get_by_role("button", name="Yes, make a role").click()
        expect(found.get_by_text("Done.", exact=True)).to_be_visible()
        assert "billing" in world.node.machine.access.roles


@pytest.mark.long
def test_without_access_control_the_page_says_how_to_switch_it_on(cluster: LocalCluster, browser: Browser) -> None:
    """The commands, and no forms that would change nothing."""
    with page(browser, f"{cluster.urls[0]}/#/access") as shown:
        expect(shown.get_by_role("heading", name="Access control is off")).to_be_visible()
        expect(shown.locator("pre")).to_contain_text(f"raftlog -e {cluster.urls[0]} access init NAME")
        expect(shown.get_by_role("button", name="Make a user")).to_have_count(0)


@pytest.mark.long
def test_members_and_leader_are_changed_at_a_follower(browser: Browser, tmp_path: Path) -> None:
    """By a login with a token, without TLS: the follower passes the token on to the leader. The page names the leader,
    and links to its console. A node joins by the files that the page gives, is promoted, gets the leadership, and is
    replaced; the states of the replicas are compared."""
    settings = {"limits.digest_point_entries": 50}
    with LocalCluster(tmp_path / "nodes", 3, settings=settings) as cluster:
        cluster.restore()
        token = make_token()
        with SyncClient(cluster.urls) as client:
            client.call(
                access_requests.change(AccessIn("init", "root", token=token.identifier, token_hash=token.digest.hex()))
            )
        save_token(tmp_path / "token", token.text)
        with SyncClient(cluster.urls, token_file=str(tmp_path / "token")) as client:
            for number in range(100):
                client.append(b"%d" % number)
            leader = client.status().leader
            assert leader is not None
            follower = next(node for node in cluster.nodes if node != leader.node)
            with page(browser, f"{cluster.url(follower)}/#/operate") as shown:
                log_in(shown, token.text)
                expect(shown.get_by_text(f"Node {leader.node} leads: ")).to_be_visible()
                expect(shown.get_by_role("link", name="its console")).to_have_attribute(
                    "href", f"{leader.url}/#/operate"
                )
                states = shown.get_by_role("region", name="States of the replicas")
                expect(states.get_by_text("same state")).to_have_count(2)
                peer, http = free_ports(2)
                add = action(shown, "Add a node")
                add.get_by_label("Address for its peers").fill(f"127.0.0.1:{peer}")
                add.get_by_label("URL for clients").fill(f"http://127.0.0.1:{http}")
                add.get_by_label("stays a learner").check()
                carry_out(shown, "Add a node")
                with shown.expect_download() as download:
                    add.get_by_role("button", name="Save join-4.toml").click()
                assert cluster.adopt(download.value.path().read_text()) == 4
                cluster.start_node(4)
                wait_until(
                    lambda: any(each.node == 4 and each.lag == 0 for each in client.members().members), what="node 4"
                )
                carry_out(shown, "Promote a learner")
                expect(shown.get_by_role("region", name="Members").get_by_text("voter")).to_have_count(3)
                action(shown, "Transfer leadership").get_by_label("To").select_option("4")
                found = carry_out(shown, "Transfer leadership")
                expect(found.get_by_text("Node 4 leads term")).to_be_visible()
                action(shown, "Remove a node").get_by_label("Node").select_option(f"{leader.node}")
                found = carry_out(shown, "Remove a node")
                expect(found.get_by_text(f"Node {leader.node} is no member any more")).to_be_visible()
                [lost] = {1, 2, 3} - {leader.node, follower}
                cluster.kill(lost)
                replace = action(shown, "Replace a node")
                replace.get_by_role("combobox", name="Node").select_option(f"{lost}")
                carry_out(shown, "Replace a node")
                with shown.expect_download() as download:
                    replace.get_by_role("button", name=f"Save join-{lost}.toml").click()
                assert cluster.adopt(download.value.path().read_text()) == lost
                cluster.start_node(lost)
                row = shown.get_by_role("region", name="Members").get_by_role("row").filter(has_text=cluster.url(lost))
                expect(row).to_contain_text("voter")
        cluster.kill(*cluster.running)
