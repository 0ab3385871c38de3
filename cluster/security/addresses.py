"""Says whether a host is this machine itself."""

from __future__ import annotations

import ipaddress


def is_loopback_host(host: str) -> bool:
    """Whether only this machine reaches that host name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
