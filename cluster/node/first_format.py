"""Asks whether the log of a cluster was ever led, before a data folder is made for one of its nodes.

`raftlog format` calls it, and `raftlog node --format-new` by `raftlog.cluster.node.first_start`. A folder that is made
again under an old identity has forgotten what the earlier one promised (docs/promises.md: identity is not address).
While a member that knows the log answers, or its folder is on this machine, nothing is made. Where none is, the new
disk has no vote before all voters have answered it (`raftlog.raft.types.NEW_DISK`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from raftlog.cluster.api.headers import H_INDEX, H_LOG, H_NODE, H_TERM
from raftlog.cluster.api.status import fingerprint
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import Policy
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.client.flow import ApiRequest
from raftlog.cluster.config.cluster_file import AGAIN, FORCE, ClusterFile, ClusterNode
from raftlog.cluster.config.joining import TLS_FOLDER, steps_to_join
from raftlog.cluster.files.folder import is_unmade
from raftlog.cluster.node.formatting import OPERATOR, tls_files
from raftlog.cluster.offline.survivor import was_led
from raftlog.cluster.security.tls import TlsError, TlsFiles

ASK_S: Final = 2.0
"""Longest wait for the members' answers, in seconds. A machine on which no process listens refuses at once."""
_LIVENESS: Final = ApiRequest("GET", "/livez", lambda head, _: head.headers, accept="*/*")


class WasLed(Exception):
    """A member knows the log, so no data folder may be made under an old identity. The message has the commands."""

    exit_code = 1  # of the command line


def look_at_folders(cluster: ClusterFile, file: Path, nodes: Sequence[int]) -> None:
    """Raises WasLed if another node's data folder is on this machine, and shows that the log was led.

    `nodes` are to be formatted; none: all whose folders are missing.
    """
    if cluster.cluster.join:
        return  # a new disk: its cluster was led, and the disk has promised nothing
    nodes = nodes or [each.id for each in cluster.node if is_unmade(file.parent / each.data)]
    for each in cluster.node:
        folder = file.parent / each.data
        if nodes and each.id not in nodes and was_led(folder, cluster.cluster.log):
            raise WasLed(_refusal(cluster, nodes, f"this cluster was led: {folder} has entries of its log"))


def ask_members(
    cluster: ClusterFile, nodes: Sequence[int], tls: TlsFiles | None, *, but: int | None = None
) -> dict[int, str]:
    """The members that gave no answer, with the reasons. Raises WasLed. `nodes` are to be formatted; none: all.

    It does not ask `but`, the asking node itself.
    """
    nodes = nodes or [each.id for each in cluster.node]
    members = [each for each in cluster.node if each.id != but]
    with ThreadPoolExecutor(len(cluster.node)) as threads:
        answers = list(threads.map(lambda each: _ask(cluster, each, nodes, tls), members))
    silent: dict[int, str] = {}
    for each, (found, reason) in zip(members, answers, strict=True):
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
            return (_votes if cluster.cluster.join else _was_led)(cluster, member, nodes, client)
    except (ClientError, TlsError) as error:
        return "", str(error).removeprefix("no_leader: no node answered. ")


def _was_led(cluster: ClusterFile, member: ClusterNode, nodes: Sequence[int], client: SyncClient) -> tuple[str, str]:
    """As `_ask`. Each answer of a node names its log, its term and its index; liveness needs no user and no leader."""
    headers = client.call(_LIVENESS)
    if headers.get(H_LOG.lower()) != cluster.cluster.log:
        return "", f"{member.url} is a node of another log"
    term, index = int(headers[H_TERM.lower()]), int(headers[H_INDEX.lower()])
    if max(term, index) > 1:  # a new log is in term 1, and its first leader adds entry 2
        return f"this cluster was led: it has applied entry {index}, and is in term {term}", ""
    found = headers[H_NODE.lower()]
    return "", "" if found == str(member.id) else f"{member.url} is node {found}"


def _votes(cluster: ClusterFile, member: ClusterNode, nodes: Sequence[int], client: SyncClient) -> tuple[str, str]:
    """As `_ask`, for a join file: its cluster was led, but its disk must be new."""
    rows = {each.node: each for each in client.members().members}
    for node in nodes:
        own, row = cluster.of(node), rows.get(node)
        if own and row and row.role == "voter" and row.disk == fingerprint(own.incarnation):
            return f"a disk made from this join file votes for node {node} already", ""
    return "", ""


def files_beside(file: Path, nodes: Sequence[int]) -> TlsFiles | None:
    """The certificate beside the cluster file: that of one of these nodes, or the operator's. None: those that the
    environment names."""
    for holder in (*(f"node-{node}" for node in nodes), f"client-{OPERATOR}"):
        files = tls_files(file.parent / TLS_FOLDER, holder)
        if Path(files.key).exists():
            return files
    return None


def _refusal(cluster: ClusterFile, nodes: Sequence[int], why: str) -> str:
    """Why nothing was made, and the commands that give those nodes new disks."""
    lines = [
        f"{why}. A folder that is made now under an old identity has forgotten what the earlier one promised, and "
        "acknowledged writes could be lost. Nothing was made. If the folder is only elsewhere (another disk, a mount "
        "that is missing), bring it back."
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
    if not cluster.cluster.join:
        lines += [
            "Only if too few nodes run to replace it, and the folder is gone for good: raftlog format FILE "
            f"{' '.join(f'--node {node}' for node in nodes)} {AGAIN}. The new disk votes once all voters have "
            "answered it. Writes that only the lost disk had are lost."
        ]
    return "\n".join([*lines, f"Only if this is to be a new cluster all the same: {FORCE}"])
