"""Divides command line options that list names by commas."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def named(option: str, text: str, known: Sequence[str]) -> list[str]:
    """The names that `text` lists by commas; all `known` ones where it lists none. Raises typer.BadParameter for a name
    that is not known."""
    chosen = [name.strip() for name in text.split(",") if name.strip()] or list(known)
    if unknown := [name for name in chosen if name not in known]:
        raise typer.BadParameter(f"{option}: there is no {unknown[0]!r}; there are {', '.join(known)}")
    return chosen
