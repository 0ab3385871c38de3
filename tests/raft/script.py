"""Runs stories: text files in which every command is followed by its output; compares them, or writes them again.

A line that begins with `#` is for the reader, `>` begins a command, blank lines part the scenes. All other lines are
the output of the command above. `pytest --rewrite` writes the output into the file; without it a difference fails. The
form is etcd's and toydb's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.raft.script_commands import Story

FOLDER = Path(__file__).parent / "scripts"


class StoryError(Exception):
    """A line of a story that cannot be carried out."""


def stories() -> list[Path]:
    """Every story, by name."""
    return sorted(FOLDER.glob("*.txt"))


def play(text: str, name: str) -> str:
    """The story as it comes out now: its comments and commands, each with its output. Raises StoryError."""
    story = Story()
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#") or not line:
            lines.append(line)
        elif line.startswith("> "):
            lines.append(line)
            try:
                lines += story.do(line[2:])
            except Exception as error:
                raise StoryError(f"{name}:{number}: {line}: {type(error).__name__}: {error}") from error
    return "\n".join(lines) + "\n"


def intent(text: str) -> str:
    """What the story says before its first command."""
    return " ".join(_opening(text))


def _opening(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        yield line.removeprefix("#").strip()
