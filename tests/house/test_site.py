"""The site of the docs: its pages and their links, and the site itself, which needs no other host."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.house import site
from tests.house.rules import ROOT

RESOURCE = re.compile(r"""(?:src|href)=["'](?:https?:)?//([^/"']+)""")


def test_the_index_names_every_page_and_each_once() -> None:
    """What Sphinx would report as in no list of contents. Without the set-up of Sphinx."""
    found = site.pages()
    parts = re.findall(r"^```\{toctree\}\n(.*?)^```", found["index.md"], re.DOTALL | re.MULTILINE)
    listed = [line for part in parts for line in part.splitlines() if line.endswith(".md")]
    assert sorted(listed) == sorted(found.keys() - {"index.md"})


def test_links_out_of_the_docs_lead_to_the_source_or_are_text() -> None:
    """Links between pages stay; README.md is the page of the first steps. Code in brackets is left alone."""
    text = "[a](promises.md#b) [c](../README.md) [d](../CONTRIBUTING.md#add-a-route) [e](chart) x[1](f) ![p](demo.svg)"
    inside = "[a](promises.md#b) [c](first_steps.md) {} {} x[1](f) ![p](demo.svg)"
    assert site.with_links("cli.md", text, "") == inside.format("d", "e")
    far = "https://host/raftlog/blob/1"
    assert site.with_links("cli.md", text, far) == inside.format(
        f"[d]({far}/CONTRIBUTING.md#add-a-route)", f"[e]({far}/docs/chart)"
    )
    assert site.with_links("decisions/0001-x.md", "[a](../promises.md)", "") == "[a](../promises.md)"
    assert site.with_links(site.FIRST_STEPS, "[a](docs/promises.md)", "") == "[a](promises.md)"


def test_the_reference_has_what_the_code_has() -> None:
    """A command with its options, a setting with its default and the setting that it follows, a route, a code."""
    found = site.pages()
    assert "## raftlog members replace\n" in found["commands.md"]
    assert "| `--join-file` | Where to write the join file." in found["commands.md"]
    assert "| `limits.inbox_bytes_max` | `67108864` | `limits.memory_bytes` × 1/16 |" in found["settings.md"]
    assert "| `POST /v1/log` | Append a record" in found["routes.md"]
    assert "| `no_leader` | 503 |" in found["routes.md"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_make_docs_builds_a_site_that_needs_no_other_host() -> None:
    """Without a warning; and no page loads or links a file of another host."""
    done = subprocess.run([".ci/docs"], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = [*(ROOT / "dist/site").rglob("*.html")]
    assert len(built) > len(site.pages())
    hosts = {host for page in built for host in RESOURCE.findall(page.read_text("utf-8"))}
    assert hosts <= {"127.0.0.1:7001"}, hosts
