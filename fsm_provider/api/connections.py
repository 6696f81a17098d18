"""Connections that say whether anything was sent, and some that refuse to be made to an inner network."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NewConnectionError

from fsm_provider.api.errors import FsmAddressError

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Adapter(HTTPAdapter):
    """requests' adapter, whose connections raise ``NewConnectionError`` where they failed to be made.

    :param public_only: refuse to send to an address that is not public. It is that of the connected peer,
        so that a name cannot be one thing when it is checked and another when it is used. Behind a proxy
        the peer is the proxy: what may be reached through it is the proxy's to decide.
    """

    def __init__(self, *, public_only: bool = False, **kwargs: Any) -> None:
        self._pools = _PUBLIC_POOLS if public_only else _POOLS
        super().__init__(**kwargs)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Have the connections made by our pools."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """Have the connections to a proxy made by our pools."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        if isinstance(manager, urllib3.ProxyManager):  # a SOCKS proxy's pools do its tunnelling
            manager.pool_classes_by_scheme = _POOLS
        return manager


def refuse_unless_public(address: str) -> None:
    """Check an IP address.

    :raises FsmAddressError: for one that is private, loopback, link-local, multicast or reserved.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        nat64 = ipaddress.IPv4Address(ip.packed[-4:]) if ip in _NAT64 else None
        ip = ip.ipv4_mapped or ip.sixtofour or nat64 or ip
    if ip.is_multicast or not ip.is_global:
        raise FsmAddressError(f"{ip} is not a public address: set allow_private_addresses if it is meant")


def causes(error: BaseException) -> Iterator[BaseException]:
    """Walk from what requests raised down to what happened on the socket.

    Their texts on the way hold the address with its query; the last one's does not.
    """
    current: BaseException | None = error
    while current is not None:
        yield current
        inner = (*current.args, getattr(current, "reason", None), current.__cause__)
        current = next((cause for cause in inner if isinstance(cause, BaseException)), None)


class _SaysWhenUnconnected:
    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[misc]
        except NewConnectionError:
            raise
        except (OSError, HTTPError) as error:
            raise NewConnectionError(self, str(error)) from error  # type: ignore[arg-type]


class _PublicOnly:
    def _new_conn(self) -> socket.socket:
        connected: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            refuse_unless_public(connected.getpeername()[0])
        except BaseException:
            connected.close()
            raise
        return connected


class _Connection(_SaysWhenUnconnected, HTTPConnection):
    pass


class _TLSConnection(_SaysWhenUnconnected, HTTPSConnection):
    pass


class _PublicConnection(_PublicOnly, _Connection):
    pass


class _PublicTLSConnection(_PublicOnly, _TLSConnection):
    pass


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class _PublicPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _PublicConnection


class _PublicTLSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _PublicTLSConnection


_POOLS = {"http": _Pool, "https": _TLSPool}
_PUBLIC_POOLS = {"http": _PublicPool, "https": _PublicTLSPool}
