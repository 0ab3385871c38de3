"""`raftlog cert revoke`: whatever the list holds before, the certificate is on it afterwards, or the command fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from raftlog.cluster.cli.commands import build
from raftlog.cluster.security import authority
from raftlog.cluster.security.authority import make_authority, make_client, read_facts
from raftlog.cluster.security.revoked import RevokedList, parse_revoked

OTHER = f"sha256:{'0' * 64}"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """The certificate of the client eve."""
    make_authority(tmp_path, "test")
    return make_client(tmp_path, "eve").certificate


def revoke(certificate: Path, listed: Path) -> Result:
    """The ended command."""
    return CliRunner().invoke(build("cert"), ["cert", "revoke", str(certificate), "--list", str(listed)])


@pytest.mark.parametrize("end", ["", "\n"], ids=["no newline at the end", "a newline at the end"])
@pytest.mark.parametrize("before", ["", "# kept by the operators", OTHER, f"{OTHER}  # client bob, until 2027-01-01"])
def test_a_revoked_certificate_is_on_the_list_however_the_list_ended(
    before: str, end: str, certificate: Path, tmp_path: Path
) -> None:
    """An editor or a shell may have taken the newline of the last line. The lines that were there count as before."""
    listed = tmp_path / "revoked"
    listed.write_text(before + end)
    former = parse_revoked(before)
    done = revoke(certificate, listed)
    assert done.exit_code == 0, done.output
    digest = bytes.fromhex(read_facts(certificate).fingerprint)
    assert parse_revoked(listed.read_text()).digests == former.digests | {digest}
    assert listed.read_text().startswith(before)


def test_a_full_disk_leaves_the_list_as_it_was(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line would be a list that no node and no further command reads. A link to the list stays one."""
    listed, link = tmp_path / "revoked", tmp_path / "link"
    listed.write_text(f"{OTHER}\n")
    link.symlink_to(listed)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        done = revoke(certificate, link)
    assert done.exit_code == 1
    assert f"{listed}: No space left on device" in done.output.replace("\n", " ")
    assert listed.read_text() == f"{OTHER}\n"
    assert revoke(certificate, link).exit_code == 0
    assert link.is_symlink()
    assert len(listed.read_text().splitlines()) == 2


def test_the_list_is_made_if_it_is_not_there(certificate: Path, tmp_path: Path) -> None:
    """A second revocation adds a second line."""
    listed = tmp_path / "revoked"
    for lines in (1, 2):
        assert revoke(certificate, listed).exit_code == 0
        assert len(listed.read_text().splitlines()) == lines


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"# one\neve\n", "line 2 is 'eve': it must be sha256:FINGERPRINT or serial:NUMBER"),
        (b"serial:" + 64 * b"a", "line 1 is 'serial:aaa"),
        (b"sha256:" + 62 * b"a", "line 1 is 'sha256:aaa"),
        (b"\xff\n", "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_list_that_nodes_cannot_read_fails_the_command(
    content: bytes, reason: str, certificate: Path, tmp_path: Path
) -> None:
    """Nodes would go on with the list before. The message names file, line and repair, and the list stays as it is."""
    listed = tmp_path / "revoked"
    listed.write_bytes(content)
    done = revoke(certificate, listed)
    assert done.exit_code != 0
    assert f"{listed}: {reason}" in done.output
    assert "nothing was revoked" in done.output
    assert listed.read_bytes() == content


@pytest.mark.parametrize("separator", ["\n", "\x85", "\u2028"])
def test_a_name_with_line_breaks_adds_no_lines(separator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate from elsewhere may name its holder as it likes. In the list that name is a comment."""
    monkeypatch.setattr(authority, "_check_name", lambda name: None)
    make_authority(tmp_path, "test")
    made = make_client(tmp_path, f"eve{separator}serial:1")
    listed = tmp_path / "revoked"
    done = revoke(made.certificate, listed)
    assert done.exit_code == 0, done.output
    found = parse_revoked(listed.read_text("utf-8"))
    assert found == RevokedList(digests=frozenset({bytes.fromhex(read_facts(made.certificate).fingerprint)}))
