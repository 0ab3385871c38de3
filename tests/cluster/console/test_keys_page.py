"""The keys in a real Chromium: versions, time travel, two moments compared, and writes that lose no update."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import held, page
from tests.cluster.console.sending import log_in, nodes_in, sent
from tests.cluster.fake_node import serve
from tests.cluster.http.access_world import AccessWorld

pytestmark = pytest.mark.serial

LONG = "k" * 4_096
SCRIPT = '<script>document.title="broken"</script> <img src=x onerror=alert(1)>'
STRANGE = ("a\u202eb", SCRIPT, "ü" * 2_000)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node whose keys below `config/` were changed, added and deleted after the first three."""
    with nodes_in(tmp_path_factory.mktemp("keys")) as cluster:
        url = cluster.urls[0]
        for key, value in (("a", b"1"), ("b", b"one\ntwo\nthree\n"), ("c", b"gone")):
            sent(url, "PUT", f"/v1/kv/config/{key}", value)
        sent(url, "PUT", "/v1/kv/config/b", b"one\n2\nthree\n")
        sent(url, "DELETE", "/v1/kv/config/c")
        sent(url, "PUT", "/v1/kv/config/d", b"new")
        for key in ("%FF%00", quote("<b>\u202e</b>"), LONG, "%2E%2E"):
            sent(url, "PUT", "/v1/kv?key_b64=/wA=" if key == "%FF%00" else f"/v1/kv/{key}", b"odd")
        yield url


def third(url: str) -> int:
    """The index of the third write: the third key was there, and nothing was changed yet."""
    found = sent(url, "GET", "/v1/log?internal=true")["records"]
    return int(next(each["index"] for each in found if each.get("value") == "gone"))


def test_versions_have_their_difference_to_the_one_before(url: str, browser: Browser) -> None:
    """By lines; a deleted key has versions from the record of its delete."""
    with page(browser, f"{url}/#/keys?key=config/b") as shown:
        expect(shown.get_by_text("version 2", exact=True)).to_be_visible()
        lines = shown.get_by_label("Differences").locator("span")
        expect(lines).to_have_text(["  one", "- two", "+ 2", "  three", re.compile(r"^\s*$")])
        expect(shown.get_by_text("The key did not exist before.")).to_be_visible()


def test_the_console_goes_back_to_a_moment(url: str, browser: Browser) -> None:
    """The moment is in the address, and stays while one changes pages; each page says whether it shows then or now."""
    at = third(url)
    with page(browser, f"{url}/#/keys?prefix=config/&as_of={at}") as shown:
        band = shown.get_by_label("Time travel")
        expect(band).to_contain_text(f"As of record {at}")
        expect(shown.locator("table.keys tbody tr")).to_have_text([re.compile(f"^config/{key}") for key in "abc"])
        shown.get_by_role("link", name="config/b").click()
        expect(shown.locator("pre", has_text="two")).to_be_visible()
        expect(shown.get_by_text("go back to now")).to_be_visible()
        shown.locator("nav").get_by_role("link", name="Log").click()
        expect(shown.locator(".list .row").last).to_contain_text("gone")
        assert f"as_of={at}" in shown.url
        shown.locator("nav").get_by_role("link", name="Groups").click()
        expect(band).to_contain_text("This page cannot go back: it shows now.")
        shown.locator("nav").get_by_role("link", name="Keys").click()
        expect(shown.get_by_text("3 keys, as of revision")).to_be_visible()
        shown.get_by_role("link", name="Back to now").click()
        expect(band).to_have_count(0)
        expect(shown.get_by_text("3 keys, as of revision")).to_have_count(0)
        assert "as_of" not in shown.url


