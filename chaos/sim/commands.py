"""`raftlog sim`: run seeds of the simulator, and replay one.

Seeds are independent; each failure is printed with the command that repeats it.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from chaos.sim.world import Outcome, run_seed


def register(app: typer.Typer) -> None:
    """Put the command into the command line."""
    app.command("sim")(sim)


def sim(
    seeds: Annotated[str, typer.Option(help="which seeds: A:B (B not included), or one number")] = "0:100",
    seconds: Annotated[int, typer.Option(min=1, help="simulated seconds of trouble in each world")] = 10,
    replay: Annotated[int | None, typer.Option(help="run only this seed, and show what happened")] = None,
    trace: Annotated[bool, typer.Option(help="print every event")] = False,
) -> None:
    """Whole clusters in one process, under a seeded clock, network, disk and nemesis."""
    wanted = range(replay, replay + 1) if replay is not None else seed_range(seeds)
    show = typer.echo if trace else None
    started = said = time.monotonic()
    failures = 0
    simulated_ms = 0
    outcome: Outcome | None = None
    for done, seed in enumerate(wanted, start=1):
        try:
            outcome = run_seed(seed, seconds, trace=show)
        except AssertionError as error:
            failures += 1
            typer.secho(f"seed {seed}: {type(error).__name__}: {error}", fg="red")
            typer.echo(f"  replay: raftlog sim --replay {seed} --seconds {seconds} --trace")
        else:
            simulated_ms += outcome.stats["simulated ms"]
        now = time.monotonic()
        if now - said >= 2 or done == len(wanted):
            said = now
            elapsed = max(now - started, 1e-3)
            typer.echo(
                f"{done} of {len(wanted)} seeds, {failures} failed, {done / elapsed:.1f} seeds/s, "
                f"{simulated_ms / 1000 / elapsed:.0f} simulated seconds a second"
            )
    if replay is not None and outcome is not None:
        for name, number in outcome.stats.items():
            typer.echo(f"  {name}: {number}")
        typer.echo(f"  trace digest: {outcome.digest}")
    if failures:
        raise typer.Exit(1)


def seed_range(text: str) -> range:
    """`A:B` as a range, `A` as that one seed. Raises typer.BadParameter."""
    first, colon, end = text.partition(":")
    try:
        wanted = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        wanted = range(0)
    if not wanted or wanted.start < 0:
        raise typer.BadParameter(f"{text!r}: give seeds as A:B with A below B, such as 0:100, or as one number")
    return wanted
