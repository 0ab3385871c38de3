"""Certificate files: how they are made and checked, and what a process does when they change."""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from raftlog.cluster.cli.commands import build
from raftlog.cluster.node.tls import NodeTls
from raftlog.cluster.runtime import clock
from raftlog.cluster.security import authority, tls
from raftlog.cluster.security.authority import (
    MadeFiles,
    check_files,
    holder_of_file,
    make_authority,
    make_client,
    make_node,
    read_facts,
    renew,
)
from raftlog.cluster.security.names import Holder, HolderKind
from raftlog.cluster.security.tls import Credentials, TlsError, TlsFiles, client_context, credentials_for

LOG = "c" * 32
NODE = Holder(LOG, HolderKind.NODE, "1")


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


def test_a_renewed_certificate_has_its_holder_hosts_and_key(folder: Path, tmp_path: Path) -> None:
    """Renewed from the certificate alone, by an authority elsewhere: the key on the node's disk still fits. One more
    host is added, and the lifetime begins again."""
    certificate = folder / "node-1.pem"
    alone = tmp_path / "node-1.pem"
    alone.write_bytes(certificate.read_bytes())
    facts = renew(alone, folder, ["10.0.0.9"], 700)
    assert (facts.holder, facts.names) == (f"node 1 of log {LOG}", ("one.example", "127.0.0.1", "10.0.0.9"))
    assert facts.days_left() > 699
    assert facts.fingerprint != read_facts(certificate).fingerprint
    assert alone.stat().st_mode & 0o777 == 0o600
    assert check_files(folder / "ca.pem", alone, folder / "node-1.key") == []
    usages = (x509.load_pem_x509_certificate(each.read_bytes()).extensions for each in (alone, certificate))
    new, old = (each.get_extension_for_class(x509.ExtendedKeyUsage).value for each in usages)
    assert new == old
    assert renew(folder / "client-alice.pem", folder).holder == "client alice"


def test_a_certificate_that_must_not_count_on_is_not_renewed(folder: Path, tmp_path: Path) -> None:
    """One that another authority signed, an authority itself, and one that was revoked: the file stays as it is."""
    make_authority(tmp_path / "other", "other")
    before = (folder / "node-1.pem").read_bytes()
    with pytest.raises(TlsError, match="has not signed it"):
        renew(folder / "node-1.pem", tmp_path / "other")
    with pytest.raises(TlsError, match="it is no certificate of a node or client"):
        renew(folder / "ca.pem", folder)
    (folder / "revoked").write_text(f"sha256:{read_facts(folder / 'node-1.pem').fingerprint}\n", encoding="utf-8")
    with pytest.raises(TlsError, match="it was revoked"):
        renew(folder / "node-1.pem", folder)
    assert (folder / "node-1.pem").read_bytes() == before


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
    credentials = Credentials(files_of(folder), reports.append, node=NODE)
    first = credentials.context("server")
    good = (folder / "node-1.pem").read_bytes()
    (folder / "node-1.pem").write_bytes(b"half of a fi")
    assert credentials.context("server") is first, "not looked at yet"
    for _ in range(2):
        now[0] += tls.LOOK_S
        assert credentials.context("server") is first
    assert [bool(report) for report in reports] == [True]
    assert credentials.trouble
    (folder / "node-1.pem").write_bytes(good)
    now[0] += tls.LOOK_S
    assert credentials.context("server") is not first
    assert reports[1:] == [""]
    assert credentials.trouble == ""


def in_days(days: int, make: Callable[[], MadeFiles]) -> MadeFiles:
    """Makes a certificate as if it were that many days later."""
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(authority, "_now", lambda: then)
        return make()


def put(made: MadeFiles, folder: Path) -> None:
    """Puts these files in the place of those of node 1."""
    made.certificate.replace(folder / "node-1.pem")
    made.key.replace(folder / "node-1.key")


def another(folder: Path, *, has_ca: bool = True) -> Path:
    """A further folder, with the same authority or one of its own."""
    made = folder.parent / "another"
    made.mkdir()
    if has_ca:
        for name in ("ca.pem", "ca.key"):
            shutil.copy(folder / name, made / name)
    else:
        make_authority(made, "another one")
    return made


def issued(certificate: Path, by: MadeFiles) -> bytes:
    """The certificate of an authority again, signed by that one; both may sign for further authorities."""
    own, issuer = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (certificate, by.certificate))
    key = serialization.load_pem_private_key(by.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    extensions = [each for each in own.extensions if not isinstance(each.value, x509.BasicConstraints)]
    builder = x509.CertificateBuilder(
        issuer.subject,
        own.subject,
        own.public_key(),
        own.serial_number,
        own.not_valid_before_utc,
        own.not_valid_after_utc,
        extensions,
    ).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class Renewed:
    """The credentials of node 1, and what they report after each change of its files."""

    def __init__(self, folder: Path) -> None:
        self._reports: list[str] = []
        self.credentials = Credentials(files_of(folder), self._reports.append, node=NODE)

    def report(self) -> str:
        """What the next look for changed files reports: "" if they are taken."""
        self._reports.clear()
        before = self.credentials.context("server")
        self.credentials.look()
        [told] = self._reports
        assert (self.credentials.context("server") is before) == bool(told), "a bad file leaves the contexts in use"
        assert self.credentials.trouble == told
        return told


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda at: make_node(at, LOG, 2, []), f"its certificate is that of node 2 of log {LOG}"),
        (lambda at: make_node(at, "d" * 32, 1, []), f"its certificate is that of node 1 of log {'d' * 32}"),
        (lambda at: in_days(-9, lambda: make_node(at, LOG, 1, [], days=1)), "certificate has expired"),
        (lambda at: in_days(9, lambda: make_node(at, LOG, 1, [])), "certificate is not yet valid"),
        (lambda at: make_client(at, "alice"), "purpose"),
    ],
    ids=["another node", "another cluster", "expired", "too early", "a client"],
)
def test_renewed_files_that_cannot_serve_are_not_taken(
    make: Callable[[Path], MadeFiles], reason: str, folder: Path
) -> None:
    """Certificate and key fit each other, and every new connection would fail with them. The report names the file, and
    whose certificate it must be. The right files are taken afterwards."""
    renewed = Renewed(folder)
    made = another(folder)
    put(make(made), folder)
    told = renewed.report()
    assert told.startswith(f"{folder / 'node-1.pem'}: ")
    assert reason in told
    assert f"the certificate of {NODE}" in told
    put(make_node(made, LOG, 1, []), folder)
    assert renewed.report() == ""


