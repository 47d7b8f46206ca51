"""Counters, gauges and histograms of a server in Prometheus's text format; they contain no text, key or address.

`prometheus-client` would be 70 lines shorter here, but would rename series that dashboards read (`le="1"` to
`le="1.0"`, `heed_worker_*` to `heed_worker_process_*`) and measures processes on Linux only. Tests use its parser.
"""

import os
import resource
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_STARTED = time.time()  # start time of the process on systems without /proc


@dataclass(frozen=True)
class Gauge:
    """A gauge, or a counter where `type` says so."""

    name: str
    help: str
    value: float
    type: str = "gauge"


class Histogram:
    """Number of values up to each bound. One thread writes; another may read at the same time."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """The series in text format. labels: as in `route="/translate"`."""
        cumulative = 0
        for bound, count in zip((*(f"{bound:g}" for bound in self._bounds), "+Inf"), self._counts, strict=True):
            cumulative += count
            yield f'{name}_bucket{{{labels}{"," if labels else ""}le="{bound}"}} {cumulative}'
        shown = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{shown} {self._sum:.6f}"
        yield f"{name}_count{shown} {cumulative}"


class RequestMetrics:
    """Requests by route and status, and their durations by route."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))

    def count(self, route: str, status: int, seconds: float) -> None:
        self._requests[route, status] += 1
        self._seconds[route].observe(seconds)

    def lines(self) -> str:
        """All series in the Prometheus text format."""
        return "\n".join(self._series()) + "\n"

    def _series(self) -> Iterator[str]:
        yield from _head("heed_requests_total", "counter", "Responses, by route and status.")
        for (route, status), count in sorted(self._requests.items()):
            yield f'heed_requests_total{{route="{route}",status="{status}"}} {count}'
        yield from _head(
            "heed_request_seconds",
            "histogram",
            "Time from the headers of a request to the end of its response, by route.",
        )
        for route, histogram in sorted(self._seconds.items()):
            yield from histogram.lines("heed_request_seconds", f'route="{route}"')


def histogram_lines(name: str, text: str, histogram: Histogram) -> str:
    """A histogram without labels in the Prometheus text format."""
    return "\n".join((*_head(name, "histogram", text), *histogram.lines(name))) + "\n"


def gauge_lines(gauges: Sequence[Gauge]) -> str:
    """Gauges in the Prometheus text format."""
    return "\n".join(line for gauge in gauges for line in _gauge(gauge)) + "\n"


def process_gauges(prefix: str = "process") -> list[Gauge]:
    """CPU, memory and open files of this process, under the names that Prometheus clients use or with another prefix;
    values that the system does not provide are left out.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    gauges = [
        Gauge(f"{prefix}_cpu_seconds_total", "CPU time, user and system.", used.ru_utime + used.ru_stime, "counter"),
    ]
    if (limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) != resource.RLIM_INFINITY:
        gauges.append(Gauge(f"{prefix}_max_fds", "Maximum number of open files.", limit))
    try:
        pages, start = _from_proc()
    except (OSError, ValueError, IndexError):  # no /proc: peak memory, in bytes or in KiB
        peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return [
            *gauges,
            Gauge(f"{prefix}_resident_memory_bytes", "Peak resident memory.", peak),
            Gauge(f"{prefix}_start_time_seconds", "Start time, in seconds since the epoch.", _STARTED),
        ]
    return [
        *gauges,
        Gauge(f"{prefix}_open_fds", "Open files.", len(os.listdir("/proc/self/fd")) - 1),
        Gauge(f"{prefix}_resident_memory_bytes", "Resident memory.", pages * os.sysconf("SC_PAGE_SIZE")),
        Gauge(f"{prefix}_start_time_seconds", "Start time, in seconds since the epoch.", start),
    ]


def _from_proc() -> tuple[int, float]:
    """Resident pages and start time of this process, from /proc."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # since boot
    up = float(Path("/proc/uptime").read_text().split()[0])
    return pages, time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


def _head(name: str, type_name: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {type_name}"


def _gauge(gauge: Gauge) -> Iterator[str]:
    yield from _head(gauge.name, gauge.type, gauge.help)
    value = gauge.value
    yield f"{gauge.name} {int(value) if value == int(value) else round(value, 3)}"
