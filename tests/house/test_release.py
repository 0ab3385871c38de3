"""`make release`: what it refuses, what lies in dist/ afterwards, and that another build gives the same bytes."""

import hashlib
import json
import re
import subprocess
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
    """A repository whose one commit has the files of this tree, with this tree's environment and tools."""
    for source in project_files():
        (folder / source.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / source.path).write_text(source.text, encoding="utf-8")
        (folder / source.path).chmod((ROOT / source.path).stat().st_mode)
    run("git", "init", "-q", cwd=folder)
    (folder / ".git" / "info" / "exclude").write_text("/.venv\n/.tools\n")
    for name in (".venv", ".tools"):
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


@pytest.mark.extra
@pytest.mark.serial
def test_a_release_is_what_is_committed_and_another_build_has_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sdist has the files of the commit and no other, SHA256SUMS is right, the SBOM has what the wheel brings along
    and no tool of development. A build elsewhere gives the same sdist and the same pure wheel. The missing address is
    named. Without the compiled wheel, whose build takes minutes."""
    uv()
    monkeypatch.setenv("CC", "no-compiler")
    tree = committed_copy(tmp_path / "tree")
    said = run(".ci/release", cwd=tree)
    assert "missing: the project's public address (source in pyproject.toml)" in said
    dist = tree / "dist"
    told = [line.split("  ") for line in (dist / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in told}
    packed, wheel = f"raftlog-{VERSION}.tar.gz", f"raftlog-{VERSION}-py3-none-any.whl"
    assert set(sums) == {packed, wheel, "sbom.json"}
    assert all(hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    with tarfile.open(dist / packed) as files:
        names = {each.partition("/")[2] for each in files.getnames()}
    assert names == set(run("git", "ls-files", cwd=tree).split()) | {"PKG-INFO"}
    components = {each["name"]: each for each in json.loads((dist / "sbom.json").read_text())["components"]}
    assert {"aiohttp", "pyspark", "tantivy", "redis"} <= set(components)
    assert not {"pytest", "mypy", "cyclonedx-bom"} & set(components)
    assert components["pyspark"]["version"] in (ROOT / "requirements.lock").read_text("utf-8")
    run("git", "clone", "-q", str(tree), str(tmp_path / "elsewhere"))
    again = tmp_path / "elsewhere"
    epoch = run("git", "log", "-1", "--format=%ct", cwd=again).strip()
    for kind in ("sdist", "wheel"):
        run(
            str(ROOT / ".venv/bin/python"),
            *("-m", "hatchling", "build", "-t", kind, "-d", "out"),
            cwd=again,
            SOURCE_DATE_EPOCH=epoch,
        )
    assert {name: hashlib.sha256((again / "out" / name).read_bytes()).hexdigest() for name in (packed, wheel)} == {
        name: sums[name] for name in (packed, wheel)
    }
