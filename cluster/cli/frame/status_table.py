"""Draws the overview of a cluster as a table, for people: `raftlog status` and `raftlog up` show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raftlog.cluster.api.text import counted
from raftlog.cluster.cli.frame.output import UNBOUNDED, Row

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS: Final = {
    "node": "node",
    "role": "role",
    "term": "term",
    "committed": "commit",
    "applied": "applied",
    "match": "match",
    "lag": "lag",
    "lag_seconds": "lag s",
    "last_contact_ms": "ms ago",
    "url": "url",
}
"""The fields of a node's row, each with the short name above its column."""


def print_status(shown: Row) -> None:
    """Prints the table; into a file or a pipe without folding any line."""
    from rich.console import Console  # here: rich takes long to import

    console = Console(highlight=False)
    console.print(status_table(shown), width=None if console.is_terminal else UNBOUNDED)


def status_table(shown: Row) -> Table:
    """The overview as a table, for people."""
    from rich.markup import escape
    from rich.table import Table

    leader = "[red]no leader[/red]" if shown["leader"] is None else f"leader [bold]{shown['leader']}[/bold]"
    facts = [leader]
    if "term" in shown:
        facts += [
            f"term {shown['term']}",
            f"committed {shown['committed']}",
            f"revision {shown['revision']}",
            counted(shown["keys"], "key"),
            counted(shown["sessions"], "session"),
            f"log {shown['log']}",
            f"cluster version {_version_text(shown)}",
        ]
    table = Table(
        title="  ".join(facts), title_justify="left", title_style="", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in COLUMNS.values():
        is_text = name in ("role", "url")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name != "url", overflow="fold")
    for row in shown["nodes"]:
        row = row | {"role": f"{row['role']}, cut off"} if "cut_off" in row else row
        style = {"leader": "yellow" if shown.get("trouble") else "green", "unreachable": "red"}.get(row["role"], "")
        cells = [row.get(field) for field in COLUMNS]
        table.add_row(*("" if each is None else f"{each}" for each in cells), style=style)
    notes = [f"node {row['node']} is cut off: {row['cut_off']}" for row in shown["nodes"] if "cut_off" in row]
    notes += filter(None, [shown.get("trouble")])
    if notes:
        table.caption, table.caption_justify, table.caption_style = escape("\n".join(notes)), "left", "red"
    return table


def _version_text(shown: Row) -> str:
    """The version in force, and the nodes that hold back a newer one."""
    known = {row["node"]: row["known_version"] for row in shown["nodes"] if "known_version" in row}
    newest = max(known.values(), default=0)
    version: int = shown["cluster_version"]
    older = [f"{node}" for node, knows in known.items() if knows < newest]
    if newest <= version or not older:
        return f"{version}"
    return f"{version}, {newest} once node {', '.join(older)} is upgraded"
