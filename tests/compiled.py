"""Lets tests run against compiled modules (`make test-compiled`), and skips those that change the inside of one.

Compiled code calls functions and reads constants of its own group directly: a test that replaces one would prove
nothing. Such a test runs on the interpreted modules alone, from the same files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from typing import Any, Final

import pytest

from raftlog.cluster.runtime import build

_STAND_IN = re.compile(r"(expected; got|apply to a) '?(types\.SimpleNamespace|tests\.)")
_READ_ONLY = re.compile(r"'\w+' object attribute '\w+' is read-only")
INTERPRETED_ONLY = pytest.mark.skipif(
    build.modules() == "compiled", reason="looks into objects or bytecodes: runs on interpreted modules only"
)


def is_compiled(target: object) -> bool:
    """Whether a module is compiled, or a class, function or object comes from a compiled module."""
    name = getattr(target, "__name__", "") if isinstance(target, type(sys)) else ""
    name = name or getattr(target, "__module__", None) or type(target).__module__
    file = getattr(sys.modules.get(name), "__file__", None) or ".py"
    return name.startswith("raftlog.") and not file.endswith(".py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Compiled functions check the types of their arguments: a test that hands them a stand-in is skipped. So is one
    that replaces a method of a compiled object."""
    report = yield
    if call.excinfo is not None and build.modules() == "compiled":
        said = str(call.excinfo.value)
        why = ""
        if call.excinfo.errisinstance(TypeError) and _STAND_IN.search(said):
            why = "hands a stand-in to a compiled function"
        elif call.excinfo.errisinstance(AttributeError) and _READ_ONLY.search(said):
            why = "changes the inside of a compiled object"
        if why:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"{why}: runs on interpreted modules only")
    return report


_setattr: Final = pytest.MonkeyPatch.setattr


def _setattr_or_skip(self: pytest.MonkeyPatch, target: Any, *rest: Any, **options: Any) -> None:
    """pytest's, which skips the test where it would change a compiled module; also in a `context()`."""
    owner = target
    if isinstance(target, str):  # "package.module.Class.name"
        parts = target.split(".")
        found = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        owner = sys.modules.get(next((name for name in found if name in sys.modules), ""))
    if is_compiled(owner):
        pytest.skip("changes the inside of a compiled module: runs on interpreted modules only")
    _setattr(self, target, *rest, **options)


if build.modules() == "compiled":
    pytest.MonkeyPatch.setattr = _setattr_or_skip  # type: ignore[method-assign]
