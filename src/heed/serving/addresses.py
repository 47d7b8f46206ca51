"""By which names a server is reached, through which proxies, and who is at the other end.

A server that listens on this machine alone answers to this machine's names, so that no web page can have its own name
point here (DNS rebinding); behind a proxy it answers to the names that `allowed_hosts` adds. Anyone can write
X-Forwarded-For: it is believed only where it comes from `trusted_proxies`, and then from the right, up to the first
address that is not a trusted proxy. The standard's Forwarded header is not read: a proxy that writes only one of the
two passes the other on as its client wrote it.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from heed.errors import ConfigError
from heed.serving.config import ServeConfig

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def answers_to(config: ServeConfig) -> frozenset[str] | None:
    """The host names of this server in lower case; none: any, since others reach it by its address."""
    if "*" in config.allowed_hosts or (config.host not in LOOPBACK and not config.allowed_hosts):
        return None
    return LOOPBACK | {config.host.lower(), *(name.lower() for name in config.allowed_hosts)}


def check_addresses(config: ServeConfig) -> None:
    """Refuse names and addresses that can never match, before anything slow is done."""
    for name in config.allowed_hosts:
        if name != "*" and (not name or name.strip() != name or set(name) & set("/*")):
            raise ConfigError(
                f"serve.allowed_hosts has {name!r}: expected host names without scheme and path, such as mt.example.org"
            )
    for address in config.trusted_proxies:
        try:
            ipaddress.ip_network(address)
        except ValueError as error:
            raise ConfigError(
                f"serve.trusted_proxies has {address!r}: {error}; expected addresses or networks, such as 127.0.0.1 "
                "or 10.0.0.0/8"
            ) from None


def through_proxies(app: ASGIApp, trusted: Sequence[str]) -> ASGIApp:
    """An application that sees who is behind these proxies, instead of the proxies."""
    if not trusted:
        return app
    application: Any = app  # two libraries, two types of ASGI
    behind: Any = ProxyHeadersMiddleware(application, list(trusted))
    return cast("ASGIApp", behind)
