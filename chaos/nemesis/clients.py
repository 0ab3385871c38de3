"""Breaks links between clients and nodes: answers lost, requests lost, half answers, refused connections."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from raftlog.chaos.deploy.deployment import client_proxy
from raftlog.chaos.deploy.toxiproxy import Stream
from raftlog.chaos.nemesis.fault import Field, Injection, Nemesis, Toxic
from raftlog.chaos.nemesis.links import refusal

LASTS_S: Final = (0.5, 2.0)
HALF_BYTES: Final = (20, 2_000)  # within the head of an answer, and after some answers


def _lost(way: Stream, what: str, *, all_nodes: bool = False) -> Callable[[Field], Injection]:
    """Everything between clients and one node (or all) is swallowed that way. Lost answers are the unknown outcome."""

    def inject(field: Field) -> Injection:
        nodes = field.nodes if all_nodes else [field.chance.choice(field.nodes)]
        proof = field.place(Toxic(client_proxy(node), "timeout", way, (("timeout", 0),)) for node in nodes)
        return Injection(f"{what} {'all nodes' if all_nodes else f'node {nodes[0]}'}", proof, field.forget)

    return inject


def _half_answers(field: Field) -> Injection:
    """Every connection carries so many bytes of answers, then it closes: often in the middle of one."""
    node, most = field.chance.choice(field.nodes), field.chance.randint(*HALF_BYTES)
    proof = field.place([Toxic(client_proxy(node), "limit_data", "downstream", (("bytes", most),))])
    return Injection(f"answers of node {node} end after {most} bytes", proof, field.forget)


def _refused(field: Field) -> Injection:
    node = field.chance.choice(field.nodes)
    proof = field.disable([client_proxy(node)])
    listen = urlsplit(field.deployment.url(node)).netloc
    return Injection(f"clients of node {node}", f"{proof}; a dial met {refusal(listen)}", field.forget)


_nemesis: Final = partial(Nemesis, lane="quality", lasts_s=LASTS_S)

NEMESES: Final = (
    _nemesis("answers-lost", "one node answers, and no client hears it", _lost("downstream", "answers of")),
    _nemesis(
        "all-answers-lost",
        "all nodes answer, and no client hears them",
        _lost("downstream", "answers of", all_nodes=True),
    ),
    _nemesis("requests-lost", "what clients send to one node is swallowed", _lost("upstream", "requests to")),
    _nemesis("half-answers", "one node's answers end in the middle", _half_answers),
    _nemesis("clients-refused", "one node's clients are dropped and refused", _refused),
)
