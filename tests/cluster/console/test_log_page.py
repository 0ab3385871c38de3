"""The log and its records in a real Chromium: filters, following, forms of values, and what a record did."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from raftlog import SyncClient
from raftlog.raft.types import EntryKind
from tests.browser import held, page
from tests.cluster.console.sending import log_in, nodes_in, sent
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import AccessWorld
from tests.cluster.nodes import put_block
from tests.support import wait_until

pytestmark = pytest.mark.serial

COUNT = 2_500
ROW = '2024-01-05,3.5,"Town, near"'
SCHEMA = {"version": 1, "source": "quakes.csv", "values": "csv", "columns": [{"name": "at"}, {"name": "mag"}]}
DEEP = b"[" * 10_000 + b"]" * 10_000
SEARCHES = re.compile(r"/v1/log\?.*limit=1000")
LARGE = b"0123456789abcde\n" * (1 << 16)  # 1 MiB


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with an import, a key of two versions, and some thousand records in one entry."""
    with nodes_in(tmp_path_factory.mktemp("log")) as cluster:
        url = cluster.urls[0]
        with SyncClient(cluster.urls, deadline_s=30) as client:
            client.append(ROW.encode())
            session = client.session
            client.put(b"raftlog/import/%020d" % (session or 0), json.dumps(SCHEMA, separators=(",", ":")).encode())
        sent(url, "PUT", "/v1/kv/colour", b'{"name": "blue", "deep": [1, 2]}')
        sent(url, "PUT", "/v1/kv/colour", b'{"name": "green", "deep": [1, 2], "new": 12345678901234567890}')
        records: list[dict[str, Any]] = [{"value": f"record {at}", "key": f"user/{at % 7}"} for at in range(COUNT)]
        records[10]["headers"] = [["tenant", "b=c"]]
        sent(url, "POST", "/v1/log", records)
        for name in ("billing", "sink%2Fwarehouse"):
            sent(url, "POST", f"/v1/consumers/{name}/claim", {"owner": "host-1"})
        yield url


def indexes(shown: Page) -> list[int]:
    """Of the records that a search shows."""
    texts = shown.get_by_label("Found records").locator(".row > span:first-child").all_text_contents()
    return [int(text.replace(",", "")) for text in texts]


def record_of(url: str, value: str) -> int:
    """The index of the record with that value."""
    found = sent(url, "GET", "/v1/log?limit=10000")["records"]
    return int(next(each["index"] for each in found if each.get("value") == value))


def go(shown: Page, place: str) -> None:
    """Another page of the console, in the same tab."""
    shown.evaluate("place => { location.hash = place }", f"#/{place}")


def test_a_filter_of_the_address_finds_its_records(url: str, browser: Browser) -> None:
    """By operation, key, header, import, session and user, alone and together; and it says where there is none."""
    with page(browser, f"{url}/#/overview") as shown:
        for query, words in (
            ("operation=put", "3 found"),
            ("operation=put&prefix=col", "2 found"),
            ("header=tenant", "1 found"),
            ("header=tenant%3Db%3Dc", "1 found"),
            ("import=quakes.csv", "2 found"),
            ("header=tenant%3Dother", "Nothing from 1 to "),
            ("session=9007199254740991", "Nothing from 1 to "),
            ("user=nobody", "Nothing from 1 to "),
        ):
            go(shown, f"log?{query}")
            expect(shown.get_by_role("status").filter(has_text=words)).to_be_visible()
            expect(shown.get_by_role("button", name="Stop")).to_have_count(0)
            assert len(indexes(shown)) == (int(words[0]) if "found" in words else 0)
        go(shown, "log?import=other.csv")
        expect(shown.get_by_role("alert").filter(has_text="No import of other.csv is known")).to_be_visible()