def test_a_moment_is_chosen_by_slider_index_or_time(url: str, browser: Browser) -> None:
    """One that is none is refused in words, in the address too; `t` opens the band."""
    at = third(url)
    with page(browser, f"{url}/#/keys?prefix=config/") as shown:
        expect(shown.get_by_role("link", name="config/d")).to_be_visible()
        shown.keyboard.press("t")
        slider = shown.get_by_label("Moment, as an index")
        slider.fill(str(at))
        expect(shown.get_by_text("3 keys, as of revision")).to_be_visible()
        band = shown.get_by_label("Time travel")
        for text, words in (
            ("2190-01-01", "no record is that new"),
            ("1970-01-02", "the log begins after that time"),
            ("never", "neither an index nor a time"),
            ("9007199254740992", "is no index"),
        ):
            shown.get_by_label("Moment", exact=True).fill(text)
            shown.get_by_role("button", name="Show").first.click()
            expect(shown.get_by_text(words)).to_be_visible()
        for index, words in (("9007199254740992", "must be a whole number"), ("900719925474", "is not written yet")):
            shown.evaluate("place => { location.hash = place }", f"#/keys?as_of={index}")
            expect(band).to_contain_text(words)
            expect(band).to_contain_text("Choose another moment")


def test_the_way_back_leads_out_of_the_past(url: str, browser: Browser) -> None:
    """Links keep the moment; back and forward show each place as it was."""
    with page(browser, f"{url}/#/keys?prefix=edit") as shown:
        band = shown.get_by_label("Time travel", exact=True)
        expect(shown.get_by_text("as of revision")).to_be_visible()
        shown.evaluate(f"location.hash = '#/keys?prefix=edit&as_of={third(url)}'")
        expect(band).to_be_visible()
        shown.get_by_role("link", name="Log", exact=True).click()
        expect(shown).to_have_url(re.compile("log.*as_of="))
        for _ in range(2):
            shown.go_back()
        expect(band).to_have_count(0)
        expect(shown).to_have_url(f"{url}/#/keys?prefix=edit")
        shown.go_forward()
        expect(band).to_be_visible()


def test_history_ends_with_the_reason_of_the_node(browser: Browser) -> None:
    """Below a compacted revision there are no keys, and below the oldest record no moments."""
    with held(serve()) as served:
        written = [sent(served.url, "PUT", "/v1/kv/k", b"%d" % number) for number in range(3)]
        sent(served.url, "POST", "/v1/kv/compact", {"revision": written[1]["revision"]})
        with page(browser, f"{served.url}/#/keys?as_of={written[0]['index']}") as shown:
            expect(
                shown.get_by_role("alert").filter(has_text="is compacted: the oldest that can be read is")
            ).to_be_visible()
            sent(served.url, "POST", "/v1/log/trim", {"before": written[1]["index"]})
            shown.reload()
            expect(shown.get_by_label("Time travel")).to_contain_text("Choose another moment")
            expect(shown.get_by_role("alert").filter(has_text=f"{written[1]['index']}")).to_be_visible()


def test_two_moments_are_compared(url: str, browser: Browser) -> None:
    """Added, changed and deleted keys, each with its values; odd keys are compared by their bytes."""
    at = third(url)
    with page(browser, f"{url}/#/keys?prefix=config/&compare={at}") as shown:
        expect(shown.get_by_text("1 added, 1 changed, 1 deleted between revision")).to_be_visible()
        found = shown.locator("details.compared")
        expect(found).to_have_text(
            [re.compile(each) for each in ("changed config/b", "deleted config/c", "added config/d")]
        )
        found.first.locator("summary").click()
        expect(found.first.locator(".removed")).to_have_text("- two")
        expect(found.first.locator(".added")).to_have_text("+ 2")
        shown.evaluate("place => { location.hash = place }", f"#/keys?prefix=&compare={at}")
        expect(shown.get_by_text("5 added, 1 changed, 1 deleted between revision")).to_be_visible()


