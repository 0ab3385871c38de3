"""A command of a story taken apart, and the table of commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftlog.raft.types import NodeId
from tests.raft.script_cluster import Cluster


@dataclass(frozen=True, slots=True)
class Words:
    """A command's words: plain ones in order, and options by name."""

    plain: tuple[str, ...]
    options: dict[str, str]

    def node(self) -> NodeId:
        """The node that the command is for: its first word."""
        return int(self.plain[0])

    def number(self, name: str, default: int = 0) -> int:
        """An option that is a number."""
        return int(self.options.get(name, default))


def parse(line: str) -> tuple[str, Words]:
    """The command's name and its words."""
    name, *words = line.split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    return name, Words(tuple(word for word in words if "=" not in word), options)


def parse_log(text: str) -> list[int | tuple[int, int]]:
    """`1,2,3x4`: entries by term, the last of four records."""
    entries: list[int | tuple[int, int]] = []
    for word in text.split(",") if text else ():
        term, _, count = word.partition("x")
        entries.append((int(term), int(count)) if count else int(term))
    return entries


COMMANDS: dict[str, Callable[[Cluster, Words], None]] = {}


def command(name: str) -> Callable[[Callable[[Cluster, Words], None]], Callable[[Cluster, Words], None]]:
    """Enter a function into the table of commands."""

    def enter(function: Callable[[Cluster, Words], None]) -> Callable[[Cluster, Words], None]:
        COMMANDS[name] = function
        return function

    return enter
