"""Renders the report as one self-contained HTML page: verdicts, plots, tables; it fetches no other file."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from bench.comparison.report import Report, markdown, verdict_of
from bench.instruments import plots

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1000px;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse;margin:.6em 0}td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}
.met{color:#0b6e4f;font-weight:600}.missed{color:#b3261e;font-weight:600}.unknown{color:#777}
svg{width:100%;height:auto;margin:.6em 0}svg text{font:12px system-ui,sans-serif;fill:currentColor}
svg .title{font-size:15px;font-weight:600}svg .grid{stroke:#8884;stroke-width:1}
@media(prefers-color-scheme:dark){body{background:#181a1b;color:#ddd}td,th{border-color:#444}.met{color:#66c2a0}}
"""


def _plots(report: Report) -> Iterator[str]:
    for load in dict.fromkeys(figure.load for figure in report.figures):
        figures = [figure for figure in report.figures if figure.load == load]
        counts = {figure.connections for figure in figures}
        if len(counts) > 2:
            rates: dict[str, list[tuple[float, float]]] = {}
            p99: dict[str, list[tuple[float, float]]] = {}
            for figure in figures:
                rates.setdefault(figure.contender, []).append((figure.connections, figure.per_second))
                worst = sorted(run.p99_ms for run in figure.runs)[len(figure.runs) // 2]
                p99.setdefault(figure.contender, []).append((figure.connections, worst))
            yield plots.lines(f"{load}: per second, over connections", rates)
            yield plots.lines(f"{load}: p99 in ms, over connections", p99)
        else:
            for count in sorted(counts):
                rows = {figure.contender: figure.per_second for figure in figures if figure.connections == count}
                yield plots.bars(f"{load}: per second, c={count}", rows, "")
        most = max(counts & {16, 64, 256} or counts)
        cost = {figure.contender: figure.cpu_us_per_operation for figure in figures if figure.connections == most}
        yield plots.bars(f"{load}: processor time of all nodes, c={most}", cost, "µs/op")


def _tables(text: str) -> Iterator[str]:
    """The tables, headings and sentences of our own Markdown as HTML."""
    is_open = False
    for line in text.splitlines():
        is_row = line.startswith("|")
        if is_open and not is_row:
            yield "</table>"
        if is_row and not is_open:
            yield "<table>"
        if is_row and not line.startswith("| ---"):
            cell = "td" if is_open else "th"
            yield (
                "<tr>" + "".join(f"<{cell}>{escape(each.strip())}</{cell}>" for each in line[1:-1].split("|")) + "</tr>"
            )
        elif line.startswith("## "):
            yield f"<h2>{escape(line[3:])}</h2>"
        elif line and not is_row and not line.startswith("# "):
            yield f"<p>{escape(line)}</p>"
        is_open = is_row
    if is_open:
        yield "</table>"


def html(report: Report) -> str:
    """The whole page."""
    rows = []
    for goal in report.goals:
        kind = "unknown" if goal.is_met is None else "met" if goal.is_met else "missed"
        measured = "" if goal.measured is None else f"{goal.measured:,g}"
        rows.append(
            f"<tr><td>{escape(goal.what)}</td><td>{escape(goal.wanted)}</td><td>{measured}</td>"
            f'<td class="{kind}">{escape(verdict_of(goal))}</td></tr>'
        )
    head, _, rest = markdown(report).partition("\n## Goals")
    body = rest.partition("\n## ")
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>raftlog bench</title>',
        f"<style>{_STYLE}</style><h1>Bench</h1>", *_tables(head), "<h2>Goals</h2><table>",
        "<tr><th>goal</th><th>asked</th><th>measured</th><th></th></tr>", *rows, "</table><h2>Plots</h2>",
        *_plots(report), *_tables(body[1] + body[2]), "</html>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"
