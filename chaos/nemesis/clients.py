"""Breaks links between clients and nodes: answers lost, requests lost, half answers, refused connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from raftlog.chaos.nemesis.fault import Field, Injected, Nemesis, Toxic, client
from raftlog.chaos.nemesis.links import refusal

LASTS_S: Final = (0.5, 2.0)
HALF_BYTES: Final = (20, 2_000)  # within the head of an answer, and after some answers


def _answers_lost(field: Field) -> Injected:
    """Requests arrive and are carried out, but no client gets an answer: the unknown outcome."""
    node = field.chance.choice(field.nodes)
    proof = field.place([Toxic(client(node), "timeout", "downstream", (("timeout", 0),))])
    return Injected(f"answers of node {node}", proof, field.forget)


def _all_answers_lost(field: Field) -> Injected:
    proof = field.place(Toxic(client(node), "timeout", "downstream", (("timeout", 0),)) for node in field.nodes)
    return Injected("answers of all nodes", proof, field.forget)


def _requests_lost(field: Field) -> Injected:
    node = field.chance.choice(field.nodes)
    proof = field.place([Toxic(client(node), "timeout", "upstream", (("timeout", 0),))])
    return Injected(f"requests to node {node}", proof, field.forget)


def _half_answers(field: Field) -> Injected:
    """Every connection carries so many bytes of answers, then it closes: often in the middle of one."""
    node, most = field.chance.choice(field.nodes), field.chance.randint(*HALF_BYTES)
    proof = field.place([Toxic(client(node), "limit_data", "downstream", (("bytes", most),))])
    return Injected(f"answers of node {node} end after {most} bytes", proof, field.forget)


def _refused(field: Field) -> Injected:
    node = field.chance.choice(field.nodes)
    proof = field.disable([client(node)])
    listen = urlsplit(field.deployment.url(node)).netloc
    return Injected(f"clients of node {node}", f"{proof}; a dial met {refusal(listen)}", field.forget)


def _nemesis(name: str, says: str, inject: Callable[[Field], Injected]) -> Nemesis:
    return Nemesis(name=name, says=says, lane="quality", lasts_s=LASTS_S, inject=inject)


NEMESES: Final = (
    _nemesis("answers-lost", "one node answers, and no client hears it", _answers_lost),
    _nemesis("all-answers-lost", "all nodes answer, and no client hears them", _all_answers_lost),
    _nemesis("requests-lost", "what clients send to one node is swallowed", _requests_lost),
    _nemesis("half-answers", "one node's answers end in the middle", _half_answers),
    _nemesis("clients-refused", "one node's clients are dropped and refused", _refused),
)