def test_a_search_waits_for_its_reader(url: str, browser: Browser) -> None:
    """It ends with the step in which a hundred records are found, and goes on when asked."""
    with page(browser, f"{url}/#/log?at=1&prefix=user/3") as shown:
        expect(shown.get_by_role("status").filter(has_text="Looked at 1 to 1,000: ")).to_be_visible()
        found = indexes(shown)
        assert found == sorted(found)
        assert len(found) >= 100
        shown.get_by_role("button", name="Later").click()
        expect(shown.get_by_role("status").filter(has_text="Looked at 1 to 2,000: ")).to_be_visible()


def test_a_search_is_stopped_and_continued_both_ways(url: str, browser: Browser) -> None:
    """It begins where one stands, says what it looked at, and goes on from there, backwards and forwards."""
    middle = record_of(url, "record 2400")
    waiting: list[Route] = []
    is_held = True

    def let_go() -> None:
        """Sends the request that is held, once there is one."""
        wait_until(lambda: shown.evaluate("true") and bool(waiting), what="a request of the search")
        waiting.pop().continue_()

    with page(browser, f"{url}/#/log?at={middle}") as shown:
        shown.route(SEARCHES, lambda route: waiting.append(route) if is_held else route.continue_())
        shown.get_by_text("Filter", exact=True).click()
        shown.get_by_label("Header").fill("tenant")
        shown.get_by_role("button", name="Search").click()
        expect(shown.get_by_text("Nothing is looked at yet.")).to_be_visible()
        assert f"at={middle}" in shown.url
        shown.get_by_role("button", name="Stop").click()
        let_go()
        status = shown.get_by_role("status").filter(has_text="Nothing from")
        expect(status).to_contain_text(f"Nothing from {middle:,} to ")
        shown.evaluate("true")
        assert not waiting
        shown.get_by_role("button", name="Earlier").click()
        expect(shown.get_by_role("button", name="Stop")).to_be_visible()
        let_go()
        expect(shown.get_by_text(re.compile(f"Looked at {middle - 2000:,} to .*: 0 found"))).to_be_visible()
        is_held = False
        let_go()
        expect(shown.get_by_text(re.compile(r"Looked at 1 to .*: 1 found"))).to_be_visible()
        assert indexes(shown) == [record_of(url, "record 10")]
        shown.get_by_role("button", name="No filter").click()
        expect(shown.get_by_text("record 2400", exact=True)).to_be_visible()


def test_a_pause_counts_what_waits(url: str, browser: Browser) -> None:
    """The list stands still while one scrolls; the button counts, and leads to the newest record again."""
    with page(browser, f"{url}/#/log") as shown:
        records = shown.get_by_label("Records", exact=True)
        expect(shown.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "true")
        expect(records.locator(".row").last).to_be_visible()
        expect(records.locator("time").last).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:"))
        records.hover()
        shown.mouse.wheel(0, -2_000)
        expect(shown.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "false")
        sent(url, "POST", "/v1/log", [{"value": f"late {at}"} for at in range(37)])
        button = shown.get_by_role("button", name=re.compile(r"Follow \((3[7-9]|4\d) new\)"))
        expect(button).to_be_visible()  # the node may add records of its own
        expect(shown.get_by_text("late 36", exact=True)).to_have_count(0)
        button.click()
        expect(shown.get_by_text("late 36", exact=True)).to_be_visible()


def test_values_of_the_list_have_the_chosen_form(url: str, browser: Browser) -> None:
    """It is in the address, so a page that is sent shows the same."""
    at = record_of(url, ROW)
    with page(browser, f"{url}/#/log?at={at}") as shown:
        shown.get_by_label("Values as").select_option("CSV")
        expect(shown.get_by_text("c1: 2024-01-05 │ c2: 3.5 │ c3: Town, near")).to_be_visible()
        shown.wait_for_url(re.compile("form=CSV"))
        sent_on = shown.url
    with page(browser, sent_on.replace("CSV", "hex")) as shown:
        expect(shown.get_by_text("32 30 32 34 2d 30 31").first).to_be_visible()


