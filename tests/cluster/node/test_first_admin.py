"""The first admin of a cluster of this machine: its token is kept whenever it may count."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from raftlog.cluster.api.errors import Code
from raftlog.cluster.client.errors import NotApplied, OutcomeUnknown
from raftlog.cluster.config.joining import TLS_FOLDER
from raftlog.cluster.node import first_admin
from raftlog.cluster.node.local_cluster import LocalCluster


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (OutcomeUnknown(Code.TIMEOUT, "lost"), True),
        (KeyboardInterrupt(), True),
        (NotApplied(Code.REFUSED, "refused"), False),
    ],
)
def test_the_token_stays_unless_the_cluster_has_refused_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, is_kept: bool
) -> None:
    """After a lost answer or an interrupt it may be the only admin's only token."""

    def call(_: object) -> None:
        raise error

    (tmp_path / TLS_FOLDER).mkdir()
    monkeypatch.setattr(first_admin, "_as_node", lambda _: nullcontext(SimpleNamespace(call=call)))
    with pytest.raises(type(error)):
        first_admin.make_first_admin(cast(LocalCluster, SimpleNamespace(folder=tmp_path)))
    assert (tmp_path / TLS_FOLDER / first_admin.TOKEN_NAME).exists() is is_kept
