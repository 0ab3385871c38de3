"""Writes the pages of the site into a folder: those of docs/, the first steps of README.md, and a reference from code.

`.ci/docs` runs it before Sphinx. A link from docs/ to another file of the repository becomes a link into `source` of
pyproject.toml, or plain text as long as that is empty. The list of contents follows docs/README.md: each of its
sections is a part of the site.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer
import yaml
from typer.core import TyperArgument, TyperGroup, TyperOption

from raftlog.cluster.api.errors import ERRORS
from raftlog.cluster.cli.commands import build
from raftlog.cluster.config.bounds import DERIVED
from raftlog.cluster.config.settings import load_settings
from tests.cluster.cli.test_docs_blocks import NOT_RUN
from tests.house.rules import ROOT

LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")
"""A link of Markdown, but no picture, to a target that is no URL: its text, the path, and the place in it."""
FIRST_STEPS: Final = "first_steps.md"
REFERENCE: Final = ("commands.md", "settings.md", "routes.md")
"""The pages that are made from the code."""


def pages() -> dict[str, str]:
    """The Markdown of each page by its path below docs/."""
    found = {str(each.relative_to(ROOT / "docs")): each.read_text("utf-8") for each in (ROOT / "docs").rglob("*.md")}
    found[FIRST_STEPS] = (ROOT / "README.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    source = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["source"].rstrip("/")
    source = source and f"{source}/blob/{project['project']['version']}"
    found[FIRST_STEPS] = re.sub(r"(!\[[^\]]*\]\()docs/", r"\1", found[FIRST_STEPS])
    linked = {name: with_links(name, _with_marks(text), source) for name, text in found.items()}
    reference = dict(zip(REFERENCE, (commands(), settings(), routes()), strict=True))
    index = linked.pop("README.md")
    more = {
        "Reference": [*reference],
        "Internals": sorted(name for name in found if name.startswith("decisions/")),
    }
    return {**linked, **reference, "index.md": index + contents(index, more)}


def with_links(page: str, text: str, source: str) -> str:
    """The page with links that stay in the site, or lead to `source`; else their text is left."""
    folder = "" if page == FIRST_STEPS else "docs/" + posixpath.dirname(page)

    def placed(found: re.Match[str]) -> str:
        words, target, place = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path == "README.md":
            path = f"docs/{FIRST_STEPS}"
        elif path == "docs/README.md":
            path = "docs/index.md"
        if path == "docs/decisions":
            path = "docs/decisions/0001-record-decisions.md"
        if path.startswith("docs/") and path.endswith(".md"):
            here = posixpath.dirname(page)
            return f"[{words}]({posixpath.relpath(path.removeprefix('docs/'), here or '.')}{place})"
        if not (ROOT / path).exists():
            return found[0]  # code
        return f"[{words}]({source}/{path}{place})" if source else words

    return LINK.sub(placed, text)


def _with_marks(text: str) -> str:
    """The page with its marks of blocks that no test runs as words that readers see."""
    return NOT_RUN.sub(lambda found: f"\n*No test runs this block: {found[1]}.*\n", text)


def contents(index: str, more: Mapping[str, Sequence[str]]) -> str:
    """The hidden list of contents: each section of the index with the pages that it links first, and with `more`."""
    seen, parts = set[str](), list[str]()
    for section in index.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        own = [path for _, path, _ in LINK.findall(text) if path.endswith(".md")]
        own = [name for name in dict.fromkeys([*own, *more.get(title, ())]) if name not in seen]
        seen.update(own)
        parts.append("\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *own, "```"]))
    return "\n\n" + "\n\n".join(parts) + "\n"


def table(head: str, rows: Iterator[tuple[Any, ...]]) -> str:
    """A table of Markdown."""
    names = head.split(", ")
    cells = ([str(each).replace("|", "\\|").replace("\n", " ") for each in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ["---"] * len(names), *cells])


def commands() -> str:
    """Every command with its options, as `--help` has them."""
    lines = ["# Commands", "", "Every command and option, from the code. [cli.md](cli.md) explains them by task.", ""]
    main = typer.main.get_command(build())
    assert isinstance(main, TyperGroup)
    for name, command in _leaves(main, "raftlog"):
        options = [each for each in command.params if isinstance(each, TyperOption) and not each.hidden]
        arguments = " ".join(each.human_readable_name for each in command.params if isinstance(each, TyperArgument))
        said = " ".join((command.help or "").split())
        lines += [f"## {name}", "", f"`{name} {arguments}`".replace(" `", "`"), "", _plain(said), ""]
        own = [each for each in options if each.name not in ("output", "encoding", "endpoints", "deadline", "help")]
        if own:
            rows = ((f"`{', '.join([*each.opts, *each.secondary_opts])}`", _plain(each.help or "")) for each in own)
            lines += [table("option, meaning", rows), ""]
    return "\n".join(lines)


def _leaves(group: TyperGroup, name: str) -> Iterator[tuple[str, Any]]:
    """The commands below a group with their whole names."""
    for each, command in sorted(group.commands.items()):
        if not isinstance(command, TyperGroup) or command.invoke_without_command:
            yield f"{name} {each}", command
        if isinstance(command, TyperGroup):
            yield from _leaves(command, f"{name} {each}")


def _plain(text: str) -> str:
    """Text of the code, in which no character is Markdown."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", re.sub(r"\[/?bold\]", "", text))


def settings() -> str:
    """Every setting with its default, and the setting that a bound follows."""
    found = load_settings(None)
    rows = (
        (
            f"`{each.key}`",
            f"`{json.dumps(each.value)}`",
            "`{}` × {}".format(*of) if (of := DERIVED.get(each.key)) else "",
        )
        for each in found.origins
    )
    head = "Every setting of a node and its default, from the code. [operations](operations/README.md) has meanings."
    return f"# Settings\n\n{head}\n\n{table('setting, default, follows', rows)}\n"


def routes() -> str:
    """Every route of the HTTP API, and every error code."""
    api = yaml.safe_load((ROOT / "cluster/api/openapi.yaml").read_text("utf-8"))
    rows = (
        (f"`{method.upper()} {path}`", _plain(route.get("summary", "")))
        for path, methods in api["paths"].items()
        for method, route in methods.items()
        if method != "parameters"
    )
    codes = ((f"`{code}`", row.status, row.outcome, "yes" if row.retryable else "no") for code, row in ERRORS.items())
    head = "Every route and error code, from `openapi.yaml` and the code. [http_api.md](http_api.md) explains them."
    return (
        f"# Routes and errors\n\n{head}\n\n{table('route, effect', rows)}\n\n## Errors\n\n"
        f"{table('code, status, outcome of a write, retryable', codes)}\n"
    )


def main(folder: str) -> None:
    """Writes the pages, and the pictures beside them."""
    for name, text in pages().items():
        file = Path(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for picture in [*(ROOT / "docs").glob("*.svg"), *(ROOT / "docs").glob("*.png")]:
        shutil.copy(picture, folder)


if __name__ == "__main__":
    main(sys.argv[1])
