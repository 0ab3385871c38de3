"""Fills the template of a page with the style that all pages share, and with texts or data of its own.

The pages of chaos, of the simulator and of analyses are made so. A page needs no other file: style and data are in it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

_HERE: Final = Path(__file__).parent


def style() -> str:
    """The colours, fonts, tables and figures of every page."""
    return (_HERE / "page.css").read_text(encoding="utf-8")


def colours(*, is_dark: bool = False) -> dict[str, str]:
    """The colours of a theme by their names, such as `ink` and `c0`, as `#rrggbb`."""
    themes = re.findall(r":root \{(.*?)\}", style(), re.DOTALL)
    return dict(re.findall(r"--(\w+): (#\w+)", themes[is_dark]))


def filled(template: Path, **parts: str) -> str:
    """The page with the shared style in the place of `{{STYLE}}`, and each part in the place of its name."""
    parts["style"] = style()
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1].lower()], template.read_text(encoding="utf-8"))


def with_data(template: Path, data: Any, **parts: str) -> str:
    """The page with this value as JSON. No text in it can end the element that holds it."""
    text = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    return filled(template, **parts, data=text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def simple(title: str, body: str) -> str:
    """A page of HTML without a script: texts are escaped by the caller."""
    return filled(_HERE / "page.html", title=title, body=body)