def test_odd_keys_are_text_and_lead_to_their_versions(url: str, browser: Browser) -> None:
    """Bytes, marks of direction, 4 KiB, and a name that a browser takes for a folder."""
    with page(browser, f"{url}/#/keys") as shown:
        for name in ("base64 /wA=", "<b>⟨U+202E⟩</b>", LONG, ".."):
            shown.locator("nav").get_by_role("link", name="Keys").click()
            shown.get_by_role("link", name=name, exact=True).click()
            expect(shown.locator("pre", has_text="odd")).to_be_visible()
            expect(shown.locator("h2.keyname")).to_have_text(name)
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_values_are_text_whatever_they_hold(url: str, browser: Browser) -> None:
    """A script in a value or key is shown; bytes are shown as hex; JSON has indents."""
    for data in (*map(str.encode, STRANGE), b'{"deep": [1, {"x": null}]}', b"\x00\x1b[31m", b"\xff\x00bytes"):
        sent(url, "PUT", "/v1/kv/strange", data)
    sent(url, "PUT", f"/v1/kv/{quote(SCRIPT, safe='')}", b"a key")
    with page(browser, f"{url}/#/keys?key=strange") as shown:
        for value in STRANGE:
            shown.locator("pre:not(.diff)", has_text=value.replace("\u202e", "⟨U+202E⟩")).wait_for(state="attached")
        shown.locator("pre:not(.diff)", has_text='"deep": [').wait_for(state="attached")
        shown.locator("pre:not(.diff)", has_text="000000  ff 00 62 79 74 65 73").first.wait_for(state="attached")
        expect(shown.get_by_text("The key did not exist before.")).to_be_visible()
        expect(shown).to_have_title("raftlog: node 1")
    with page(browser, f"{url}/#/keys?prefix={quote('<', safe='')}") as shown:
        expect(shown.get_by_text(SCRIPT)).to_be_visible()
    with page(browser, f"{url}/#/keys?key={quote(SCRIPT, safe='')}") as shown:
        expect(shown.locator("pre", has_text="a key")).to_be_visible()


def test_an_empty_list_of_keys_says_so(url: str, browser: Browser) -> None:
    """A prefix that no key has."""
    with page(browser, f"{url}/#/keys?prefix=none") as shown:
        expect(shown.get_by_text("No key begins so")).to_be_visible()


def edited(shown: Page, value: str) -> None:
    """Asks to write a value, up to the confirmation."""
    shown.get_by_text(re.compile("Change or delete it|Write it")).click()
    shown.get_by_label("Value (may be empty)").fill(value)
    shown.get_by_role("button", name=re.compile(r"^Write .* …$")).click()


def value_of(url: str, key: str) -> Any:
    """As the node has it now."""
    return sent(url, "GET", f"/v1/kv/{key}")["kv"]["value"]


def test_a_value_is_written_and_a_key_deleted_when_confirmed(url: str, browser: Browser) -> None:
    """Both show the commands first; a key that is not there is written as a new one."""
    with page(browser, f"{url}/#/keys?key=edit/new") as shown:
        edited(shown, "it's\nmine")
        expect(shown.get_by_text("put --if-revision 0 -- edit/new 'it'\\''s\nmine'")).to_be_visible()
        shown.get_by_role("button", name="Yes, write the key").click()
        expect(shown.locator("pre", has_text="mine").first).to_be_visible()
        expect(shown.get_by_text("version 1", exact=True)).to_be_visible()
        assert value_of(url, "edit/new") == "it's\nmine"
        shown.reload()
        shown.get_by_text("Change or delete it").click()
        shown.get_by_role("button", name="Delete the key …").click()
        assert value_of(url, "edit/new") == "it's\nmine"
        shown.get_by_role("button", name="Yes, delete the key").click()
        expect(shown.get_by_role("alert").filter(has_text="there is no such key")).to_be_visible()


