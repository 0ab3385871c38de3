"""Each target of the Makefile sets up what it needs and no more."""

import subprocess

import pytest

from tests.house.rules import ROOT


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("demo", {"java"}),
        ("check", set()),
        ("fix", set()),
        ("sim", set()),
        ("quick", set()),
        ("test", {"java", "toxiproxy"}),
        ("test-all", {"java", "toxiproxy", "pyright", "opensearch"}),
        ("chaos", {"java", "toxiproxy"}),
        ("setup", {"java", "toxiproxy"}),
        ("release", set()),
        ("docs", set()),
    ],
)
def test_a_make_target_sets_up_its_tools(target: str, parts: set[str]) -> None:
    """`make -n` shows the calls of the set-up: the demo needs no Toxiproxy, the checks need neither it nor Java."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    calls = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(".ci/setup")]
    assert calls
    assert {part for call in calls for part in call} == parts
