"""docs/python.md is complete and of today; a star import gives the public names, and nothing else."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import raftlog
from tests.house.client_reference import MODULES, PAGE, methods_of, page, text_of


def public_things() -> list[tuple[str, object]]:
    """Every public name, and every public method of a class among them."""
    found: list[tuple[str, object]] = []
    for name, module in MODULES.items():
        for each in module.__all__:
            thing = getattr(module, each)
            found.append((f"{name}.{each}", thing))
            if inspect.isclass(thing):
                found += [(f"{name}.{each}.{method}", own) for method, own in methods_of(thing)]
    return found


def test_the_reference_of_the_client_is_of_today() -> None:
    """`make fix` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_each_public_name_says_itself_what_it_does() -> None:
    """A docstring of its own, and not only another one's name: "As SyncConsumer.claim" says nothing to a reader."""
    assert len(public_things()) > 80
    for name, thing in public_things():
        if callable(thing) and not hasattr(thing, "__origin__"):
            assert len(text_of(thing).split()) > 3, name
            assert not text_of(thing).startswith("As "), name


@pytest.mark.parametrize("module", MODULES.values(), ids=[*MODULES])
def test_a_star_import_gives_public_names_alone(module: ModuleType) -> None:
    """No module such as `os`, and nothing that is not of raftlog but a constant."""
    for name in module.__all__:
        thing = getattr(module, name)
        assert not inspect.ismodule(thing), name
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__module__.startswith("raftlog"), name


def test_the_package_shows_its_public_names_alone() -> None:
    """By `dir`, as completion asks it; and no star import needs a package that only `raftlog.arrow` needs."""
    assert {name for name in dir(raftlog) if not name.startswith("_")} == {
        *raftlog.__all__,
        "arrow",
        "sinks",
        "sources",
    }
    assert "arrow" not in raftlog.__all__
