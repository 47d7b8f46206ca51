"""Which web pages may send requests: our own, and those of origins that the settings allow (CORS).

A browser lets any web page send a POST to any server, this machine's too, and only keeps the answer from the page: the
work would be done all the same. Browsers say where a request comes from, in `Sec-Fetch-Site` or at least in `Origin`,
and no page can change that. Programs that are no browsers send neither.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import Scope

from heed.serving.problems import Problem

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # these do nothing that costs
_OURS = frozenset({b"same-origin", b"none"})  # none: the user, by the address bar
_DEFAULT_PORTS = (":80", ":443")


@dataclass(frozen=True)
class Origins:
    """The origins whose pages may send requests besides our own; `*`: all of them."""

    allowed: tuple[str, ...] = ()

    def refusal(self, scope: Scope) -> Problem | None:
        """What stands against a request, by where it comes from."""
        headers = dict(scope["headers"])
        if scope["method"] in _SAFE or self._allowed_origin(headers) is not None:
            return None
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site is not None:
            ours = site.lower() in _OURS
        else:
            ours = origin is None or _host_of(origin) == _without_port(headers.get(b"host", b"").decode("latin-1"))
        if ours:
            return None
        found = (origin or b"another origin").decode("latin-1")[:100]
        return Problem(403, f"Web pages of {found} may not send requests here; serve.allowed_origins can allow it")

    def answers(self, scope: Scope) -> dict[str, str]:
        """What the answer to a request says about who may read it."""
        if not self.allowed:
            return {}
        vary = {} if "*" in self.allowed else {"Vary": "Origin"}
        origin = self._allowed_origin(dict(scope["headers"]))
        if origin is None:
            return vary
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "Retry-After", **vary}

    def preflight(self, scope: Scope) -> dict[str, str] | None:
        """The answer to a browser that asks whether a page may send a request; none: it is another request, or no."""
        headers = dict(scope["headers"])
        asks = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        if not asks or self._allowed_origin(headers) is None:
            return None
        return {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Max-Age": "600",
        }

    def _allowed_origin(self, headers: dict[bytes, bytes]) -> str | None:
        """What to answer to the origin of a request; none: it is not allowed, or there is none."""
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if not origin or not self.allowed:
            return None
        return "*" if "*" in self.allowed else origin if origin in self.allowed else None


def _host_of(origin: bytes) -> str:
    try:
        return _without_port(urlsplit(origin.decode("latin-1")).netloc)
    except ValueError:
        return ""


def _without_port(host: str) -> str:
    """In small letters, without a port that goes without saying."""
    host = host.lower()
    return next((host.removesuffix(port) for port in _DEFAULT_PORTS if host.endswith(port)), host)
