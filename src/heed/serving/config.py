"""The settings of the server: addresses, limits and dynamic batching."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from heed.errors import ConfigError
from heed.settings import NameList, PositiveInt, Settings

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class ServeConfig(Settings):
    """What the server accepts and rejects. Every limit is on by default."""

    host: str = Field("127.0.0.1", description="Address to listen on; by default this machine only.")
    port: Annotated[int, Field(ge=0, lt=65536)] = Field(8080, description="Port to listen on; 0: any free port.")
    allowed_hosts: NameList = Field(
        (), description="Host names accepted in requests, besides the server's own; *: any."
    )
    trusted_proxies: NameList = Field(
        (), description="Addresses or networks of proxies whose X-Forwarded-For header is trusted."
    )
    body_bytes: PositiveInt | None = Field(
        None, description="Maximum request body, in bytes; none: enough for `characters` in any encoding."
    )
    header_bytes: PositiveInt = Field(16 << 10, description="Maximum size of the request line and headers, in bytes.")
    allowed_origins: NameList = Field(
        (), description="Origins that may send cross-origin requests (CORS), such as https://a.example; *: any."
    )
    bodies_bytes: PositiveInt = Field(
        16 << 20, description="Memory for all request bodies above 16 KiB while they are received, in bytes."
    )
    connections: PositiveInt = Field(
        2048, description="Maximum open connections; beyond it the longest idle connection is closed."
    )
    characters: PositiveInt = Field(5000, description="Maximum characters per request, all texts together.")
    texts: PositiveInt = Field(64, description="Maximum texts per request.")
    alternatives: Annotated[int, Field(ge=0)] = Field(5, description="Maximum alternatives per text.")
    look_tokens: PositiveInt = Field(64, description="Maximum length of a sentence to trace, in tokens.")
    queue: PositiveInt = Field(128, description="Maximum requests queued and in progress; more are rejected at once.")
    deadline: Annotated[float, Field(gt=0)] = Field(30.0, description="Maximum time for a request, in seconds.")
    read_timeout: Annotated[float, Field(gt=0)] = Field(
        10.0, description="Maximum time to receive a whole request, in seconds."
    )
    requests_per_minute: PositiveInt = Field(
        1200, description="Sustained requests per minute of one API key, or of one address without a key."
    )
    burst: PositiveInt = Field(
        240, description="Maximum burst of requests of one API key or address (size of its token bucket)."
    )
    patience: Annotated[float, Field(ge=0)] = Field(
        0.004, description="Maximum time a request waits for a batch to fill, in seconds."
    )
    tokens_per_batch: PositiveInt | None = Field(
        None, description="Maximum source tokens per batch, padding included, times beam; none: chosen for the device."
    )
    batching: bool = Field(
        default=True, description="Batch concurrent requests (dynamic batching); otherwise one at a time."
    )

    @model_validator(mode="after")
    def _check_origins(self) -> Self:
        for origin in self.allowed_origins:
            scheme, _, host = origin.partition("://")
            if origin != "*" and (scheme not in ("http", "https") or not host or set(host) & set("/?#@ ")):
                raise ConfigError(
                    f"allowed_origins: {origin!r} is not an origin: expected scheme and host, such as https://a.example"
                )
            if origin != origin.lower():
                raise ConfigError(f"allowed_origins: {origin!r}: expected lower case, as browsers send it")
        return self

    @property
    def max_body_bytes(self) -> int:
        """The body limit in bytes: `body_bytes`, or 12 per character (four %XX, or two JSON escapes) plus 16 KiB."""
        return self.body_bytes or 12 * self.characters + (16 << 10)
