"""Answers DNS questions from the lines of a zone, over UDP: `python -m tests.name_server ADDRESS PORT < zone`."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator

import dns.message
import dns.rcode
import dns.zone


def answer(zone: dns.zone.Zone, question: bytes) -> bytes:
    """The records of the asked name and type; none of that type, or NXDOMAIN for a name that the zone has not."""
    asked = dns.message.from_wire(question)
    reply = dns.message.make_response(asked)
    name, kind = asked.question[0].name, asked.question[0].rdtype
    if zone.get_node(name) is None:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    elif (found := zone.get_rrset(name, kind)) is not None:
        found.name = name
        reply.answer.append(found)
    return reply.to_wire()


def parse_zone(text: str) -> dns.zone.Zone:
    """Lines as `n1.example.com. A 10.0.0.1`."""
    return dns.zone.from_text(f"$TTL 1\n{text}\n", origin=".", relativize=False, check_origin=False)


def serve(server: socket.socket, zone: dns.zone.Zone) -> None:
    """Answers until the socket is closed, or an empty message comes."""
    while True:
        question, asker = server.recvfrom(4_096)
        if not question:
            return
        server.sendto(answer(zone, question), asker)


@contextlib.contextmanager
def name_server(zone: str | None) -> Iterator[int]:
    """One on loopback; yields its port. None: it reads no question."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        threads = [] if zone is None else [threading.Thread(target=serve, args=(server, parse_zone(zone)))]
        for thread in threads:
            thread.start()
        yield server.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", server.getsockname())
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind((sys.argv[1], int(sys.argv[2])))
        serve(bound, parse_zone(sys.stdin.read()))
