"""Defines the saved form of one run of the bench, and renders it as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from bench.comparison.goals import Goal
from bench.instruments.conditions import Conditions
from bench.instruments.figures import Figure, Ratio
from bench.loads import openloop
from bench.loads.followers import Delivery


class Report(msgspec.Struct, frozen=True):
    """One run."""

    when: str
    commit: str
    seconds: int
    rounds: int
    round_seconds: int
    conditions: Conditions
    contenders: list[str]
    skipped: dict[str, str]
    failed: dict[str, str]
    figures: list[Figure]
    ratios: list[Ratio]
    followers: Delivery | None
    open_loop: openloop.Offered | None
    goals: list[Goal]


def _head(report: Report) -> Iterator[str]:
    disk = report.conditions.disk
    quiet = "quiet" if report.conditions.is_quiet else "BUSY: no ratio is quoted"
    yield "# Bench"
    yield ""
    yield (
        f"{report.when}, commit {report.commit}; {report.rounds} interleaved rounds of {report.round_seconds} s, "
        f"{report.seconds} s in all; median of the rounds."
    )
    yield (
        f"Machine {report.conditions.busy_before:.0%} busy before ({quiet}); fdatasync p50 {disk.p50_us:.0f} µs, "
        f"p99 {disk.p99_us:.0f} µs on {disk.filesystem}."
    )
    yield f"raftlog's {report.conditions.modules} modules on {report.conditions.python}."


def _goals(report: Report) -> Iterator[str]:
    yield from ("", "## Goals", "", "| goal | asked | measured | |", "| --- | --- | --- | --- |")
    for goal in report.goals:
        measured = "" if goal.measured is None else f"{goal.measured:,g}"
        verdict = goal.note if goal.is_met is None else "met" if goal.is_met else "not met"
        yield f"| {goal.what} | {goal.wanted} | {measured} | {verdict} |"


def _figures(report: Report) -> Iterator[str]:
    for load in dict.fromkeys(figure.load for figure in report.figures):
        yield from ("", f"## {load.capitalize()}", "")
        yield "| contender | c | per second | p50 ms | p99 ms | p99.9 ms | CPU µs/op | MiB | bad |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
        for figure in report.figures:
            if figure.load == load:
                times = " | ".join(
                    f"{median(getattr(run, name) for run in figure.runs):.2f}"
                    for name in ("p50_ms", "p99_ms", "p999_ms")
                )
                yield (
                    f"| {figure.contender} | {figure.connections} | {figure.per_second:,.0f} | {times} | "
                    f"{figure.cpu_us_per_operation:,.1f} | {figure.memory_mib:,.0f} | {figure.bad} |"
                )


def _ratios(report: Report) -> Iterator[str]:
    if not report.ratios:
        return
    yield from ("", "## Ratios", "", "| ours | beside | load | c | throughput | rounds | p99 |")
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for each in report.ratios:
        throughput = "noisy" if each.is_noisy else f"{each.throughput:.2f}×"
        yield (
            f"| {each.ours} | {each.peer} | {each.load} | {each.connections} | {throughput} | "
            f"{each.lowest:.2f}-{each.highest:.2f} | {'' if each.is_noisy else f'{each.p99:.2f}×'} |"
        )


def _rest(report: Report) -> Iterator[str]:
    if (delivery := report.followers) is not None:
        yield from ("", "## Followers", "")
        yield (
            f"{delivery.followers:,} followers, {delivery.written:,} records: {delivery.delivered:,} delivered, "
            f"{delivery.missing} missing; p50 {delivery.p50_ms:.0f} ms, p99 {delivery.p99_ms:.0f} ms, at most "
            f"{delivery.max_ms:.0f} ms; CPU a delivered record {delivery.nodes_cpu_us:.2f} µs of all nodes, "
            f"{delivery.client_cpu_us:.2f} µs of the client."
        )
    if (run := report.open_loop) is not None:
        yield from ("", "## Open loop", "")
        yield (
            f"{run.offered_per_second:,} writes/s offered over {run.connections} connections: p50 {run.p50_ms:.1f}, "
            f"p99 {run.p99_ms:.1f}, p99.9 {run.p999_ms:.1f} ms; {run.answered} of {run.sent} answered, {run.bad} bad."
        )


def _left_out(report: Report) -> Iterator[str]:
    for title, table in (("Skipped", report.skipped), ("Failed", report.failed)):
        if table:
            yield from ("", f"## {title}", "")
            yield from (f"- {name}: {reason}" for name, reason in table.items())


def verdicts(report: Report) -> str:
    """The goals, and the skipped and failed parts."""
    return "\n".join([*_goals(report), *_left_out(report)])


def markdown(report: Report) -> str:
    """The report as a page."""
    parts = (_head, _goals, _figures, _ratios, _rest, _left_out)
    return "\n".join(line for part in parts for line in part(report)) + "\n"


def save(report: Report, path: Path) -> None:
    """The results and the page, side by side."""
    save_json(report, path)
    path.with_suffix(".md").write_text(markdown(report), encoding="utf-8")


def save_json(value: object, path: Path) -> None:
    """A value as readable JSON; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
