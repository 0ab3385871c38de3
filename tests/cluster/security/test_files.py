"""Certificate files: how they are made and checked, and what a process does when they change."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from raftlog.cluster.runtime import clock
from raftlog.cluster.security import authority, tls
from raftlog.cluster.security.authority import (
    check_files,
    holder_of_file,
    make_authority,
    make_client,
    make_node,
    read_facts,
)
from raftlog.cluster.security.names import Holder, HolderKind
from raftlog.cluster.security.tls import Credentials, TlsError, TlsFiles, client_context, credentials_for

LOG = "c" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An authority, node 1 and the client alice."""
    made = tmp_path / "tls"
    make_authority(made, "test")
    make_node(made, LOG, 1, ["127.0.0.1", "one.example"])
    make_client(made, "alice")
    return made


def files_of(folder: Path, stem: str = "node-1") -> TlsFiles:
    """The three files of a holder."""
    return TlsFiles(str(folder / "ca.pem"), str(folder / f"{stem}.pem"), str(folder / f"{stem}.key"))


def test_made_files_say_who_they_are_for(folder: Path) -> None:
    """Holder, hosts and lifetime; private to their owner; the three fit together."""
    facts = read_facts(folder / "node-1.pem")
    assert (facts.holder, facts.names) == (f"node 1 of log {LOG}", ("one.example", "127.0.0.1"))
    assert 364 < facts.days_left() <= 365
    assert holder_of_file(folder / "client-alice.pem") == Holder("", HolderKind.CLIENT, "alice")
    assert read_facts(folder / "ca.pem").holder == "authority test"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert check_files(folder / "ca.pem", folder / "node-1.pem", folder / "node-1.key") == []


def test_a_file_that_exists_is_never_overwritten(folder: Path) -> None:
    """Neither the authority nor a node: the message names the file."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(TlsError, match=r"ca.pem: it exists, and is not overwritten"):
        make_authority(folder, "again")
    with pytest.raises(TlsError, match=r"node-1.pem: it exists, and is not overwritten"):
        make_node(folder, LOG, 1, [])
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "line\nbreak"])
def test_a_name_that_is_no_file_name_is_refused(folder: Path, name: str) -> None:
    """A client's name becomes the name of its files."""
    with pytest.raises(TlsError, match="is no name"):
        make_client(folder, name)


def test_a_node_without_an_authority_says_what_to_make_first(tmp_path: Path) -> None:
    """The message is the command."""
    with pytest.raises(TlsError, match="raftlog cert ca --folder"):
        make_node(tmp_path, LOG, 1, [])


def test_a_check_names_everything_that_is_wrong(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another authority, another key, a key that others can read, an expired certificate, one of tomorrow."""
    foreign = tmp_path / "foreign"
    make_authority(foreign, "test")  # the same name: only the signature differs
    wrong = check_files(foreign / "ca.pem", folder / "node-1.pem", folder / "client-alice.key")
    assert [line.split(": ", 1)[1].split(" (")[0] for line in wrong] == [
        f"no authority of {foreign / 'ca.pem'} has signed it",
        f"it is not the key of {folder / 'node-1.pem'}",
    ]
    os.chmod(folder / "node-1.key", 0o644)
    assert "chmod 600" in str(check_files(folder / "ca.pem", folder / "node-1.pem", folder / "node-1.key"))
    now = datetime.datetime.now(datetime.UTC)
    for days, word in ((400, "expired at"), (-2, "counts only from")):
        with monkeypatch.context() as patched:
            patched.setattr(authority, "_now", lambda shift=days: now + datetime.timedelta(days=shift))
            told = "\n".join(check_files(folder / "ca.pem", folder / "node-1.pem", folder / "node-1.key"))
        assert f"{folder / 'node-1.pem'}: it {word}" in told


@pytest.mark.parametrize(
    ("broken", "reason"), [("ca.pem", "authorities as PEM"), ("node-1.pem", "as PEM"), ("node-1.key", "as PEM")]
)
def test_a_file_that_is_missing_or_no_pem_is_named(folder: Path, broken: str, reason: str) -> None:
    """Each of the three, missing and with other content."""
    (folder / broken).write_bytes(b"nothing")
    with pytest.raises(TlsError, match=reason) as told:
        Credentials(files_of(folder))
    assert broken in str(told.value)
    (folder / broken).unlink()
    with pytest.raises(TlsError, match="No such file") as told:
        Credentials(files_of(folder))
    assert broken in str(told.value)


def test_changed_files_count_and_bad_ones_do_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad new file leaves the contexts in use, and is reported once; good ones are taken, and reported."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    reports: list[str] = []
    credentials = Credentials(files_of(folder), reports.append, is_node=True)
    first = credentials.server()
    good = (folder / "node-1.pem").read_bytes()
    (folder / "node-1.pem").write_bytes(b"half of a fi")
    assert credentials.server() is first, "not looked at yet"
    for _ in range(2):
        now[0] += tls.LOOK_S
        assert credentials.server() is first
    assert [bool(report) for report in reports] == [True]
    assert credentials.trouble
    (folder / "node-1.pem").write_bytes(good)
    now[0] += tls.LOOK_S
    assert credentials.server() is not first
    assert reports[1:] == [""]
    assert credentials.trouble == ""


def test_https_needs_the_files_of_the_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain URLs need none. Given files count, else those of the environment; the message names missing variables."""
    for variable in (tls.CA_VARIABLE, tls.CERTIFICATE_VARIABLE, tls.KEY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert credentials_for(["http://a:1"], None) is None
    assert credentials_for(["https://a:1"], files_of(folder)) is not None
    monkeypatch.setenv(tls.CA_VARIABLE, str(folder / "ca.pem"))
    with pytest.raises(TlsError, match="RAFTLOG_CERTIFICATE and RAFTLOG_KEY is not set"):
        credentials_for(["https://a:1"], None)
    files_of(folder, "client-alice").to_environment()
    found = credentials_for(["https://a:1"], None)
    assert found is not None
    assert found.files == files_of(folder, "client-alice")
    for variable in (tls.CERTIFICATE_VARIABLE, tls.KEY_VARIABLE):
        monkeypatch.delenv(variable)


def test_a_key_with_a_password_is_refused_without_asking(folder: Path, tmp_path: Path) -> None:
    """OpenSSL would ask on the terminal, and a node has none."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((folder / "node-1.key").read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    files = TlsFiles(str(folder / "ca.pem"), str(folder / "node-1.pem"), str(locked))
    with pytest.raises(TlsError, match="without a password"):
        client_context(files, checks_host=False)
    with pytest.raises(TlsError, match="without a password"):
        check_files(folder / "ca.pem", folder / "node-1.pem", locked)
