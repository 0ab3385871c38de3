"""Completes the metadata of sdist and wheels: hatchling calls this (pyproject.toml).

A registry shows README.md as the page of the project, where a link to a file of the repository leads nowhere. With the
setting `source` such links and pictures name the files of this version there, and the project has its URLs. Without
it the text of a link stays, and a picture goes.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")
"""A link or, with the mark before it, a picture of Markdown: its text, and a target that is no URL."""


class Metadata(MetadataHookInterface):
    """Sets the dynamic fields `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """`metadata` is the table [project], which this completes."""
        source, version = self.config["source"].rstrip("/"), metadata["version"]
        if source:
            metadata["urls"] = {
                "Source": source,
                "Documentation": f"{source}/blob/{version}/docs/README.md",
                "Changelog": f"{source}/blob/{version}/CHANGELOG.md",
            }
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, source, version)}


def absolute(text: str, source: str, version: str) -> str:
    """The Markdown `text` without links to files beside it; `source` is empty where no address is known."""

    def replaced(found: re.Match[str]) -> str:
        is_picture, words, target = found.groups()
        if source:
            return f"{is_picture}[{words}]({source}/{'raw' if is_picture else 'blob'}/{version}/{target})"
        return "" if is_picture else words

    return _RELATIVE.sub(replaced, text)
