"""`make release`: what it refuses, what lies in dist/ afterwards, and that another build gives the same bytes."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.house.rules import ROOT, project_files
from tests.wheels import build, run, uv

VERSION = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[0]
RELATIVE_LINK = re.compile(r"\]\((?!https?:|#)")


def committed_copy(folder: Path) -> Path:
    """A repository whose one commit has the files of this tree, with this tree's environment and uv."""
    for source in project_files():
        (folder / source.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / source.path).write_text(source.text, encoding="utf-8")
        (folder / source.path).chmod((ROOT / source.path).stat().st_mode)
    run("git", "init", "-q", cwd=folder)
    (folder / ".git" / "info" / "exclude").write_text("/.venv\n")
    (folder / ".tools").mkdir()
    for name in (".venv", ".tools/uv"):
        (folder / name).symlink_to(ROOT / name)
    commit(folder, "as it is")
    return folder


def commit(tree: Path, *words: str) -> None:
    """Commits all changes of a tree."""
    who = ("-c", "user.name=a test", "-c", "user.email=test@example.com")
    run("git", "add", "--all", cwd=tree)
    run("git", *who, "commit", "-q", "--no-verify", "-m", " ".join(words), cwd=tree)


def refusal(tree: Path) -> str:
    """What `make release` says that builds nothing."""
    done = subprocess.run([".ci/release"], cwd=tree, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert not (tree / "dist").exists()
    [line] = done.stderr.splitlines()
    return line


def test_a_release_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Changes without a commit, a tag of the version at another commit, and a version that the changelog lacks: nothing
    is built, and one line says what to do."""
    tree = committed_copy(tmp_path / "tree")
    (tree / "new.py").write_text("")
    assert "changes that no commit has: commit them" in refusal(tree)
    run("git", "tag", VERSION, cwd=tree)
    commit(tree, "a file more")
    assert f"the tag {VERSION} names another commit: raise version in pyproject.toml" in refusal(tree)
    settings = tree / "pyproject.toml"
    settings.write_text(settings.read_text("utf-8").replace(f'version = "{VERSION}"', 'version = "9.8.7"'), "utf-8")
    commit(tree, "a version more")
    assert 'CHANGELOG.md has no section "## 9.8.7, DATE": write it' in refusal(tree)


def described(wheel: Path) -> Message:
    """The metadata of a wheel; its payload is the page of the project."""
    with zipfile.ZipFile(wheel) as files:
        [name] = [each for each in files.namelist() if each.endswith(".dist-info/METADATA")]
        return message_from_bytes(files.read(name))


def test_the_page_of_a_registry_has_no_link_to_a_file_beside_it(tmp_path: Path) -> None:
    """Without a public address links become text and the picture goes; with one they name the files of this version,
    and the metadata has the project's URLs."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert RELATIVE_LINK.search(readme)
    tree = committed_copy(tmp_path / "tree")
    settings = tree / "pyproject.toml"
    text = settings.read_text("utf-8")
    for source in ("", "https://example.com/people/raftlog"):
        settings.write_text(re.sub(r'^source = ".*?"', f'source = "{source}"', text, flags=re.MULTILINE), "utf-8")
        found = described(build(tmp_path / f"dist{len(source)}", tree))
        page = str(found.get_payload())
        assert found["Description-Content-Type"] == "text/markdown"
        assert not RELATIVE_LINK.search(page)
        assert len(found.get_all("Project-URL", [])) == (3 if source else 0)
        assert (f"![a run of make demo]({source}/raw/{VERSION}/docs/demo.svg)" in page) == bool(source)
        assert (f"[promises.md]({source}/blob/{VERSION}/docs/promises.md)" in page) == bool(source)
        assert "promises.md" in page
    for name in ("Author", "Keywords", "License-Expression", "Requires-Python", "Summary"):
        assert found[name], name
    assert "Programming Language :: Python :: 3.13" in found.get_all("Classifier", [])


PACKED, WHEEL = f"raftlog-{VERSION}.tar.gz", f"raftlog-{VERSION}-py3-none-any.whl"


def built(tree: Path, folder: Path) -> dict[str, str]:
    """The SHA-256 of the sdist and of the pure wheel of a tree's commit, at the time of the commit."""
    epoch = run("git", "log", "-1", "--format=%ct", cwd=tree).strip()
    for kind in ("sdist", "wheel"):
        command = (sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder))
        run(*command, cwd=tree, SOURCE_DATE_EPOCH=epoch, RAFTLOG_COMPILE="0")
    return digests(folder, PACKED, WHEEL)


def digests(folder: Path, *names: str) -> dict[str, str]:
    """The SHA-256 of these files."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def test_two_builds_of_a_commit_have_the_same_bytes(tmp_path: Path) -> None:
    """In another folder, with other times of files and other rights: sdist and pure wheel are the same. The sdist has
    the files of the commit and no other."""
    tree = committed_copy(tmp_path / "tree")
    run("git", "clone", "-q", str(tree), str(tmp_path / "elsewhere"))
    for source in (tmp_path / "elsewhere").rglob("*.py"):
        os.utime(source, (1, 1))
        source.chmod(source.stat().st_mode & 0o700)
    assert built(tree, tmp_path / "one") == built(tmp_path / "elsewhere", tmp_path / "other")
    with tarfile.open(tmp_path / "one" / PACKED) as files:
        names = {each.partition("/")[2] for each in files.getnames()}
    assert names == set(run("git", "ls-files", cwd=tree).split()) | {"PKG-INFO"}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_make_release_fills_dist_from_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHA256SUMS is right, and the packages are those of another build. The SBOM has what the wheel brings along, in
    the versions of the lock, and no tool of development. The missing address is named. Without the compiled wheel,
    whose build takes minutes."""
    uv()
    monkeypatch.setenv("CC", "no-compiler")
    tree = committed_copy(tmp_path / "tree")
    said = run(".ci/release", cwd=tree)
    assert "missing: the project's public address (source in pyproject.toml)" in said
    told = [line.split("  ") for line in (tree / "dist" / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in told}
    assert sums == digests(tree / "dist", PACKED, WHEEL, "sbom.json")
    assert built(tree, tmp_path / "again").items() <= sums.items()
    assert str(tmp_path) not in (tree / "dist" / "sbom.json").read_text()
    components = {each["name"]: each for each in json.loads((tree / "dist/sbom.json").read_text())["components"]}
    assert {"aiohttp", "pyspark", "tantivy", "redis"} <= set(components)
    assert not {"pytest", "mypy", "cyclonedx-bom"} & set(components)
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    assert all(f"{name}=={components[name]['version']} " in lock for name in ("aiohttp", "pyspark", "redis"))
