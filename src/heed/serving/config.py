"""The settings of a server: addresses, limits and batching. `heed.config` has all others."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from heed.config import PositiveInt
from heed.errors import ConfigError
from heed.settings import NameList, Settings

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class ServeConfig(Settings):
    """What a server accepts and refuses. Every limit is on by default."""

    host: str = Field("127.0.0.1", description="Address to listen on; by default this machine only.")
    port: Annotated[int, Field(ge=0, lt=65536)] = Field(8080, description="Port to listen on; 0: any free one.")
    allowed_hosts: NameList = Field((), description="Host names that this server answers to, besides its own; *: any.")
    trusted_proxies: NameList = Field((), description="Proxies (addresses, networks) whose X-Forwarded-For is trusted.")
    body_bytes: PositiveInt | None = Field(
        None, description="Largest request body, in bytes; none: what `characters` may take, however encoded."
    )
    header_bytes: PositiveInt = Field(16 << 10, description="Largest request head, in bytes, its URL included.")
    allowed_origins: NameList = Field(
        (), description="Origins of other web pages that may send requests, such as https://a.example; *: any (CORS)."
    )
    bodies_bytes: PositiveInt = Field(
        16 << 20, description="Memory for long bodies that are being read, all together, in bytes."
    )
    connections: PositiveInt = Field(
        2048, description="Maximum number of connections; above it the one that has been silent longest is closed."
    )
    characters: PositiveInt = Field(5000, description="Maximum characters per request, all texts together.")
    texts: PositiveInt = Field(64, description="Maximum texts per request.")
    alternatives: Annotated[int, Field(ge=0)] = Field(5, description="Maximum alternatives per text.")
    look_tokens: PositiveInt = Field(64, description="Longest sentence to trace, in tokens.")
    queue: PositiveInt = Field(128, description="Maximum requests queued and in work; more are refused at once.")
    deadline: Annotated[float, Field(gt=0)] = Field(30.0, description="Seconds after which a request is given up.")
    read_timeout: Annotated[float, Field(gt=0)] = Field(10.0, description="Seconds for a request to arrive whole.")
    requests_per_minute: PositiveInt = Field(1200, description="Sustained rate of one key, or else of one address.")
    burst: PositiveInt = Field(240, description="Requests of one key or address at once, after a pause.")
    patience: Annotated[float, Field(ge=0)] = Field(
        0.004, description="Maximum time a request waits for a batch to fill, in seconds."
    )
    tokens_per_batch: PositiveInt | None = Field(
        None, description="Tokens per batch, padding included, times beam; none: by the device."
    )
    batching: bool = Field(default=True, description="Batch queued requests; otherwise one at a time.")

    @model_validator(mode="after")
    def _origins_are_origins(self) -> Self:
        for origin in self.allowed_origins:
            scheme, _, host = origin.partition("://")
            if origin != "*" and (scheme not in ("http", "https") or not host or set(host) & set("/?#@ ")):
                raise ConfigError(
                    f"allowed_origins: {origin!r} is no origin; expected scheme and host, https://a.example"
                )
            if origin != origin.lower():
                raise ConfigError(f"allowed_origins: {origin!r}: browsers send origins in small letters")
        return self

    @property
    def largest_body(self) -> int:
        """In bytes: twelve per character (four %XX in a form, two escapes in JSON), and 16 KiB for the rest."""
        return self.body_bytes or 12 * self.characters + (16 << 10)
