"""Runs pages in Chromium, where it is installed, by Playwright.

A page is a context manager. Its end fails if a script of the page reported an error, or the browser refused what the
page's policy forbids. Playwright keeps a loop of asyncio in the thread that uses it, so tests that look at pages are
plain functions; `held` opens a server's asynchronous context for them.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Literal, TypeVar

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.support import HANG_S

Held = TypeVar("Held")

_OF_A_REFUSAL = "Failed to load resource: the server responded with a status of"
"""How Chromium reports each answer with a status of 400 or more, which a page may expect."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, without a window; skips where there is none. Waits of pages and of `expect` last HANG_S at most."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium: the page is not looked at in a browser (Debian: apt-get install chromium)")
    expect.set_options(timeout=HANG_S * 1_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page(
    browser: Browser,
    url: str,
    *,
    width: int = 1_200,
    theme: Literal["light", "dark"] = "light",
    allowed: str | None = None,
    **more: Any,
) -> Iterator[Page]:
    """The page at `url`, in a context of its own: no cookie, no cache. `more`: arguments of Playwright's `new_context`.

    At the end its scripts have reported nothing but what has `allowed`.
    """
    reports: list[str] = []
    size: ViewportSize = {"width": width, "height": 860}
    context = browser.new_context(viewport=size, color_scheme=theme, locale="en-GB", **more)
    context.set_default_timeout(HANG_S * 1_000)
    shown = context.new_page()
    shown.on("pageerror", lambda error: reports.append(str(error)))
    shown.on("console", lambda message: reports.append(message.text) if message.type in ("error", "warning") else None)
    try:
        shown.goto(url)
        yield shown
        found = [each for each in reports if not each.startswith(_OF_A_REFUSAL) and not (allowed and allowed in each)]
        assert not found, found
    finally:
        context.close()


@contextmanager
def held(manager: AbstractAsyncContextManager[Held]) -> Iterator[Held]:
    """What the asynchronous context gives, kept open by a loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="held")
    thread.start()
    try:
        value = asyncio.run_coroutine_threadsafe(manager.__aenter__(), loop).result(HANG_S)
        try:
            yield value
        finally:
            asyncio.run_coroutine_threadsafe(manager.__aexit__(None, None, None), loop).result(HANG_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(HANG_S)
        loop.close()
