"""Defines the commands that break a real cluster: `raftlog chaos run`, `list` and `report`.

Toxiproxy's client, the cluster and the checkers are imported only when a command runs, so that no other command waits
for their import.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from raftlog.chaos.nemesis import Nemesis
    from raftlog.chaos.runs.runner import RunPlan
    from raftlog.chaos.runs.scenarios import Scenario
    from raftlog.chaos.runs.schedule import PlannedFault

SECONDS: Final = 60.0
SECONDS_MIN: Final = 5.0
TIMES: Final = 100
"""Losses of each outcome in a fail-over run."""

OUT: Final = Path("runs/chaos")
LENGTH_TRIED_S: Final = 600
"""Longest run that a message proposes, in seconds: every lane has had many faults by then."""

BROKEN: Final = 8
EXITS: Final[dict[str, int]] = {"valid": 0, "invalid": 1, "unknown": 6}
STYLES: Final[dict[str, str]] = {"valid": "bold green", "invalid": "bold red", "unknown": "bold yellow"}


def register(chaos: typer.Typer) -> None:
    """Adds the commands."""
    chaos.command("run")(run_command)
    chaos.command("list")(list_command)
    chaos.command("report")(report_command)


def run_command(
    scenario: Annotated[str, typer.Argument(help="What to do to it: see `raftlog chaos list`.")] = "all",
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="3, 5 or 7.")] = 5,
    seconds: Annotated[float | None, typer.Option(min=SECONDS_MIN, help="How long the load lasts: 60.")] = None,
    minutes: Annotated[float | None, typer.Option(min=SECONDS_MIN / 60, help="The same in minutes.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Draws the schedule; a fresh one, if not given.")] = None,
    nemesis: Annotated[str | None, typer.Option(metavar="A+B", help="These nemeses or families instead.")] = None,
    times: Annotated[int, typer.Option(min=1, help="With failover: losses of each outcome.")] = TIMES,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With failover: count the losses of that run, lose the rest.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the folder of the run is made.")] = OUT,
    base_port: Annotated[
        int | None, typer.Option(min=1024, max=65000, help="Ports from here on; free ones, if not given.")
    ] = None,
    mutant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Nodes with this planted bug: the verdict should be invalid.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of every node; may be repeated.")
    ] = None,
    secure: Annotated[bool, typer.Option("--secure", help="Nodes with TLS and access control.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the nodes' data also when the verdict is valid.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and what people read on standard error.")
    ] = False,
) -> None:
    """Break a real cluster on purpose: exit code 0 valid, 1 invalid, 6 unknown, 8 if the run could not be made."""
    from raftlog.chaos.nemesis import UnknownNemesis
    from raftlog.chaos.runs.scenarios import FAILOVER, UnknownScenario, always_of, nemeses_of, scenario_of

    if nodes not in (3, 5, 7):
        raise typer.BadParameter(f"{nodes}: clusters of 3, 5 or 7 nodes are tried", param_hint="--nodes")
    if seconds is not None and minutes is not None:
        raise typer.BadParameter("give --seconds or --minutes, not both", param_hint="--minutes")
    lasts_s = seconds if seconds is not None else 60 * minutes if minutes is not None else SECONDS
    try:
        chosen = scenario_of(scenario)
        names = tuple(nemesis.split("+")) if nemesis else ()
        kinds, always = nemeses_of(chosen, names, nodes, lasts_s), always_of(chosen, names, lasts_s)
    except UnknownScenario as error:
        raise typer.BadParameter(str(error), param_hint="SCENARIO") from error
    except UnknownNemesis as error:
        raise typer.BadParameter(str(error), param_hint="--nemesis") from error
    command, settings = _node_command(mutant), _settings(set_ or [])
    drawn = seed if seed is not None else secrets.randbelow(1_000_000)
    words = ["raftlog", "chaos", "run", scenario, "--nodes", str(nodes), "--seed", str(drawn)]
    words += ["--nemesis", nemesis] if nemesis else []
    words += ["--mutant", mutant] if mutant else []
    words += ["--secure"] if secure else []
    words += [word for each in set_ or [] for word in ("--set", each)]
    words += ["--times", str(times)] if chosen.name == FAILOVER else ["--seconds", f"{lasts_s:g}"]
    planned = () if chosen.name == FAILOVER else _planned(chosen, kinds, drawn, lasts_s, always)
    with broken_is_no_verdict():
        from raftlog.chaos.runs.runner import RunPlan

        if chosen.name == FAILOVER:
            from raftlog.chaos.runs import failover

            planned = failover.plan(drawn, times)
            if resume is not None:
                failover.losses_of(resume)  # reports a broken line before any process starts
        plan = RunPlan(chosen, planned, nodes, lasts_s, drawn, command, settings, secure)
        console = Console(stderr=as_json, highlight=False, soft_wrap=True)
        result = _run(plan, words, out, base_port, resume, keep, console)
        if as_json:
            print(json.dumps(result, ensure_ascii=False))
    raise typer.Exit(EXITS[result["verdict"]])


def _planned(
    scenario: Scenario, kinds: Sequence[Nemesis], seed: int, seconds: float, always: tuple[str, ...]
) -> tuple[PlannedFault, ...]:
    """The schedule. Raises BadParameter, with the length that is enough, if it has too few faults for a verdict."""
    from raftlog.chaos.runs.schedule import schedule

    lanes = {each.name: (each.lane, each.lasts_s) for each in kinds}
    heavy = [each.name for each in kinds if each.is_heavy]
    planned = schedule(seed, seconds, lanes, heavy, always)
    if len(planned) < scenario.faults_min:
        longer = range(int(seconds) + 1, LENGTH_TRIED_S)
        enough = (each for each in longer if len(schedule(seed, each, lanes, heavy, always)) >= scenario.faults_min)
        raise typer.BadParameter(
            f"a verdict of {scenario.name} needs {scenario.faults_min} faults, and seed {seed} has {len(planned)} in "
            f"{seconds:g} s: give {next(enough, LENGTH_TRIED_S)} or more",
            param_hint="--seconds",
        )
    return planned


def _node_command(mutant: str | None) -> tuple[str, ...]:
    """The command of each node: the node's own, or the one that plants that mutant. Raises BadParameter if there
    is none, or if it does not fit production as it is."""
    if mutant is None:
        from raftlog.chaos.deploy.deployment import NODE_COMMAND

        return NODE_COMMAND
    from raftlog.chaos.sim.mutants import CannotPlant, named

    try:
        list(named(mutant).planned())
    except CannotPlant as error:
        raise typer.BadParameter(str(error), param_hint="--mutant") from error
    return (sys.executable, "-m", "raftlog.chaos.sim.mutants", mutant, "--")


def _settings(words: list[str]) -> dict[str, Any]:
    """`raft.heartbeat_ms=50` as a key and a value of the settings file."""
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{word!r} is not KEY=VALUE", param_hint="--set")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


def _run(
    plan: RunPlan,
    words: list[str],
    out: Path,
    base_port: int | None,
    resume: Path | None,
    keep: bool,
    console: Console,
) -> dict[str, Any]:
    """The result of the run, shown."""
    from raftlog.chaos.deploy import toxiproxy_server
    from raftlog.chaos.record.progress import Progress
    from raftlog.chaos.runs import aftermath, failover
    from raftlog.chaos.runs.judgement import judge_run
    from raftlog.chaos.runs.result import new_folder, save
    from raftlog.chaos.runs.runner import Run, execute
    from raftlog.chaos.runs.scenarios import FAILOVER, needs_of
    from raftlog.chaos.workloads.workload import Arena
    from raftlog.cluster.node.ports import free_ports, ports_from

    toxiproxy_server.server_path()
    ports = free_ports if base_port is None else ports_from(base_port)
    folder = new_folder(out, plan.scenario.name, plan.nodes, plan.seed)
    if resume is not None:
        shutil.copy(resume / failover.LOSSES, folder)
    again = escape(" ".join(words))
    console.print(f"seed {plan.seed}, {len(plan.planned)} faults planned; again: [bold]{again}[/bold]")
    console.print(f"for a verdict: {needs_of(plan.scenario, plan.planned, plan.seconds)}")
    drive = arena = None
    if plan.scenario.name == FAILOVER:
        drive = failover.lose_leaders
        arena = Arena(plan.seed, pace=plan.scenario.pace, policy=failover.POLICY, all_bound=True)
    with Progress(console) as progress:
        try:
            run = asyncio.run(execute(plan, folder, ports, progress.update, drive=drive, arena=arena))
        except Exception:
            if not (failures := aftermath.failures(folder / "nodes")):
                raise
            run = Run(plan, folder, [], [], Arena(plan.seed))  # that is a finding, not an error
            run.aftermath.problems += failures
        progress.say("judging")
        result = save(run, judge_run(run), words)
    if result["verdict"] == "valid" and not keep:
        shutil.rmtree(folder / "nodes" / "data", ignore_errors=True)
    _show_page(folder, result, console)
    return result


def _show_page(folder: Path, result: dict[str, Any], console: Console) -> None:
    """Writes the page of the run, and shows where it is below its result."""
    from raftlog.chaos.record.page import write_page

    page = write_page(folder)
    show(result, console)
    console.print(f"report: {page}", soft_wrap=True)


def list_command() -> None:
    """The scenarios, and the nemeses that each family has."""
    from raftlog.chaos.nemesis import FAMILIES
    from raftlog.chaos.runs.scenarios import SCENARIOS

    console = Console(highlight=False)
    scenarios = Table("scenario", "what it does", box=None, pad_edge=False)
    for each in SCENARIOS.values():
        scenarios.add_row(each.name, each.says)
    console.print(scenarios, "")
    nemeses = Table("nemesis", "family", "lane", "lasts", "what it does", box=None, pad_edge=False)
    for family, members in FAMILIES.items():
        for one in members:
            least = f" (from {one.nodes_min} nodes on)" if one.nodes_min > 3 else ""
            lasts = f"{one.lasts_s[0]:g}-{one.lasts_s[1]:g} s"
            nemeses.add_row(one.name, family, one.lane, lasts, f"{one.says}{least}")
    console.print(nemeses)


def report_command(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, such as runs/chaos/latest.")],
) -> None:
    """Write the page of a run again and show its result: exit code as that of the run, 8 if it cannot be read."""
    from raftlog.chaos.record.folder import load

    with broken_is_no_verdict():
        result = load(folder)
        _show_page(folder, result, Console(highlight=False, soft_wrap=True))
    raise typer.Exit(EXITS[result["verdict"]])


@contextmanager
def broken_is_no_verdict() -> Iterator[None]:
    """What goes wrong ends the process with a line on standard error, and never with the exit code of a verdict."""
    try:
        yield
    except KeyboardInterrupt:
        _say("interrupted")
    except typer.BadParameter:
        raise
    except (asyncio.CancelledError, Exception) as error:
        _say(_first_of(error))
    else:
        return
    raise typer.Exit(BROKEN)


def _first_of(error: BaseException) -> str:
    """What went wrong, for people; of several at once the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, RuntimeError | ValueError | OSError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _say(text: str) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[red]error:[/red] {escape(text)}. There is no verdict")


