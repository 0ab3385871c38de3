"""Tests the study of what permissions cost, on little work."""

from __future__ import annotations

from functools import partial

import pytest

from bench.studies import permissions


def test_the_study_measures_both_costs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with 1 only if a check is too slow."""
    monkeypatch.setattr(permissions, "JUDGED", 20)
    monkeypatch.setattr(permissions, "PUTS", 20)
    monkeypatch.setattr(permissions, "GRANTS", (1, 20))
    monkeypatch.setattr(permissions, "check_us", partial(permissions.check_us, rounds=1))
    monkeypatch.setattr(permissions, "apply_us", partial(permissions.apply_us, entries=2))
    monkeypatch.setattr(permissions, "CHECK_US_MAX", 1e9)
    assert permissions.main() == 0
    monkeypatch.setattr(permissions, "CHECK_US_MAX", 0.0)
    assert permissions.main() == 1
    assert "a check with 20 grants takes more than 0.0 µs" in capsys.readouterr().out
