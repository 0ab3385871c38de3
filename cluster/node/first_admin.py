"""Switches access control on in a new cluster of this machine, for `raftlog up --secure` and the demo.

The user `operator`, whose certificate lies in the folder `tls`, becomes the first admin. Its token is put beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from raftlog.cluster.api.access import AccessIn
from raftlog.cluster.client.access_requests import change
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.node.formatting import OPERATOR, TLS_FOLDER
from raftlog.cluster.node.local_cluster import LocalCluster
from raftlog.cluster.security.bearer import TOKEN_FILE_VARIABLE, TOKEN_VARIABLES, save_token
from raftlog.cluster.security.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from raftlog.cluster.security.tokens import make_token

TOKEN_NAME: Final = f"{OPERATOR}.token"


def token_file(cluster: LocalCluster) -> Path | None:
    """The file with the token of the first admin; None: access control was never switched on by this module."""
    file = (cluster.folder / TLS_FOLDER / TOKEN_NAME).resolve()
    return file if file.exists() else None


def make_first_admin(cluster: LocalCluster) -> Path:
    """Makes the first admin of a cluster that serves; the file with its token. Raises ClientError, OSError."""
    node, token = cluster.nodes[0], make_token()
    file = (cluster.folder / TLS_FOLDER / TOKEN_NAME).resolve()
    save_token(file, token.text)
    asked = AccessIn("init", OPERATOR, token=token.identifier, token_hash=token.digest.hex(), label="raftlog up")
    try:
        with SyncClient(cluster.urls, sessions=False, tls=cluster.tls_files(f"node-{node}")) as client:
            client.call(change(asked))
    except BaseException:
        file.unlink()
        raise
    return file


def use_token(file: Path) -> None:
    """Names the file in this process's environment, for its own clients and for the processes that it starts."""
    os.environ.setdefault(TOKEN_FILE_VARIABLE, str(file))


@contextmanager
def as_operator(cluster: LocalCluster) -> Iterator[None]:
    """Makes the first admin of a cluster that serves. Until the end clients of this process use its certificate, and so
    do the processes that it starts."""
    names = (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE, *TOKEN_VARIABLES)
    before = {name: os.environ.pop(name, None) for name in names}
    try:
        make_first_admin(cluster)
        cluster.tls_files().to_environment()
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
