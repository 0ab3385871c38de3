"""The console over millions of records and a million keys: a jump shows its rows, and the browser stays small."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest
from playwright.sync_api import Browser, expect

from tests.browser import page
from tests.cluster.console.sending import nodes_in, sent
from tests.support import seed_of_run

pytestmark = [
    pytest.mark.long,
    pytest.mark.serial,
    pytest.mark.skipif(
        not Path("/proc/self/smaps_rollup").exists(), reason="no /proc: the memory of a process is not known"
    ),
]

WRITE_S = 60.0
RECORDS_MIN, RECORDS_MAX = 1_000_000, 10_000_000
KEYS = 1_000_000
BATCH = 40_000
JUMPS = 40
MEMORY_MAX = 200 << 20
"""Bytes that belong to the page's process alone: the console's own bound."""

JUMP = """async (index) => {
  const field = document.querySelector("input[name=place]");
  field.value = String(index);
  const begin = performance.now();
  field.form.requestSubmit();
  const row = `.list a.row[href="#/entry?at=${index}"]`;
  while (!document.querySelector(row)) await new Promise(requestAnimationFrame);
  return performance.now() - begin;
}"""

KEYS_JUMP = """async (prefix) => {
  const field = document.querySelector("input[name=prefix]");
  field.value = prefix;
  const begin = performance.now();
  field.form.requestSubmit();
  const row = `table.keys a[href="#/keys?key=${prefix}"]`;
  while (!document.querySelector(row)) await new Promise(requestAnimationFrame);
  return performance.now() - begin;
}"""


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A node with as many records as are written in a minute, a million at least, and its newest index."""
    with nodes_in(tmp_path_factory.mktemp("big")) as cluster:
        last, begin = 0, time.monotonic()
        while last < RECORDS_MIN or (time.monotonic() - begin < WRITE_S and last < RECORDS_MAX):
            body = msgpack.packb([b"record %d" % at for at in range(last, last + BATCH)])
            last = sent(cluster.urls[0], "POST", "/v1/log", body, "application/msgpack")["last"]
        yield cluster.urls[0], last


def memory_of(browser: Browser) -> int:
    """Bytes that belong to the largest of its page processes alone."""
    listed = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    found = []
    for process in listed:
        if process["type"] == "renderer":
            text = Path(f"/proc/{process['id']}/smaps_rollup").read_text()
            found.append(sum(int(size) << 10 for size in re.findall(r"^Private_\w+:\s+(\d+) kB", text, re.MULTILINE)))
    return max(found)


def summary(times: list[float]) -> str:
    """How long jumps took, in words."""
    times = sorted(times)
    return f"{len(times)} jumps: median {times[len(times) // 2]:.0f} ms, longest {times[-1]:.0f} ms"


def test_a_browser_stays_small_over_a_big_log(
    big: tuple[str, int], browser: Browser, record_property: Callable[[str, object], None]
) -> None:
    """Jumps anywhere show their records, a search reads all of the log, and memory stays bounded."""
    url, last = big
    places = random.Random(seed_of_run()).sample(range(1, last), JUMPS)
    with page(browser, f"{url}/#/log") as shown:
        expect(shown.locator(".list .row").last).to_be_visible()
        times = [shown.evaluate(JUMP, place) for place in [1, *places, last]]
        after_jumps = memory_of(browser)
        shown.evaluate("index => { location.hash = `#/log?header=none&at=${index}` }", last + 1)
        begin = time.monotonic()
        expect(shown.get_by_text(f"Nothing from 1 to {last:,}.")).to_be_visible()
        rate = last / (time.monotonic() - begin)
        after_search = memory_of(browser)
    record_property(
        "measured",
        f"{last:,} records; {summary(times)}; search {rate:,.0f} records/s; "
        f"the page's process {after_jumps >> 20} MiB after the jumps, "
        f"{after_search >> 20} MiB after the search",
    )
    assert max(after_jumps, after_search) < MEMORY_MAX


def test_a_browser_stays_small_over_a_million_keys(
    tmp_path: Path, browser: Browser, record_property: Callable[[str, object], None]
) -> None:
    """Jumps anywhere show their keys, a comparison reads all keys twice, and memory stays bounded."""
    with nodes_in(tmp_path) as cluster:
        url = cluster.urls[0]
        for first in range(0, KEYS, BATCH):
            writes = [[0, b"key%07d" % at, b"value", None] for at in range(first, first + BATCH)]
            sent(url, "POST", "/v1/kv/batch", msgpack.packb(writes), "application/msgpack")
        before = sent(url, "PUT", "/v1/kv/key0000001", b"other")["index"] - 1
        sent(url, "PUT", f"/v1/kv/key{KEYS - 1:07}", b"other")
        places = [f"key{at:07}" for at in random.Random(seed_of_run()).sample(range(KEYS), JUMPS)]
        with page(browser, f"{url}/#/keys") as shown:
            expect(shown.get_by_text(f"{KEYS:,} keys")).to_be_visible()
            times = [shown.evaluate(KEYS_JUMP, place) for place in places]
            after_jumps = memory_of(browser)
            begin = time.monotonic()
            shown.evaluate("index => { location.hash = `#/keys?prefix=&compare=${index}` }", before)
            ended = shown.get_by_role("status").filter(has_text=re.compile(r"2 changed, .* revision [\d,]+\.$"))
            while not ended.is_visible():
                shown.get_by_role("button", name="Go on").or_(ended).click()
            rate = 2 * KEYS / (time.monotonic() - begin)
            after_all = memory_of(browser)
    record_property(
        "measured",
        f"{KEYS:,} keys; {summary(times)}; comparison {rate:,.0f} keys/s; the page's process "
        f"{after_jumps >> 20} MiB after the jumps, {after_all >> 20} MiB after the comparison",
    )
    assert max(after_jumps, after_all) < MEMORY_MAX
