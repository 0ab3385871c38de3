"""Makes and reads certificates: a cluster's own authority, its nodes and its clients.

`raftlog cert` and `raftlog up --secure` make them, and a node reads its own at the start. Keys are ECDSA on P-256.
Files are PEM with mode 0600, and are overwritten by `renew` alone. Certificates that were made elsewhere serve as well,
if they have the fields that docs/security.md lists. The cryptography is that of the library `cryptography`.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.file_errors import naming, replace_file
from raftlog.cluster.security.names import Holder, HolderKind, UnknownHolder, holder_of, holder_uri
from raftlog.cluster.security.revoked import parse_revoked
from raftlog.cluster.security.tls import TlsError

CA_DAYS: Final = 3_650
HOLDER_DAYS: Final = 365
BACKDATED: Final = datetime.timedelta(minutes=5)
"""A new certificate counts from this long before now, because clocks of other machines may be behind."""
NAME_CHARACTERS_MAX: Final = 64
"""Longest name of an authority or client: the limit of a common name (RFC 5280, appendix A.1)."""


class MadeFiles(NamedTuple):
    certificate: Path
    key: Path


class CertificateFacts(NamedTuple):
    """What a certificate file says."""

    path: Path
    holder: str  # "node 3 of log …", "client alice", "authority NAME"
    names: tuple[str, ...]  # host names and addresses
    issuer: str
    not_before: datetime.datetime
    not_after: datetime.datetime
    fingerprint: str  # SHA-256, in hex digits

    def days_left(self) -> float:
        """Days until it expires; negative once it has."""
        return (self.not_after - _now()).total_seconds() / 86_400


def make_authority(folder: Path, name: str, days: int = CA_DAYS) -> MadeFiles:
    _check_name(name)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _write(folder, "ca", builder.sign(key, hashes.SHA256()), key)


def make_node(folder: Path, log: str, node: int, names: Iterable[str], days: int = HOLDER_DAYS) -> MadeFiles:
    """Makes `node-N.pem` and `node-N.key`, signed by the authority in `folder`. Raises TlsError.

    `names`: host names and addresses by which clients reach the node.
    """
    holder = Holder(log, HolderKind.NODE, str(node))
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]  # it dials its peers too
    return _make(folder, f"node-{node}", holder, f"raftlog node {node}", names, usages, days)


def make_client(folder: Path, name: str, log: str = "", days: int = HOLDER_DAYS) -> MadeFiles:
    """Makes `client-NAME.pem` and `client-NAME.key`, signed by the authority in `folder`. Raises TlsError.

    `log`: empty for any cluster of this authority.
    """
    _check_name(name)
    holder = Holder(log, HolderKind.CLIENT, name)
    return _make(folder, f"client-{name}", holder, name, (), [ExtendedKeyUsageOID.CLIENT_AUTH], days)


def renew(certificate: Path, folder: Path, also: Iterable[str] = (), days: int = HOLDER_DAYS) -> CertificateFacts:
    """Puts a new certificate in the place of one that the authority in `folder` has signed: for the same holder, hosts
    and key. Only the certificate is read, so the key may be elsewhere. Raises TlsError.

    `also`: further host names and addresses.
    """
    old = _read_certificate(certificate)
    facts = read_facts(certificate)
    try:
        holder, usages = _holder(old), old.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (UnknownHolder, x509.ExtensionNotFound) as error:
        raise TlsError(f"{certificate}: it is no certificate of a node or client: {error}") from error
    if not any(_has_signed(each, old) for each in _read_authorities(folder / "ca.pem")):
        raise TlsError(f"{certificate}: the authority in {folder} has not signed it; name its folder: --folder FOLDER")
    listed, digest = folder / "revoked", old.fingerprint(hashes.SHA256())
    if listed.exists() and parse_revoked(listed.read_text(encoding="utf-8")).has(old.serial_number, digest):
        raise TlsError(
            f"{certificate}: it was revoked; make one with a new key: raftlog cert node, raftlog cert client"
        )
    made = _sign(folder, old.subject, old.public_key(), holder, (*facts.names, *also), usages, days)
    replace_file(certificate, made.public_bytes(serialization.Encoding.PEM), is_private=True)
    return read_facts(certificate)


def read_facts(path: Path) -> CertificateFacts:
    """What the first certificate of a file says. Raises TlsError."""
    certificate = _read_certificate(path)
    names = _alternative_names(certificate)
    hosts = (
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    )
    return CertificateFacts(
        path,
        _holder_in_words(certificate),
        hosts,
        _common_name(certificate.issuer),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        certificate.fingerprint(hashes.SHA256()).hex(),
    )


def holder_of_file(path: Path) -> Holder:
    """The holder of the first certificate of a file. Raises TlsError, UnknownHolder."""
    return _holder(_read_certificate(path))


def check_files(ca: Path, certificate: Path, key: Path) -> list[str]:
    """The defects of these three files together; empty if they serve. Raises TlsError if one cannot be read."""
    wrong: list[str] = []
    own = _read_certificate(certificate)
    authorities = _read_authorities(ca)
    signers = [each for each in authorities if each.subject == own.issuer and _has_signed(each, own)]
    if not signers:
        wrong.append(f"{certificate}: no authority of {ca} has signed it (its issuer is {_common_name(own.issuer)!r})")
    if _read_key(key).public_key() != own.public_key():
        wrong.append(f"{key}: it is not the key of {certificate}")
    now = _now()
    for each, path in ((own, certificate), *((signer, ca) for signer in signers)):
        if now < each.not_valid_before_utc:
            wrong.append(f"{path}: it counts only from {each.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on")
        if now > each.not_valid_after_utc:
            wrong.append(f"{path}: it expired at {each.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if key.stat().st_mode & 0o077:
        wrong.append(f"{key}: other users of this machine can read it: chmod 600 {key}")
    return wrong


# -- parts


def _make(
    folder: Path,
    stem: str,
    holder: Holder,
    common_name: str,
    names: Iterable[str],
    usages: Sequence[x509.ObjectIdentifier],
    days: int,
) -> MadeFiles:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    certificate = _sign(folder, subject, key.public_key(), holder, names, x509.ExtendedKeyUsage(usages), days)
    return _write(folder, stem, certificate, key)


def _sign(
    folder: Path,
    subject: x509.Name,
    key: CertificatePublicKeyTypes,
    holder: Holder,
    names: Iterable[str],
    usages: x509.ExtendedKeyUsage,
    days: int,
) -> x509.Certificate:
    ca_file, ca_key_file = folder / "ca.pem", folder / "ca.key"
    if not ca_key_file.exists():
        if ca_file.exists():  # a second authority would be one that no node knows
            raise TlsError(f"{ca_key_file}: the key of {ca_file} is not here; run this where that key is kept")
        raise TlsError(f"{ca_key_file}: there is no authority; make one first: raftlog cert ca --folder {folder}")
    authority, authority_key = _read_certificate(ca_file), _read_key(ca_key_file)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey), "_read_key"
    alternative = [_general_name(name) for name in dict.fromkeys(names)]
    builder = (
        _builder(subject, authority.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(holder_uri(holder)), *alternative]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    return builder.sign(authority_key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, days: int
) -> x509.CertificateBuilder:
    if days < 1:
        raise TlsError(f"a certificate of {days} days never counts: it must be at least 1")
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise TlsError(f"{name!r} is neither a host name nor an address: {error}") from error


def _write(folder: Path, stem: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> MadeFiles:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = MadeFiles(folder / f"{stem}.pem", folder / f"{stem}.key")
    for path in made:
        if path.exists():
            raise TlsError(f"{path}: it exists, and is not overwritten; move it away first")
    _write_new(
        made.key,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    _write_new(made.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return made


def _write_new(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with naming(path), open(descriptor, "wb") as file:
            file.write(data)
    except OSError:
        path.unlink()  # half of it would be in the way of the next try
        raise


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}; `raftlog cert` makes certificates and keys") from error


def _read_authorities(path: Path) -> list[x509.Certificate]:
    text = _read(path)
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise TlsError(f"{path}: it holds no certificate as PEM") from error


def _read_certificate(path: Path) -> x509.Certificate:
    return _read_authorities(path)[0]


def _read_key(path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError) as error:
        raise TlsError(f"{path}: it holds no key as PEM without a password") from error


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def _holder(certificate: x509.Certificate) -> Holder:
    """As `holder_of`, for a certificate that was read from a file."""
    uris = _alternative_names(certificate).get_values_for_type(x509.UniformResourceIdentifier)
    common = _common_name(certificate.subject)
    return holder_of(
        {
            "subjectAltName": tuple(("URI", uri) for uri in uris),
            "subject": ((("commonName", common),),) if common else (),
        }
    )


def _holder_in_words(certificate: x509.Certificate) -> str:
    try:
        if certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return f"authority {_common_name(certificate.subject)}"
    except x509.ExtensionNotFound:
        pass
    try:
        return str(_holder(certificate))
    except UnknownHolder as error:
        return f"unknown: {error}"


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _check_name(name: str) -> None:
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable() or set(name) & set("/\\:"):
        raise TlsError(
            f"{name!r} is no name: it must have 1 to {NAME_CHARACTERS_MAX} printable characters, without / \\ and :"
        )


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(clock.wall_ms() / 1_000, datetime.UTC)
