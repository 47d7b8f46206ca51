"""What a server has done, in numbers, as Prometheus reads them. No text, key or address is among them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class Gauge:
    """A number of the moment, or of all so far where `kind` is counter."""

    name: str
    help: str
    value: float
    kind: str = "gauge"


class Metrics:
    """Requests by route and status, and how long they took. Routes are named as they are written, not as asked for."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0

    def count(self, route: str, status: int, seconds: float) -> None:
        """Note one answer."""
        self._requests[route, status] += 1
        self._buckets[next((bound for bound in _SECONDS if seconds <= bound), float("inf"))] += 1
        self._seconds += seconds

    def lines(self, gauges: Sequence[Gauge]) -> str:
        """All of it as text."""
        return "\n".join((*self._written(), *(line for gauge in gauges for line in _gauge(gauge)))) + "\n"

    def _written(self) -> Iterator[str]:
        yield "# HELP heed_requests_total Answers, by route and status."
        yield "# TYPE heed_requests_total counter"
        for (route, status), count in sorted(self._requests.items()):
            yield f'heed_requests_total{{route="{route}",status="{status}"}} {count}'
        yield "# HELP heed_request_seconds From a request's head to the end of its answer."
        yield "# TYPE heed_request_seconds histogram"
        so_far = 0
        for bound in (*_SECONDS, float("inf")):
            so_far += self._buckets[bound]
            shown = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'heed_request_seconds_bucket{{le="{shown}"}} {so_far}'
        yield f"heed_request_seconds_sum {self._seconds:.6f}"
        yield f"heed_request_seconds_count {so_far}"


def _gauge(gauge: Gauge) -> Iterator[str]:
    yield f"# HELP {gauge.name} {gauge.help}"
    yield f"# TYPE {gauge.name} {gauge.kind}"
    yield f"{gauge.name} {gauge.value:g}"