def test_places_to_go_to(url: str, browser: Browser) -> None:
    """An index, a time before the first record and after the last, an index that is none or not written yet."""
    with page(browser, f"{url}/#/log") as shown:
        for text, words in (
            ("1970-01-02", "the log begins after that time"),
            ("2190-01-01", "no record is that new"),
            ("9007199254740992", "is no index"),
            ("yesterday-ish", "neither an index nor a time"),
            ("9,007,199,254,740,991", "the newest record is"),
        ):
            shown.get_by_label("Go to").fill(text)
            shown.keyboard.press("Enter")
            expect(shown.get_by_role("status").filter(has_text=words)).to_be_visible()
        assert shown.locator(".list .row").count() < 100, "the visible rows alone"
        expect(shown.get_by_label("Records over time")).to_be_visible()
        shown.get_by_label("Go to").fill(str(record_of(url, "record 100")))
        shown.keyboard.press("Enter")
        expect(shown.get_by_text("record 100", exact=True)).to_be_visible()


def test_a_record_shows_what_it_changed_and_where_it_is(url: str, browser: Browser) -> None:
    """The fields that differ from the version before, the chain of the entries, copies, groups and sinks."""
    newest = sent(url, "GET", "/v1/kv/colour?versions=2")["versions"]
    with page(browser, f"{url}/#/entry?at={newest[0]['index']}") as shown:
        rows = shown.get_by_label("Differences").locator("tbody tr")
        expect(rows).to_have_text([re.compile(r'name\s*"blue"\s*"green"'), re.compile(r"new\s*12345678901234567890")])
        expect(shown.get_by_text("= fits")).to_have_count(2)
        expect(shown.locator(".chip")).to_have_text(["billing", "warehouse sink"])
        expect(shown.locator("pre", has_text='"new": 12345678901234567890')).to_be_visible()
        shown.get_by_role("link", name=f"before: record {newest[1]['index']}").click()
        expect(shown.get_by_text("There was no value before.")).to_be_visible()


def test_a_record_of_an_import_is_a_row_of_its_columns(url: str, browser: Browser) -> None:
    """By the schema of its session, which leads to the import's other records."""
    with page(browser, f"{url}/#/entry?at={record_of(url, ROW)}") as shown:
        expect(shown.locator("pre", has_text="at: 2024-01-05\nmag: 3.5\nc3: Town, near")).to_be_visible()
        shown.get_by_role("link", name="quakes.csv").click()
        expect(shown.get_by_label("Found records").locator(".row")).to_have_count(2)


def test_records_of_one_entry_stand_together(url: str, browser: Browser) -> None:
    """Those beside a record of a batch, the record marked."""
    at = record_of(url, "record 1500")
    with page(browser, f"{url}/#/entry?at={at}") as shown:
        rows = shown.get_by_label("Records of the entry")
        expect(rows.locator("tr")).to_have_count(12)
        expect(rows.locator("tr.own")).to_contain_text("record 1500")