def test_a_lost_update_shows_both_values(url: str, browser: Browser) -> None:
    """Nothing is overwritten; one takes one's own, with one more confirmation, or the other's."""
    sent(url, "PUT", "/v1/kv/edit/both", b"first")
    for choice, kept in (("Take yours", "mine"), ("Take theirs", "theirs")):
        with page(browser, f"{url}/#/keys?key=edit/both") as shown:
            edited(shown, "mine")
            sent(url, "PUT", "/v1/kv/edit/both", b"theirs")
            shown.get_by_role("button", name="Yes, write a new value").click()
            both = shown.get_by_label("Both values")
            expect(both.locator("pre.value")).to_have_text(["theirs", "mine"])
            assert value_of(url, "edit/both") == "theirs"
            both.get_by_role("button", name=choice).click()
            expect(both).to_have_count(0)
            if kept == "mine":
                expect(shown.get_by_label("Value (may be empty)")).to_have_value("mine")
                shown.get_by_role("button", name="Write a new value …").click()
                shown.get_by_role("button", name="Yes, write a new value").click()
            expect(shown.locator("pre", has_text=kept).first).to_be_visible()
            assert value_of(url, "edit/both") == kept


def test_a_form_outlives_the_write_of_another(url: str, browser: Browser) -> None:
    """Another client writes the key while its form is open and its tab is hidden: the typed text stays, and the write
    is refused with both values. How the next one ended is said, with its record."""
    sent(url, "PUT", "/v1/kv/edit/open", b"first")
    with page(browser, f"{url}/#/keys?key=edit/open") as shown:
        shown.get_by_text("Change or delete it").click()
        shown.get_by_label("Value (may be empty)").fill("mine")
        sent(url, "PUT", "/v1/kv/edit/open", b"theirs")
        shown.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(shown.get_by_label("Value (may be empty)")).to_have_value("mine")
        shown.get_by_role("button", name="Write a new value …").click()
        shown.get_by_role("button", name="Yes, write a new value").click()
        expect(shown.get_by_label("Both values").locator("pre.value")).to_have_text(["theirs", "mine"])
        shown.get_by_role("button", name="Take yours").click()
        shown.get_by_role("button", name="Write a new value …").click()
        shown.get_by_role("button", name="Yes, write a new value").click()
        expect(shown.get_by_text("version 3", exact=True)).to_be_visible()
        expect(shown.get_by_role("status").filter(has_text=re.compile(r"Done\. .*record \d+"))).to_be_visible()


def test_a_command_is_safe_to_copy_whatever_the_address_says(url: str, browser: Browser) -> None:
    """A link may name any prefix: the shell gets it as one word."""
    with page(browser, f"{url}/#/keys?prefix={quote('$(reboot); x', safe='')}") as shown:
        expect(shown.locator("code", has_text="raftlog put")).to_have_text("raftlog put '$(reboot); x' value")


def test_a_key_that_is_not_there_says_what_to_do(url: str, browser: Browser) -> None:
    """In words of the page, with a way to the records that wrote it."""
    with page(browser, f"{url}/#/keys?key=no/key") as shown:
        expect(shown.get_by_role("alert").filter(has_text="There is no such key")).to_be_visible()
        expect(shown.get_by_text("from=")).to_have_count(0)
        shown.get_by_role("link", name="Search its records").click()
        expect(shown.get_by_role("status").filter(has_text="Nothing from 1 to")).to_be_visible()


def test_a_missing_right_is_named(browser: Browser) -> None:
    """A reader sees the value, and which grant it lacks to write it; of other keys, which it lacks to read them."""
    world = AccessWorld()
    token = world.user("reader", "read on keys:a/*", "read on log")
    with held(serve(world.node)) as served, page(browser, f"{served.url}/#/keys?key=a/1") as shown:
        log_in(shown, token.text)
        shown.get_by_text("Write it").click()
        expect(shown.get_by_text("write on keys:a/1")).to_be_visible()
        shown.evaluate("location.hash = '#/keys?prefix=b'")
        expect(shown.get_by_role("alert").filter(has_text="read on keys:b*")).to_be_visible()


