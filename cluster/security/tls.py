"""Makes TLS contexts of PEM files, and makes them again when the files change.

Nodes and both clients use it. Every side shows a certificate, and verifies the other's by `ca` (mutual TLS). A changed
file counts for new connections within LOOK_S seconds; open connections keep their keys. If the changed files do not
fit, the contexts in use stay, and the trouble is reported. The cryptography is that of Python's `ssl` (OpenSSL).
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.file_errors import file_stamp
from raftlog.cluster.security.bearer import TOKEN_VARIABLES
from raftlog.cluster.security.names import Holder, client_refusal, holder_of, peer_refusal
from raftlog.cluster.security.revoked import RevokedList, parse_revoked

if TYPE_CHECKING:
    import asyncio  # the blocking client needs none of it

LOOK_S: Final = 1.0
"""Least seconds between two looks for changed files."""
CA_VARIABLE: Final = "RAFTLOG_CA"
CERTIFICATE_VARIABLE: Final = "RAFTLOG_CERTIFICATE"
KEY_VARIABLE: Final = "RAFTLOG_KEY"

TlsVersion = Literal["1.2", "1.3"]
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption alone. Python's own list depends on how it was built. All
suites of TLS 1.3 are so."""
ContextUse = Literal["client", "peer", "api", "server"]
"""A dialled API, a dialled peer, an accepted client, an accepted peer."""
_CLIENT: Final = ssl.PROTOCOL_TLS_CLIENT
_Stamp = tuple[tuple[int, int, int], ...]


class TlsError(ValueError):
    """The files cannot serve TLS. The message names the file, the defect, and the repair."""


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of the PEM files of one end: authorities that it trusts, its own certificate with its chain, its key. A
    client that has a token may do without the last two."""

    ca: str
    certificate: str
    key: str
    version_min: TlsVersion = "1.3"
    revoked: str = ""  # a file with certificates that count no more (`raftlog.cluster.security.revoked`); empty: none
    is_optional: bool = False  # a node: clients may do without a certificate, peers may not
    takes_plain: bool = False  # a node also accepts connections without TLS, and dials peers without if it must

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> TlsFiles:
        """The files that RAFTLOG_CA, RAFTLOG_CERTIFICATE and RAFTLOG_KEY name. Raises TlsError if one is missing."""
        found = os.environ if environment is None else environment
        missing = [name for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE) if not found.get(name)]
        has_token_alone = missing == [CERTIFICATE_VARIABLE, KEY_VARIABLE] and any(map(found.get, TOKEN_VARIABLES))
        if missing and not has_token_alone:
            raise TlsError(
                f"an https URL needs the files of this client: set {', '.join(missing)}. `raftlog cert client NAME` "
                "makes them where the cluster's authority is"
            )
        return cls(found[CA_VARIABLE], found.get(CERTIFICATE_VARIABLE, ""), found.get(KEY_VARIABLE, ""))

    def to_environment(self) -> None:
        """Names these files in this process's environment, for its own clients and for the processes that it starts.
        A variable that is set already stays."""
        for name, path in ((CA_VARIABLE, self.ca), (CERTIFICATE_VARIABLE, self.certificate), (KEY_VARIABLE, self.key)):
            if path:
                os.environ.setdefault(name, path)


def credentials_for(urls: Iterable[str], files: TlsFiles | None) -> Credentials | None:
    """What a client needs for these URLs: None if none is https. `files`: None for those of the environment.

    Raises TlsError.
    """
    if not any(url.startswith("https://") for url in urls):
        return None
    return Credentials(files or TlsFiles.from_environment())


def shown_certificate(transport: asyncio.BaseTransport) -> Mapping[str, Any] | None:
    """The verified certificate that the other side of a connection showed; None without TLS."""
    encrypted = transport.get_extra_info("ssl_object")
    shown: Mapping[str, Any] | None = None if encrypted is None else encrypted.getpeercert()
    return shown


def shown_holder(transport: asyncio.BaseTransport) -> Holder | None:
    """The holder of that certificate; None if there is none. Raises UnknownHolder."""
    shown = shown_certificate(transport)
    return holder_of(shown) if shown else None


def server_context(files: TlsFiles, *, is_optional: bool = False) -> ssl.SSLContext:
    """For accepting connections: the other side must show a certificate, unless that is optional. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED
    return _filled(context, files)


