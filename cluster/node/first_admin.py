"""Switches access control on in a cluster of this machine, for `raftlog up --secure` and the demo.

The user `operator`, whose certificate lies in the folder `tls`, becomes the first admin. Its token is put beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from raftlog.cluster.api.access import AccessIn
from raftlog.cluster.client.access_requests import can, change
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import NotApplied
from raftlog.cluster.config.joining import TLS_FOLDER
from raftlog.cluster.node.formatting import OPERATOR
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.security.bearer import TOKEN_FILE_VARIABLE, TOKEN_VARIABLES, save_token
from raftlog.cluster.security.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from raftlog.cluster.security.tokens import make_token
from raftlog.statemachine.access import needs
from raftlog.statemachine.access.table import AccessReason

TOKEN_NAME: Final = f"{OPERATOR}.token"


class AccessState(NamedTuple):
    """Whether access control is on, and where the token of the first admin is, if this module has made it."""

    is_on: bool
    token: Path | None


def ensure_first_admin(cluster: LocalCluster) -> AccessState:
    """Makes the first admin of a cluster that serves, unless access control was set up before.

    An earlier start may have ended before it got here. Raises ClientError, OSError."""
    with _as_node(cluster) as client:
        found = client.call(can(str(needs.ACCESS)))  # any principal may ask what it may do itself
    file = _token_file(cluster)
    if found.permissions:
        return AccessState(found.why != AccessReason.OFF, file if file.exists() else None)
    file.unlink(missing_ok=True)  # its token never counted
    return AccessState(is_on=True, token=make_first_admin(cluster))


def make_first_admin(cluster: LocalCluster) -> Path:
    """Makes the first admin of a cluster that serves; the file with its token. Raises ClientError, OSError."""
    token, file = make_token(), _token_file(cluster)
    save_token(file, token.text)
    asked = AccessIn("init", OPERATOR, token=token.identifier, token_hash=token.digest.hex(), label="raftlog up")
    try:
        with _as_node(cluster) as client:
            client.call(change(asked))
    except NotApplied:  # after any other error the token may count: the next start finds out
        file.unlink()
        raise
    return file


def _token_file(cluster: LocalCluster) -> Path:
    return (cluster.folder / TLS_FOLDER / TOKEN_NAME).resolve()


@contextmanager
def _as_node(cluster: LocalCluster) -> Iterator[SyncClient]:
    """A client with the certificate of a node alone: a token of the environment may be another cluster's."""
    files = cluster.tls_files(f"node-{cluster.nodes[0]}")
    with _without(TOKEN_VARIABLES), SyncClient(cluster.urls, sessions=False, tls=files) as client:
        yield client


def use_token(file: Path) -> None:
    """Names the file in this process's environment, for its own clients and for the processes that it starts."""
    os.environ.setdefault(TOKEN_FILE_VARIABLE, str(file))


@contextmanager
def as_operator(cluster: LocalCluster) -> Iterator[None]:
    """Makes the first admin of a cluster that serves. Until the end clients of this process use its certificate, and so
    do the processes that it starts."""
    with _without((CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, *TOKEN_VARIABLES)):
        make_first_admin(cluster)
        cluster.tls_files().to_environment()
        yield


@contextmanager
def _without(names: Iterable[str]) -> Iterator[None]:
    """Takes variables out of this process's environment until the end."""
    before = {name: os.environ.pop(name, None) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
