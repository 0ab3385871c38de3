"""Finds the nodes of a cluster by the SRV records of a DNS name.

`raftlog.cluster.cli.frame.common` calls it for `--discover srv:NAME`, and for `srv:NAME` wherever endpoints are named.
It asks the name servers that the system is set up with. RFC 2782: lower priorities first, then by weight.
"""

from __future__ import annotations

import os
from typing import Final

from raftlog.cluster.security.tls import CA_VARIABLE

SRV: Final = "srv:"
RESOLVE_S: Final = 5.0
"""Longest wait for the name servers, in seconds, all repetitions counted: dnspython's own default."""


class NotDiscovered(Exception):
    """DNS names no node. The message says why, and what to do."""


def discovered(where: str) -> tuple[str, ...]:
    """The URLs that `srv:NAME` leads to, first choice first: `https` where RAFTLOG_CA names an authority.

    Raises NotDiscovered; ValueError if NAME is no DNS name; ModuleNotFoundError without the extra `dns`.
    """
    import dns.exception
    import dns.name
    import dns.resolver
    from dns.rdtypes.IN.SRV import SRV as SrvRecord

    name = where.removeprefix(SRV)
    try:
        asked = dns.name.from_text(name)
        if asked == dns.name.root:
            raise dns.name.EmptyLabel
    except dns.exception.DNSException as error:
        example = f"write {SRV}NAME, as {SRV}_raftlog._tcp.example.com"
        raise ValueError(f"{where}: {name!r} is no DNS name: {example}") from error
    try:
        found = dns.resolver.resolve(asked, "SRV", lifetime=RESOLVE_S).rrset
    except dns.resolver.NXDOMAIN as error:
        raise NotDiscovered(f"{where}: DNS has no name {name}: add its SRV records, or correct the name") from error
    except dns.resolver.NoAnswer as error:
        raise NotDiscovered(
            f"{where}: {name} has no SRV records: add one for each node, or correct the name"
        ) from error
    except dns.exception.DNSException as error:
        raise NotDiscovered(
            f"{where}: no name server answered within {RESOLVE_S:g} s ({' '.join(str(error).split())}): look at "
            "/etc/resolv.conf, or name the nodes: -e URL"
        ) from error
    scheme = "https" if os.environ.get(CA_VARIABLE) else "http"
    urls = tuple(
        f"{scheme}://{each.target.to_text(omit_final_dot=True)}:{each.port}"
        for each in (found.processing_order() if found else ())
        if isinstance(each, SrvRecord) and each.target != dns.name.root
    )
    if not urls:
        raise NotDiscovered(f"{where}: the SRV record of {name} says that there is no server: add one for each node")
    return urls
