"""Writes the settings file of a node that joins, from those of a node of the cluster, and the steps to its start.

`POST /v1/members` answers with the settings, beside the join file. Pure: values in, text out.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from raftlog.cluster.config.cluster_file import quoted, split_address
from raftlog.cluster.config.settings import Settings, setting_types

TLS_FOLDER: Final = "tls"  # certificates, beside the cluster file
_OF_ONE_NODE: Final = frozenset(
    {
        "http.listen",
        "http.probe_listen",
        "peer.listen",
        "log.file",
        "log.audit_file",
        "security.ca",
        "security.certificate",
        "security.key",
    }
)
"""Settings that a new node does not take over; nor those without a section, and `dial`."""
_WILDCARDS: Final = ("0.0.0.0", "[::]")  # noqa: S104  # compared, not listened on


def tls_lines(node: int) -> list[str]:
    """Lines of a settings file: this node's certificate, in the folder `tls` beside the cluster file."""
    stem = f"{TLS_FOLDER}/node-{node}"
    return [
        f'security.ca = "{TLS_FOLDER}/ca.pem"',
        f'security.certificate = "{stem}.pem"',
        f'security.key = "{stem}.key"',
    ]


def settings_file_of(join: Path) -> Path:
    """The settings file beside a join file: join-4-node.toml beside join-4.toml."""
    return join.with_name(f"{join.stem}-node.toml")


def steps_to_join(node: int, join: Path, data: str, ask: str = "", certificate: str = "") -> str:
    """The commands between a join file and a voter.

    `certificate`: with TLS, if the node needs a new one, the command that makes it. `ask`: further words for commands
    that ask the cluster.
    """
    name, settings = shlex.quote(str(join)), settings_file_of(join)
    start = (
        f"  raftlog format --join {name} --data {shlex.quote(data)}   # an empty folder, or none\n"
        f"  raftlog node --config {shlex.quote(str(settings))}\n"
        "then, if raftlog members list still says learner:\n"
        f"  raftlog members promote {node}{ask}"
    )
    if not certificate:
        return f"on the machine of node {node}, with {join} and {settings}:\n{start}"
    return (
        f"its certificate, where ca.key of the cluster's authority is:\n  {certificate}\n"
        f"then, on the machine of node {node}, in a folder with {join.name}, {settings.name}, and {TLS_FOLDER}/ with "
        f"ca.pem, node-{node}.pem and node-{node}.key:\n{start}"
    )


def joining_lines(own: Settings, node: int, peer: str, url: str) -> list[str]:
    """Lines of the settings file of `node`, without its cluster file: what differs from the defaults in `own`.

    It listens at its addresses, or on all interfaces at their ports if the node of `own` does so.
    """
    lines = [f"node = {node}", *(tls_lines(node) if own.security.ca else ())]
    http_port = urlsplit(url).port or (443 if url.startswith("https:") else 80)
    probe = own.http.probe_listen
    places = (
        ("http.listen", own.http.listen, http_port),
        ("http.probe_listen", probe, probe.rpartition(":")[2]),
        ("peer.listen", own.peer.listen, split_address(peer, "")[1]),
    )
    for key, listen, port in places:
        host = listen.rpartition(":")[0]
        if host in _WILDCARDS:
            lines.append(f"{key} = {quoted(f'{host}:{port}')}")
    plain = Settings()
    for key in setting_types():
        section, _, name = key.rpartition(".")
        if section and key not in _OF_ONE_NODE:
            value = getattr(getattr(own, section), name)
            if value != getattr(getattr(plain, section), name):
                lines.append(f"{key} = {msgspec.json.encode(value).decode()}")
    return lines
