"""Asks the members of a cluster, before a data folder is made for it, whether its log was ever led.

`raftlog format` calls it. A folder that is made again under an old identity has forgotten what the earlier one promised
(docs/promises.md: identity is not address). While a member that knows the log answers, nothing is made. Where none
answers, the new disk has no vote before all voters have answered it (`raftlog.raft.types.NEW_DISK`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from raftlog.cluster.api.status import fingerprint
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import Policy
from raftlog.cluster.client.errors import ClientError, Forbidden, Unauthorized
from raftlog.cluster.config.cluster_file import FORCE, ClusterFile, ClusterNode
from raftlog.cluster.config.joining import TLS_FOLDER, steps_to_join
from raftlog.cluster.node.formatting import OPERATOR, tls_files
from raftlog.cluster.security.tls import TlsError, TlsFiles

ASK_S: Final = 2.0
"""Longest wait for the members' answers, in seconds. A machine on which no process listens refuses at once."""


class WasLed(Exception):
    """A member knows the log, so no data folder may be made under an old identity. The message has the commands."""


def ask_members(cluster: ClusterFile, file: Path, nodes: Sequence[int]) -> dict[int, str]:
    """The members that gave no answer, with the reasons. Raises WasLed. `nodes` are to be formatted; none: all."""
    nodes = nodes or [each.id for each in cluster.node]
    tls = _tls_files(file, nodes)
    with ThreadPoolExecutor(len(cluster.node)) as threads:
        answers = list(threads.map(lambda each: _ask(cluster, each, nodes, tls), cluster.node))
    silent: dict[int, str] = {}
    for each, (found, reason) in zip(cluster.node, answers, strict=True):
        if found:
            raise WasLed(_refusal(cluster, nodes, f"node {each.id} at {each.url} answers that {found}"))
        if reason:
            silent[each.id] = reason
    return silent


def _ask(cluster: ClusterFile, member: ClusterNode, nodes: Sequence[int], tls: TlsFiles | None) -> tuple[str, str]:
    """What that member knows of the log, and why it gave no answer; either may be empty."""
    try:
        with SyncClient(
            member.url, bound=True, deadline_s=ASK_S, sessions=False, policy=Policy(unreachable_ms=1), tls=tls
        ) as client:
            status = client.status()
            if status.log != cluster.cluster.log:
                return "", f"{member.url} is a node of another log"
            if not cluster.cluster.join:
                has_entries = f"this cluster was led: its log ends at {status.last}, in term {status.term}"
                return (has_entries if status.last > 1 else ""), ""
            rows = {each.node: each for each in client.members().members}
            for node in nodes:
                own, row = cluster.of(node), rows.get(node)
                if own and row and row.role == "voter" and row.disk == fingerprint(own.incarnation):
                    return f"a disk made from this join file votes for node {node} already", ""
            return "", ""
    except (Unauthorized, Forbidden):
        return "it has users, so this cluster was led", ""
    except (ClientError, TlsError) as error:
        return "", str(error).removeprefix("no_leader: no node answered. ")


def _tls_files(file: Path, nodes: Sequence[int]) -> TlsFiles | None:
    """The certificate beside the cluster file: that of a node that is formatted, or the operator's. None: those that
    the environment names."""
    for holder in (*(f"node-{node}" for node in nodes), f"client-{OPERATOR}"):
        files = tls_files(file.parent / TLS_FOLDER, holder)
        if Path(files.key).exists():
            return files
    return None


def _refusal(cluster: ClusterFile, nodes: Sequence[int], why: str) -> str:
    """Why nothing was made, and the commands that give those nodes new disks."""
    lines = [
        f"{why}. A folder that is made now under an old identity has forgotten what the earlier one promised, and "
        "acknowledged writes could be lost. Nothing was made."
    ]
    for node in nodes:
        own = cluster.of(node)
        if own is None:
            continue
        ask = next((each.url for each in cluster.node if each.id not in nodes), own.url)
        lines += [
            f"Give node {node} a new disk (with TLS, its certificate stays):",
            f"  raftlog members replace {node} --peer {own.peer} --url {own.url} -e {ask}   # writes join-{node}.toml",
            f"then {steps_to_join(node, Path(f'join-{node}.toml'), own.data, f' -e {ask}')}",
        ]
    return "\n".join([*lines, f"Only if this is to be a new cluster all the same: {FORCE}"])
