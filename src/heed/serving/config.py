"""The settings of a server: what it takes in, from whom, and how much. `heed.config` has all others."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from heed.config import Size
from heed.errors import ConfigError
from heed.settings import Names, Settings


class ServeConfig(Settings):
    """What a server takes in, and what it refuses. Everything has a limit unless told otherwise."""

    host: str = Field("127.0.0.1", description="The address to listen on; this machine alone unless told otherwise.")
    port: Annotated[int, Field(ge=0, lt=65536)] = Field(8080, description="The port to listen on; 0: any that is free.")
    allowed_hosts: Names = Field((), description="Host names that this server answers to, besides its own; *: any.")
    trusted_proxies: Names = Field((), description="Proxies (addresses, networks) whose X-Forwarded-For is believed.")
    body_bytes: Size | None = Field(
        None, description="Largest body of a request, in bytes; none: what `characters` may take, however written."
    )
    header_bytes: Size = Field(16 << 10, description="Largest head of a request, in bytes, its address included.")
    allowed_origins: Names = Field(
        (), description="Origins of other web pages that may send requests, such as https://a.example; *: any (CORS)."
    )
    bodies_bytes: Size = Field(16 << 20, description="Most bytes of long bodies that are being read at the same time.")
    connections: Size = Field(
        2048, description="Most connections; above it the one that has been silent longest is closed."
    )
    characters: Size = Field(5000, description="Most characters of a request's texts together.")
    texts: Size = Field(64, description="Most texts of a request.")
    alternatives: Annotated[int, Field(ge=0)] = Field(5, description="Most alternatives that may be asked for.")
    look_tokens: Size = Field(64, description="Longest sentence to look inside of, in tokens.")
    queue: Size = Field(128, description="Requests taken in, waiting and in work; more are refused at once.")
    deadline: Annotated[float, Field(gt=0)] = Field(
        30.0, description="Seconds until an answer, or a request is given up."
    )
    read_timeout: Annotated[float, Field(gt=0)] = Field(10.0, description="Seconds for a request to arrive whole.")
    requests_per_minute: Size = Field(1200, description="Requests of one key, or else of one address, in the long run.")
    burst: Size = Field(240, description="Requests of one key or address at once, after a pause.")
    patience: Annotated[float, Field(ge=0)] = Field(0.004, description="Seconds that a text waits for company.")
    tokens_per_batch: Size | None = Field(
        None, description="Tokens in work at a time, padding included, times beam; none: by the device."
    )
    batching: bool = Field(default=True, description="Translate what is waiting together; otherwise one by one.")

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
        """Bytes: twelve for a character (four of %XX in a form, two escapes in JSON), and 16 KiB for the rest."""
        return self.body_bytes or 12 * self.characters + (16 << 10)