def test_a_renewed_certificate_must_be_of_an_authority_that_is_trusted_by_then(folder: Path) -> None:
    """An unknown authority's is refused. With both authorities in `ca.pem` it is taken, and then the old one may go.
    Before that it may not: the certificate in use would be refused everywhere."""
    renewed = Renewed(folder)
    made, ca = another(folder, has_ca=False), folder / "ca.pem"
    before = {name: (folder / name).read_bytes() for name in ("ca.pem", "node-1.pem", "node-1.key")}
    new_ca = (made / "ca.pem").read_bytes()
    ca.write_bytes(new_ca)
    assert "unable to get local issuer certificate" in renewed.report()
    ca.write_bytes(before["ca.pem"])
    assert renewed.report() == ""
    put(make_node(made, LOG, 1, []), folder)
    assert "unable to get local issuer certificate" in renewed.report()
    ca.write_bytes(before["ca.pem"] + new_ca)
    assert renewed.report() == ""
    ca.write_bytes(new_ca)
    assert renewed.report() == ""


def test_a_renewed_certificate_may_have_a_chain(folder: Path) -> None:
    """An authority between signed it, whose certificate follows in the same file. Without that one it is refused."""
    renewed = Renewed(folder)
    made = another(folder)
    root, between = make_authority(folder.parent / "root", "root"), made / "ca.pem"
    for certificate in (root.certificate, between):
        certificate.write_bytes(issued(certificate, root))
    put(make_node(made, LOG, 1, []), folder)
    shutil.copy(root.certificate, folder / "ca.pem")
    assert "unable to get local issuer certificate" in renewed.report()
    with (folder / "node-1.pem").open("ab") as file:
        file.write(between.read_bytes())
    assert renewed.report() == ""


def test_a_list_of_revoked_certificates_counts_beside_an_expired_certificate(folder: Path) -> None:
    """Only changed certificates are tested: open connections of a revoked certificate must end all the same."""
    put(in_days(-9, lambda: make_node(another(folder), LOG, 1, [], days=1)), folder)
    revoked = folder / "revoked"
    revoked.touch()
    reports: list[str] = []
    files = msgspec.structs.replace(files_of(folder), revoked=str(revoked))
    credentials = Credentials(files, reports.append, node=NODE)
    revoked.write_text("serial:1\n")
    credentials.look()
    assert reports == [""]


def test_https_needs_the_files_of_the_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain URLs need none. Given files count, else those of the environment; the message names missing variables."""
    for variable in (tls.CA_VARIABLE, tls.CERTIFICATE_VARIABLE, tls.KEY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert credentials_for(["http://a:1"], None) is None
    assert credentials_for(["https://a:1"], files_of(folder)) is not None
    monkeypatch.setenv(tls.CA_VARIABLE, str(folder / "ca.pem"))
    with pytest.raises(TlsError, match="set RAFTLOG_CERTIFICATE, RAFTLOG_KEY"):
        credentials_for(["https://a:1"], None)
    files_of(folder, "client-alice").to_environment()
    found = credentials_for(["https://a:1"], None)
    assert found is not None
    assert found.files == files_of(folder, "client-alice")
    for variable in (tls.CERTIFICATE_VARIABLE, tls.KEY_VARIABLE):
        del os.environ[variable]  # `monkeypatch` would set it again at the end


def test_a_key_with_a_password_is_refused_without_asking(folder: Path, tmp_path: Path) -> None:
    """OpenSSL would ask on the terminal, and a node has none."""
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


@pytest.mark.parametrize(("days", "is_soon"), [(1, True), (29, True), (31, False)])
async def test_a_node_and_the_command_call_the_same_end_of_a_certificate_near(
    folder: Path, days: int, is_soon: bool
) -> None:
    """The node logs it when it starts, and `cert check` says it."""
    put(make_node(another(folder), LOG, 1, [], days=days), folder)
    told = CliRunner().invoke(build(), ["cert", "check", str(folder / "node-1.pem")])
    assert told.exit_code == 0, told.stderr
    assert ("renew it" in told.stderr) == is_soon
    lines: list[str] = []
    logger: Any = SimpleNamespace(warning=lambda event, **_: lines.append(event))
    NodeTls(files_of(folder), LOG, 1, logger)
    assert lines == ["certificate_expires"] * is_soon
