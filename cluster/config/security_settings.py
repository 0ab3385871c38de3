"""Defines and checks section security of a node's settings: TLS, identity providers, and where a node may listen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from raftlog.cluster.config.cluster_file import SettingsError
from raftlog.cluster.security.jwt_names import source_refusal
from raftlog.cluster.security.tls import TlsFiles


class SecuritySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS on every socket: all three files or none. Paths are relative to the cluster file's folder."""

    ca: str = ""  # PEM: the authorities whose certificates count, for peers and for clients
    certificate: str = ""  # PEM: this node's certificate, which names log and node, with its chain
    key: str = ""  # PEM: the certificate's key
    tls_min: Literal["1.2", "1.3"] = "1.3"  # oldest version of TLS that is spoken
    mode: Literal["tls", "both"] = "tls"  # both: plain connections are served too, while a cluster changes to TLS
    client_certificates: Literal["required", "optional"] = "required"  # optional: a token is enough
    revoked: str = ""  # the list of revoked certificates (raftlog cert revoke)
    insecure: bool = False  # listen beyond loopback without TLS and without access control
    jwt_keys: str = ""  # the keys of an identity provider (JWKS): a file, or an https URL. Empty: no JWT counts
    jwt_issuer: str = ""  # the claim iss that a JWT must have
    jwt_audience: str = ""  # the claim aud that a JWT must have
    jwt_roles: str = "roles"  # the claim with the holder's roles
    jwt_name: str = "sub"  # the claim with the holder's name

    def files(self, folder: Path) -> TlsFiles | None:
        """The files for TLS; None: the node speaks without."""
        if not self.ca:
            return None
        ca, certificate, key = (str(folder / path) for path in (self.ca, self.certificate, self.key))
        revoked = str(folder / self.revoked) if self.revoked else ""
        return TlsFiles(
            ca,
            certificate,
            key,
            self.tls_min,
            revoked,
            is_optional=self.client_certificates == "optional",
            takes_plain=self.mode == "both",
        )


def check_security(security: SecuritySettings, beyond: Sequence[str], url: str) -> None:
    """Raises SettingsError. `beyond`: the settings by which this node listens beyond loopback. `url`: its own in the
    cluster file; empty if that is not known."""
    missing = [f"security.{name}" for name in ("ca", "certificate", "key") if not getattr(security, name)]
    if 0 < len(missing) < 3:
        raise SettingsError(f"TLS needs three files: {' and '.join(missing)} not set")
    if not security.ca and (security.mode == "both" or security.revoked):
        raise SettingsError("security.mode and security.revoked are for a node with TLS: set security.ca too")
    if beyond and not security.insecure:
        if not security.ca:
            raise SettingsError(
                f"{beyond[0]}: beyond loopback a node needs TLS; set security.ca, security.certificate and "
                "security.key (docs/security.md), or listen on 127.0.0.1"
                + ("" if url.startswith("https://") else ". --insecure takes no notice of this")
            )
        if security.mode == "both":
            raise SettingsError(
                f"{beyond[0]}, and security.mode is both: every machine could connect without TLS. Leave "
                "security.mode out. What a cluster that has run without TLS needs for its change to TLS stands in "
                "docs/security.md (From plain connections to TLS)"
            )
    wanted = "https" if security.ca else "http"
    if url and security.mode != "both" and not url.startswith(f"{wanted}://"):
        raise SettingsError(
            f"the url of this node in the cluster file is {url}, and the node serves {wanted} "
            f"({'with' if security.ca else 'without'} security.ca): make both agree"
        )
    if (reason := source_refusal(security.jwt_keys)) is not None:
        raise SettingsError(f"security.jwt_keys: {reason}")
    if security.jwt_keys and not (security.jwt_issuer and security.jwt_audience):
        raise SettingsError("security.jwt_keys needs security.jwt_issuer and security.jwt_audience")
