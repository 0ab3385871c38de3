"""The stories in scripts/: each is played, and must show exactly what its file says."""

import difflib
from pathlib import Path

import pytest

from tests.raft import script
from tests.raft.script_words import COMMANDS


@pytest.mark.parametrize("path", script.stories(), ids=lambda path: path.stem)
def test_every_story_plays_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    """What the commands show is what the file says; `--rewrite` writes it there instead."""
    told = path.read_text(encoding="utf-8")
    shown = script.play(told, path.name)
    if request.config.getoption("--rewrite"):
        path.write_text(shown, encoding="utf-8")
        return
    difference = difflib.unified_diff(told.splitlines(), shown.splitlines(), "the file", "what happened", lineterm="")
    assert shown == told, "\n".join([f"{path.name} (pytest --rewrite accepts it)", *difference])


def test_every_story_begins_with_its_intent() -> None:
    """At least 25 stories, each opening with a sentence of intent, and named by its outcome in small letters."""
    paths = script.stories()
    assert len(paths) >= 25
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert script.intent(text).endswith("."), path.name
        assert len(script.intent(text)) >= 60, path.name
        assert path.stem == path.stem.lower(), path.name
        assert "\n> " in text, path.name


def test_every_command_is_used() -> None:
    """A command that no story needs is not kept."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in script.stories())
    used = {
        line.removeprefix("> ").removeprefix("quietly ").split()[0] for line in text.splitlines() if line[:2] == "> "
    }
    assert used - {"cluster"} == set(COMMANDS)


def test_a_difference_is_seen() -> None:
    """A line that is missing, added or changed makes another text; a rewrite repairs it."""
    text = "# One.\n> cluster nodes=1\n> campaign 1\n> status\n"
    shown = script.play(text, "one")
    assert "1 LEADS term 2, from index 2 on" in shown
    assert shown != text
    assert script.play(shown, "one") == shown
    assert script.play(shown.replace("LEADS", "leads"), "one") == shown


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("dance 1", "is no command"),
        ("deliver 1>2", "no such message is under way"),
        ("sync 1", "has nothing to do"),
        ("campaign 9", "KeyError"),
        ("elect 1", "it did not win"),
    ],
)
def test_an_impossible_command_names_file_and_line(line: str, what: str) -> None:
    """A story with a mistake fails, rather than showing nothing."""
    with pytest.raises(script.StoryError, match=rf"story:3: .*{what}"):
        script.play(f"> cluster nodes=3\n> isolate 1\n> {line}\n", "story")


def test_a_story_begins_with_its_cluster() -> None:
    """Without nodes no command can run."""
    with pytest.raises(script.StoryError, match="begins with `cluster`"):
        script.play("> campaign 1\n", "story")
