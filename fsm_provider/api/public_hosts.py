"""Which hosts belong to the public internet, judged by an IP address or by the text of a host name."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from fsm_provider.api.errors import FsmPdfUrlError

_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""Nothing outside it is allocated; Python versions differ on which of the rest they call global."""
_NAT64 = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: tuple[IPv4Network | IPv6Network, ...] = (
    *map(IPv4Network, ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24")),
    *map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")),
)
_NAME = re.compile(r"([a-z0-9_-]{1,63}\.)+[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")
_PRIVATE_DOMAINS = tuple(
    f".{domain}"
    for domain in (
        *("localhost", "local", "internal", "localdomain", "home.arpa", "home", "lan", "corp", "private"),
        *("intranet", "svc", "test", "invalid", "example"),
    )
)
"""Domains that no public resolver serves. Other private names cannot be recognised by their text."""


def require_public_ip(address: str) -> None:
    """Refuse an IP address that is not public, or embeds such an address, as NAT64 and 6to4 addresses do."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        nat64 = IPv4Address(ip.packed[-4:]) if ip in _NAT64 else None
        ip = ip.ipv4_mapped or ip.sixtofour or nat64 or ip
    if (
        not ip.is_global
        or ip.is_multicast
        or any(ip in network for network in _NOT_PUBLIC)
        or (isinstance(ip, IPv6Address) and ip not in _GLOBAL_UNICAST)
    ):
        raise FsmPdfUrlError(_refusal(str(ip)))


def require_public_host(host: str) -> None:
    """Check the host of a URL by its text, without resolving it: behind a proxy there is no other check.

    :raises FsmPdfUrlError: for an IP address that is not public, an unusual spelling of one (``127.1``,
        ``0x7f000001``), and a name that only a private network resolves (``localhost``).
    """
    name = host.lower().rstrip(".")
    if "%" not in name and (":" in name or _NUMBER.fullmatch(name)):
        try:
            require_public_ip(name)
        except ValueError:
            raise FsmPdfUrlError(_refusal(name)) from None
    elif not _NAME.fullmatch(name) or name.endswith(_PRIVATE_DOMAINS):
        raise FsmPdfUrlError(_refusal(name))


def _refusal(host: str) -> str:
    return f"{host} is not a public address: set allow_private_addresses to allow it"