def test_a_value_is_text_whatever_it_holds(url: str, browser: Browser) -> None:
    """In the list and on its own page, under a policy that would report what acts."""
    with page(browser, f"{url}/#/overview") as shown:
        for value, seen in (
            (b'<script>document.title="broken"</script>', '<script>document.title="broken"</script>'),
            (b"<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
            ("a\u202eb\u2066c".encode(), "a⟨U+202E⟩b⟨U+2066⟩c"),
            (b"\x00\x1b[31m\x7f", "⟨U+0000⟩⟨U+001B⟩[31m⟨U+007F⟩"),
            (b"\xff\xfe\x00", "000000  ff fe 00"),
            (DEEP, "[[[[[[[["),
            (bytes.fromhex("82a16101a3626967cf0020000000000001"), '"big": 9007199254740993'),
            (b"", ""),
        ):
            at = sent(url, "POST", "/v1/log", value)["last"]
            go(shown, f"entry?at={at}")
            expect(shown.get_by_role("heading", name=f"Record {at:,}")).to_be_visible()
            expect(shown.locator(".value pre")).to_contain_text(seen)
            shown.get_by_role("button", name="JSON").click()
            expect(shown.locator(".value pre")).to_have_text("It is not JSON.")
            shown.get_by_role("link", name="in the log").click()
            expect(shown.locator(f'a.row[href="#/entry?at={at}"]')).to_be_visible()
        expect(shown).to_have_title("raftlog: node 1")


def test_a_large_value_is_cut_and_can_be_saved_whole(url: str, browser: Browser, tmp_path: Path) -> None:
    """No answer has more than the bytes that the page shows; only the download asks for all."""
    at = sent(url, "POST", "/v1/log", LARGE)["last"]
    sizes: list[int] = []
    with page(browser, f"{url}/#/log?at={at}") as shown:
        shown.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))
        shown.locator(f'a.row[href="#/entry?at={at}"]').click()
        expect(shown.get_by_text("1.05 MB, cut here")).to_be_visible()
        expect(shown.get_by_text("= fits").first).to_be_visible()
        assert max(sizes) < 200_000
        with shown.expect_download() as saving:
            shown.get_by_role("button", name="Download").click()
        saving.value.save_as(tmp_path / "value")
        assert (tmp_path / "value").read_bytes() == LARGE


def test_an_index_that_is_none_is_refused_in_words(url: str, browser: Browser) -> None:
    """With a way to the records that there are."""
    with page(browser, f"{url}/#/overview") as shown:
        for at, words in (
            ("9007199254740992", "must be a whole number"),
            ("9007199254740991", "not in this node's log"),
            ("-1", "'-1'"),
            ("%3Cscript%3E", "must be a whole number"),
        ):
            go(shown, f"entry?at={at}")
            expect(shown.get_by_role("alert").filter(has_text=words)).to_be_visible()
            expect(shown.get_by_role("link", name="The log", exact=True)).to_be_visible()


def test_a_search_says_what_a_user_may_not_see(browser: Browser) -> None:
    """Records of other keys are left out; a search by user names the grant that shows the users."""
    world = AccessWorld()
    token = world.user("reader", "read on keys:a/*", "read on log")
    for key in (b"a/1", b"b/1", b"b/2"):
        world.node.append(EntryKind.COMMANDS, put_block(key, b"value"), 1)
    with held(serve(world.node)) as served, page(browser, f"{served.url}/#/log?operation=put&user=root") as shown:
        log_in(shown, token.text)
        expect(shown.get_by_text("operate on cluster", exact=True)).to_be_visible()
        expect(shown.get_by_text(re.compile("^Looked at are the records that this user may see"))).to_be_visible()
        go(shown, "log?operation=put")
        expect(shown.get_by_label("Found records").locator(".row")).to_have_text([re.compile("a/1refused value")])


def test_a_trimmed_record_names_the_oldest(browser: Browser) -> None:
    """So does the log, and a key whose versions begin before it."""
    with held(serve()) as served:
        for number in range(3):
            sent(served.url, "PUT", "/v1/kv/k", b"%d" % number)
        oldest = sent(served.url, "GET", "/v1/kv/k?versions=1")["versions"][0]["index"]
        sent(served.url, "POST", "/v1/log/trim", {"before": oldest})
        with page(browser, f"{served.url}/#/entry?at=1") as shown:
            expect(shown.get_by_text("The oldest record that can be read is")).to_be_visible()
            shown.get_by_role("link", name=str(oldest), exact=True).click()
            expect(shown.get_by_text("The record of the version before is trimmed.")).to_be_visible()
        with page(browser, f"{served.url}/#/log") as shown:
            shown.get_by_label("Go to").fill("1")
            shown.keyboard.press("Enter")
            expect(shown.get_by_role("status").filter(has_text="are trimmed")).to_be_visible()