def _met(result: dict[str, Any], kind: str) -> str:
    """At how many of these events a direct request was under way."""
    return f" ({result['met'][kind]} met by requests)" if kind in result["met"] else ""


def show(result: dict[str, Any], console: Console) -> None:
    """The result for people: the verdict and a sentence first, then why, then numbers."""
    from raftlog.chaos.record.folder import sentence

    installed = [each for each in result["faults"] if each["outcome"] == "installed"]
    kinds = len({each["nemesis"] for each in installed})
    console.print(f"[{STYLES[result['verdict']]}]{result['verdict']}[/]: {escape(sentence(result))}")
    console.print(
        f"  {result['operations']:,} operations in "
        f"{result['load_s']:.0f} s, {len(installed)} of {len(result['faults'])} faults of {kinds} kinds, up to "
        f"{result['overlapping_max']} at once, {len(result['leaders'])} leaders, "
        f"{result['without_leader_s']:.1f} s without one"
    )
    if result["happened"]:
        counted = (f"{count} {kind}{_met(result, kind)}" for kind, count in result["happened"].items())
        console.print(f"  inside the nodes: {', '.join(counted)}")
    for text in result["problems"]:
        console.print(f"  [red]{escape(text)}[/red]")
    for text in result["missing"]:
        console.print(f"  [yellow]too little happened: {escape(text)}[/yellow]")
    for each in result["workloads"]:
        ok, fail, info = (sum(by.get(word, 0) for by in each["counts"].values()) for word in ("ok", "fail", "info"))
        settled = each["settled"]
        console.print(
            f"  {each['name']}: [{STYLES[each['verdict']]}]{each['verdict']}[/], {ok:,} ok, {fail:,} failed, "
            f"{info:,} unknown (by the log {settled['applied']} were applied), checked in "
            f"{each['check']['seconds']:.2f} s"
        )
        for text in [*each["log_problems"], *each["check"]["problems"]]:
            console.print(f"    [red]{escape(text)}[/red]")
    if result["recovery_s"]:
        took = result["recovery_s"]
        console.print(f"  from a fault's end to the next write: p50 {took['p50']:.3f} s, p99 {took['p99']:.3f} s")
    for row in result["failover"]:
        goal = {True: ", within the goal", False: ", [yellow]beyond the goal[/yellow]"}.get(row.get("within_goal"), "")
        console.print(
            f"  leader lost ({row['loss']}), {row['count']} times: to the next write "
            + ", ".join(f"{name} {1000 * row[f'{name}_s']:.0f} ms" for name in ("p50", "p90", "p99", "max"))
            + goal
        )