def test_a_comparison_goes_on_after_a_request_that_failed(url: str, browser: Browser) -> None:
    """What was found before it stays found: 90 keys were added among 900, on pages of 500."""
    many = [{"key": f"many/{at:04}", "value": "v"} for at in range(1_000) if at % 10]
    at = sent(url, "POST", "/v1/kv/batch", {"writes": many})["results"][-1]["written"]["index"]
    sent(url, "POST", "/v1/kv/batch", {"writes": [{"key": f"many/{at:04}", "value": "v"} for at in range(0, 900, 10)]})
    with page(browser, f"{url}/#/keys", allowed="net::ERR_FAILED") as shown:
        expect(shown.locator("table.keys")).to_be_visible()
        shown.route("**/v1/kv?**continuation**", lambda route: route.abort(), times=1)
        shown.evaluate("place => { location.hash = place }", f"#/keys?prefix=many/&compare={at}")
        shown.get_by_role("alert").get_by_role("button").click()
        expect(shown.get_by_text("90 added, 0 changed, 0 deleted between revision")).to_be_visible()


PURE = """async () => {
  const [{ lineDiff, fieldDiff }, { msgpack }, { cells, shownAs, visible }] = await Promise.all(
    ["diff", "msgpack", "value"].map((name) => import(`/console/${name}.js`)));
  const hex = (text) => Uint8Array.from(text.match(/../g) || [], (each) => parseInt(each, 16));
  const many = Array.from({ length: 3000 }, (_, at) => `line ${at}`);
  return {
    lines: lineDiff(["a", "b", "c"], ["b", "x", "c"]).map((each) => each.join("")),
    moved: lineDiff(["a", "b", "q"], ["x", "a", "b", "r"]).map((each) => each.join("")),
    same: lineDiff([], []), large: lineDiff(["s", ...many, "e"], ["s", ...many.map((each) => each + "!"), "e"]).length,
    fields: fieldDiff('{"a": {"b": [1, 2.0]}, "c": {}, "d": 1}', '{"a": {"b": [1, 2]}, "c": [], "e": "x,y"}'),
    none: fieldDiff("[1]", "x"), deep: fieldDiff("[".repeat(10000) + "]".repeat(10000), "[]"),
    packed: [
      "c0", "c3", "7f", "e0", "a161", "93010203", "81a1610a", "c4020102", "d40107", "cb3ff8000000000000",
      "cfffffffffffffffff", "d3ffffffffffffffff", "c1", "a5", "0101", "", "91".repeat(10000) + "01",
    ].map((each) => msgpack(hex(each))),
    cells: [cells('a,"b, \"\"c\"\"\",\\r\\nnext'), cells("a;b"), cells("a\\tb", "\\t"), cells("")],
    visible: visible("a\\u0000\\u202e\\n\\tü"), hidden: shownAs("msgpack", undefined, hex("a461e280ae")),
  };
}"""


def test_differences_and_forms(url: str, browser: Browser) -> None:
    """Of lines, of fields as they are written, of msgpack, of cells; text that is too deep or broken is neither."""
    with page(browser, f"{url}/#/keys") as shown:
        found = shown.evaluate(PURE)
    assert found["lines"] == ["-a", " b", "+x", " c"]
    assert found["moved"] == ["+x", " a", " b", "-q", "+r"]
    assert (found["same"], found["large"]) == ([], 6_002)
    assert found["fields"] == [["a.b[1]", "2.0", "2"], ["c", "{}", "[]"], ["d", "1", None], ["e", None, '"x,y"']]
    assert (found["none"], found["deep"]) == (None, None)
    flat = [each if each is None else re.sub(r"\s+", " ", each) for each in found["packed"]]
    assert flat[:10] == [
        "null",
        "true",
        "127",
        "-32",
        '"a"',
        "[ 1, 2, 3 ]",
        '{ "a": 10 }',
        "bytes(AQI=)",
        "extension(AQc=)",
        "1.5",
    ]
    assert flat[10:] == ["18446744073709551615", "-1", None, None, None, None, None]
    assert found["cells"] == [["a", 'b, "c"', ""], ["a", "b"], ["a", "b"], [""]]
    assert found["hidden"] == '"a⟨U+202E⟩"'
    assert found["visible"] == "a⟨U+0000⟩⟨U+202E⟩\n\tü"
