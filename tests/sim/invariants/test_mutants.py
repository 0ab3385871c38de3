"""Planted bugs: each fits production, leaves no trace, and is found by what its table names."""

import ast
import asyncio
import importlib
import inspect
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType

import pytest
from _pytest.mark import ParameterSet

from raftlog.chaos.sim.mutants import MUTANTS, CannotPlant, Edit, Mutant, find, named, plant
from raftlog.chaos.sim.mutants.__main__ import main
from raftlog.chaos.sim.mutants.mutant import function_of
from tests.planted import SHARE_PLANTED, Planter
from tests.raft import script
from tests.support import Patience

ROOT = Path(__file__).resolve().parent.parent.parent.parent

# The numbers of the list of planted bugs: every one is a mutant.
LISTED = range(1, 33)


def codes(mutant: Mutant) -> list[CodeType]:
    """The code of every function that the mutant changes."""
    return [function_of(edit.target).__code__ for edit in mutant.edits]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_planted_and_leaves_no_trace(name: str) -> None:
    """Each edit fits the function as it is now and changes its code; afterwards the very same code is back."""
    mutant = MUTANTS[name]
    before = codes(mutant)
    with plant(name):
        assert all(now is not then for now, then in zip(codes(mutant), before, strict=True))
    assert all(now is then for now, then in zip(codes(mutant), before, strict=True))


def test_an_error_leaves_no_trace_either() -> None:
    """Whatever is raised within: production is what it was."""
    mutant = MUTANTS["older_term_committed_by_counting"]
    before = codes(mutant)
    with pytest.raises(ZeroDivisionError), mutant.plant():
        raise ZeroDivisionError
    assert codes(mutant)[0] is before[0]


def test_what_does_not_fit_is_refused() -> None:
    """An edit whose text is not there, or not once, a function that is gone, an unknown name."""
    for edit in (
        Edit("raft.quorum:majority", "voters * 2", "voters"),
        Edit("raft.quorum:agreed", "configuration", "c"),
        Edit("raft.quorum:gone", "a", "b"),
        Edit("raft.quorum:VoteOutcome", "a", "b"),
    ):
        mutant = Mutant(name="wrong", title="", source="", target=edit.target, old=edit.old, new=edit.new)
        with pytest.raises(CannotPlant), mutant.plant():
            pass
    with pytest.raises(CannotPlant, match="there is no mutant"):
        named("nothing")


def needs_fixtures(story: str) -> bool:
    """Whether only pytest can call it: it has fixtures besides a folder, parameters of a fixture, or more than one mark
    with parameters."""
    path, _, name = story.partition("::")
    if path.endswith(".txt"):
        return False
    function = found_in(path, name)
    given = {"tmp_path"}
    of_file = getattr(inspect.getmodule(function), "pytestmark", [])
    marks = getattr(function, "pytestmark", []) + (of_file if isinstance(of_file, list) else [of_file])
    if sum(mark.name == "parametrize" for mark in marks) > 1:
        return True
    for mark in marks:
        if mark.name == "usefixtures" or mark.kwargs.get("indirect"):
            return True
        if mark.name == "parametrize":
            given.update([mark.args[0]] if isinstance(mark.args[0], str) else mark.args[0])
    return not given >= set(inspect.signature(function).parameters)


def found_in(path: str, name: str) -> Callable[..., object]:
    """A test function."""
    function: Callable[..., object] = getattr(
        importlib.import_module(path.removesuffix(".py").replace("/", ".")), name.partition("[")[0]
    )
    return function


STORIES = {name: mutant.story for name, mutant in MUTANTS.items() if mutant.story}


@pytest.fixture(scope="module")
def planter() -> Iterator[Planter]:
    """Runs stories that need fixtures, with a mutant planted."""
    planter = Planter()
    yield planter
    planter.close()


