"""Host names: which addresses only this machine reaches, and which names a browser may ask for there."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "192.168.1.7")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def names_loopback(header: str) -> bool:
    """Whether a Host header names loopback, whatever the port.

    A page of another site can have its own name resolve to 127.0.0.1 (DNS rebinding), so that a browser takes a service
    there for a part of that site and lets the page read its answers. The Host header still has the site's name.

    >>> [names_loopback(host) for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "127.0.0.1.site.example", "")]
    [True, True, True, False, False]
    """
    bracketed = header.startswith("[")
    return is_loopback(header[1:].partition("]")[0] if bracketed else header.partition(":")[0])