def client_context(files: TlsFiles, *, checks_host: bool) -> ssl.SSLContext:
    """For dialling. `checks_host`: the certificate must name the host of the URL. A peer link checks the node's name
    instead (`raftlog.cluster.security.names.peer_refusal`). Raises TlsError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_host
    return _filled(context, files)


def _filled(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = _VERSIONS[files.version_min]
    context.set_ciphers(CIPHERS)
    try:
        context.load_verify_locations(cafile=files.ca)
    except (OSError, ValueError) as error:
        raise TlsError(f"{files.ca}: {_reason(error)}; it must hold the certificates of authorities as PEM") from error
    if not files.certificate and context.verify_mode is ssl.CERT_REQUIRED and context.protocol is _CLIENT:
        return context  # a client with a token alone
    for path in (files.certificate, files.key):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise TlsError(f"{path}: {error.strerror}; `raftlog cert` makes certificates and keys") from error
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise TlsError(
            f"{files.certificate} and {files.key}: {_reason(error)}; they must hold a certificate and its key as PEM, "
            "the key without a password"
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")  # else OpenSSL asks on the terminal


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").lower().replace("_", " ")
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


class Credentials:
    """The TLS contexts of one process, made of files that may change. Any thread may use it.

    Two threads that find changed files at the same time make the contexts twice.
    """

    def __init__(
        self, files: TlsFiles, report: Callable[[str], None] = lambda trouble: None, *, node: Holder | None = None
    ) -> None:
        """`node`: that of a node, which needs all contexts and tests changed files. A client needs one. `report`
        gets the trouble of changed files that do not fit, and "" once they fit again. Raises TlsError."""
        self.files = files
        self._node = node
        self.trouble = ""
        self.refused: tuple[float, str, str] | None = None  # the newest refused client: when, where, why
        self._report = report
        self._stamp = _stamp(files)
        self._looked_at = clock.monotonic()
        self._revoked = RevokedList()
        self._revoked, self._contexts = self._made()

    def context(self, use: ContextUse) -> ssl.SSLContext:
        """For the next connection of that use."""
        self._look()
        return self._contexts[use]

    @property
    def takes_plain(self) -> bool:
        return self.files.takes_plain

    def client_refusal(self, transport: asyncio.BaseTransport, log: str) -> str | None:
        """Why the other side of a connection may not use this cluster's HTTP API. None: it may."""
        shown = shown_certificate(transport)
        if not shown and (self.takes_plain or self.files.is_optional):
            return None
        return client_refusal(shown, log) or self.revocation(transport)

    def peer_refusal(self, transport: asyncio.BaseTransport, log: str, node: int) -> str | None:
        """Why the other side of a connection may not speak as this node of this log. None: it may."""
        shown = shown_certificate(transport)
        if shown is None and self.takes_plain:
            return None
        return peer_refusal(shown, log, node) or self.revocation(transport)

    def revocation(self, transport: asyncio.BaseTransport) -> str | None:
        """Says that the other side's certificate is revoked. None: it is not."""
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is None or not self._revoked:
            return None
        serial = int(str((encrypted.getpeercert() or {}).get("serialNumber", "0")), 16)
        digest = hashlib.sha256(encrypted.getpeercert(binary_form=True) or b"").digest()
        return "its certificate is revoked (security.revoked)" if self._revoked.has(serial, digest) else None

    def _made(self) -> tuple[RevokedList, dict[ContextUse, ssl.SSLContext]]:
        contexts: dict[ContextUse, ssl.SSLContext] = {"client": client_context(self.files, checks_host=True)}
        if self._node is not None:
            contexts |= {
                "api": server_context(self.files, is_optional=self.files.is_optional),
                "server": server_context(self.files),
                "peer": client_context(self.files, checks_host=False),
            }
        return _read_revoked(self.files.revoked), contexts

    def look(self) -> None:
        self._looked_at -= LOOK_S
        self._look()

    def _look(self) -> None:
        now = clock.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        stamp = _stamp(self.files)
        if stamp == self._stamp:
            return
        try:
            revoked, contexts = self._made()
            if self._node is not None and stamp[:3] != self._stamp[:3]:  # not the list alone
                if (reason := _refusal(self._node, contexts["server"], contexts["peer"])) is not None:
                    raise TlsError(
                        f"{self.files.certificate}: other nodes would refuse it: {reason}. It must be the certificate "
                        f"of {self._node}, count now, and be signed by an authority of {self.files.ca}"
                    )
        except TlsError as error:
            if str(error) != self.trouble:
                self.trouble = str(error)
                self._report(self.trouble)
            return
        self._revoked, self._contexts = revoked, contexts
        self._stamp, self.trouble = stamp, ""
        self._report("")


def _refusal(node: Holder, server: ssl.SSLContext, peer: ssl.SSLContext) -> str | None:
    """Why another node would refuse this one. None: it would not.

    The node shakes hands with itself in memory: OpenSSL checks chain, dates and usages of its certificate at both ends,
    as it will do between two nodes."""
    to_peer, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialling = peer.wrap_bio(to_peer, to_server)
    accepting = server.wrap_bio(to_server, to_peer, server_side=True)
    for end in (dialling, accepting, dialling, accepting):  # one round trip of TLS 1.3, which both ends know
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass  # it is the other end's turn
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError as error:
            return _reason(error)
    return peer_refusal(dialling.getpeercert(), node.log, int(node.name))


def _read_revoked(path: str) -> RevokedList:
    """The revoked certificates of a file; none without a file. Raises TlsError."""
    if not path:
        return RevokedList()
    try:
        return parse_revoked(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TlsError(f"{path}: {reason}; an empty file revokes none (docs/security.md)") from error


def _stamp(files: TlsFiles) -> _Stamp:
    return tuple(map(file_stamp, filter(None, (files.ca, files.certificate, files.key, files.revoked))))