@pytest.mark.parametrize("name", STORIES)
def test_a_directed_story_sees_it(name: str, planter: Planter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What random worlds seldom meet, a test that plays exactly that story does. It passes without the mutant, as a
    test of its own; with it, it fails, for one of its parameters at least."""
    if needs_fixtures(STORIES[name]):
        code = planter.run(name, STORIES[name], out := tmp_path / "out.txt")
        assert code == pytest.ExitCode.TESTS_FAILED, out.read_text(encoding="utf-8")[-4_000:]
        return
    runs = list(runs_of(STORIES[name]))
    monkeypatch.setattr(Patience, "share", SHARE_PLANTED)
    with plant(name):
        for run in runs:
            try:
                run()
            except (Exception, pytest.fail.Exception):  # without the mutant the same call raises nothing
                return
    pytest.fail(f"{STORIES[name]} does not see it")


@pytest.mark.parametrize("story", sorted({story for story in STORIES.values() if not needs_fixtures(story)}))
def test_a_directed_story_passes_without_a_mutant(story: str) -> None:
    """Also as this file plays it, so that a mistake of the player is not taken for one that a story saw."""
    for run in runs_of(story):
        run()


def expect(shown: str, told: str) -> None:
    """The script shows what its file says."""
    assert shown == told


def runs_of(story: str) -> Iterator[Callable[[], object]]:
    """A test function, once for each value of its one parameter if it has one, with a folder if it asks for `tmp_path`,
    on a loop of its own if it is a coroutine; or a script."""
    path, _, name = story.partition("::")
    if path.endswith(".txt"):
        told = (ROOT / path).read_text(encoding="utf-8")
        yield lambda: expect(script.play(told, path), told)
        return
    found = found_in(path, name)
    function = partial(carried_out, found)
    marks = [mark for mark in getattr(found, "pytestmark", []) if mark.name == "parametrize"]
    if not marks:
        yield function
    for mark in marks:
        arguments, values = mark.args
        for value in values:
            if isinstance(value, ParameterSet):
                value = value.values[0] if isinstance(arguments, str) else value.values
            given = {arguments: value} if isinstance(arguments, str) else dict(zip(arguments, value, strict=True))
            yield partial(function, **given)


def carried_out(function: Callable[..., object], **arguments: object) -> None:
    """Runs a test function as pytest would."""
    with tempfile.TemporaryDirectory() as folder:
        if "tmp_path" in inspect.signature(function).parameters:
            arguments["tmp_path"] = Path(folder)
        result = function(**arguments)
        if inspect.iscoroutine(result):
            asyncio.run(result)


EASY = (
    "older_term_committed_by_counting",
    "vote_never_written",
    "acknowledged_before_fsync",
    "no_pre_vote",
    "leader_counts_itself_before_its_disk",
    "read_before_the_first_own_commit",
    "sessions_missing_from_the_snapshot",
    "only_the_last_sequence_kept",
    "match_moved_back",
    "vote_by_term_only",
    "read_without_a_round",
)


@pytest.mark.parametrize("name", EASY)
def test_a_planted_bug_is_found(name: str) -> None:
    """One of each kind is seen by the first worlds: the short form of docs/mutants.md, for every run of the tests."""
    found = find.find(name, 7_000, seconds=20, minutes=1)
    assert isinstance(found, find.Finding), found
    print(f"{name}: {found.property}, seed {found.seed}")


def test_every_planted_bug_of_the_list_is_a_mutant() -> None:
    """None is dropped. Any other mutant is of a pitfall of docs/pitfalls.md, or has a story."""
    assert {mutant.number for mutant in MUTANTS.values()} - {0} == set(LISTED)
    for mutant in MUTANTS.values():
        assert mutant.number or mutant.pitfall or mutant.story, mutant.name


def test_production_never_imports_mutants() -> None:
    """Only the command lines of the simulator and of the chaos harness plant them, on demand: no module of the service
    can."""
    allowed = {"chaos/sim/runs/commands.py", "chaos/sim/runs/runner.py", "chaos/commands/run.py"}
    for package in ("raft", "statemachine", "cluster", "spark_export", "chaos"):
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith("chaos/sim/mutants/") or name in allowed:
                continue
            if "mutants" not in (text := path.read_text("utf-8")):
                continue
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Import(names=names):
                        modules = [alias.name for alias in names]
                    case ast.ImportFrom(module=module, names=names):
                        modules = [f"{module}.{alias.name}" for alias in names]
                    case _:
                        continue
                assert not any("mutants" in module for module in modules), name


def test_the_command_line_runs_with_a_mistake_planted() -> None:
    """`python -m raftlog.chaos.sim.mutants NAME -- …` is `raftlog …` in a process of its own that has the mistake."""
    run = subprocess.run(
        [sys.executable, "-m", "raftlog.chaos.sim.mutants", "read_without_a_round", "--", "--help"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "planted: read_without_a_round" in run.stderr
    assert "sim" in run.stdout


def test_the_list_names_every_mutant(capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments: number, name and mistake; a name alone is not enough to run anything."""
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"{mutant.name}: {mutant.title}" in listed for mutant in MUTANTS.values())
    assert main(["no_pre_vote", "node"]) == 2
    assert main(["nothing", "--", "node"]) == 2
