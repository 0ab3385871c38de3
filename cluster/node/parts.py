"""Makes the parts of a node that its settings ask for: the open data folder, TLS, identity provider, audit log, tracer.

`raftlog.cluster.node.process` calls it at the start. Each part that cannot be made is a StartError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftlog.cluster.api.text import how_to_install
from raftlog.cluster.config.cluster_file import ClusterFile
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.config.settings import LoadedSettings
from raftlog.cluster.disk.disk import Disk
from raftlog.cluster.files.errors import DiskError
from raftlog.cluster.files.folder import RecoveredFolder
from raftlog.cluster.node.start_error import StartError, folder_error
from raftlog.cluster.runtime import logging
from raftlog.cluster.runtime.log_file import LogSink
from raftlog.cluster.security.names import UnknownHolder
from raftlog.cluster.security.tls import TlsError

if TYPE_CHECKING:
    from raftlog.cluster.http.spans import Tracer
    from raftlog.cluster.node.tls import NodeTls
    from raftlog.cluster.security.provider import Provider


def tls_of(loaded: LoadedSettings, cluster: ClusterFile, logger: logging.Logger) -> NodeTls | None:
    """The TLS of this node; None: it speaks without. Raises StartError."""
    files = loaded.tls_files()
    if files is None:
        return None
    from raftlog.cluster.node.tls import NodeTls  # here: its library takes long to import

    try:
        return NodeTls(files, cluster.cluster.log, loaded.settings.node, logger)
    except (TlsError, UnknownHolder) as error:
        raise StartError(NodeExit.SETTINGS, str(error)) from error


def audit_of(loaded: LoadedSettings) -> LogSink | None:
    """The file of the audit log; None: its lines are in the node's own log. Raises StartError."""
    log = loaded.settings.log
    if not log.audit_file:
        return None
    audit = LogSink()
    try:
        audit.open(loaded.folder / log.audit_file, log.file_bytes_max, log.files_kept, is_stderr=False)
    except OSError as error:
        raise StartError(NodeExit.SETTINGS, f"log.audit_file {log.audit_file}: {error.strerror}") from error
    return audit


def provider_of(loaded: LoadedSettings, logger: logging.Logger) -> Provider | None:
    """The identity provider whose tokens count; None: there is none. Raises StartError."""
    security = loaded.settings.security
    if not security.jwt_keys:
        return None
    try:
        from raftlog.cluster.security.jwt_tokens import BadKeys, JwtPolicy  # here: of the extra `jwt`
        from raftlog.cluster.security.provider import Provider
    except ModuleNotFoundError as error:
        message = f"security.jwt_keys needs the package pyjwt: {how_to_install('jwt')}"
        raise StartError(NodeExit.SETTINGS, message) from error

    def report(trouble: str) -> None:
        if trouble:
            logger.error("jwt_keys_refused", reason=trouble, meaning="the keys in use before stay in use for a day")
        else:
            logger.info("jwt_keys_taken", source=security.jwt_keys)

    source = security.jwt_keys if "://" in security.jwt_keys else str(loaded.folder / security.jwt_keys)
    policy = JwtPolicy(security.jwt_issuer, security.jwt_audience, security.jwt_roles, security.jwt_name)
    try:
        return Provider(policy, source, report)
    except BadKeys as error:
        raise StartError(NodeExit.SETTINGS, f"security.jwt_keys: {error}") from error


def tracer_of(loaded: LoadedSettings, cluster: ClusterFile, logger: logging.Logger) -> Tracer | None:
    """What makes spans of requests; None: there are no traces. Raises StartError."""
    if not loaded.settings.trace.endpoint:
        return None
    try:
        from raftlog.cluster.http.spans import Tracer  # here: of the extra `otel`
    except ModuleNotFoundError as error:
        message = f"trace.endpoint needs the packages of OpenTelemetry: {how_to_install('otel')}"
        raise StartError(NodeExit.SETTINGS, message) from error
    return Tracer(loaded.settings, cluster.cluster.log, logger)


def open_disk(loaded: LoadedSettings, cluster: ClusterFile) -> tuple[Disk, RecoveredFolder]:
    """The data folder, open, and what it holds. Raises StartError."""
    settings = loaded.settings
    own = cluster.of(settings.node)
    assert own is not None, "load_settings checks this"
    try:
        disk, recovered = Disk.open(
            loaded.data, log_id=cluster.cluster.log, node=settings.node, segment_bytes=settings.disk.segment_bytes
        )
    except (DiskError, ValueError) as error:
        raise folder_error(error) from error
    return disk, recovered
