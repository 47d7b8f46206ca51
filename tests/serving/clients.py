"""Texts and raw requests for load tests, and the number of active requests from the metrics."""

import json
import random
import socket

from tests.serving.running import Running, wait_until


def distinct_sentences(count: int) -> list[str]:
    """Different sentences of different lengths."""
    random.seed(1)
    words = ["dog", "cat", "bird", "house", "sees", "old", "the", "and"]
    return [f"{n} {' '.join(random.choices(words, k=random.randint(1, 6)))}." for n in range(count)]


def start(server: Running, text: str = "A dog", route: str = "/translate") -> socket.socket:
    """Send a request without waiting for the response."""
    body = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
    client = socket.create_connection(server.socket_address, timeout=60)
    head = f"POST {route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    client.sendall(f"{head}\r\n\r\n".encode() + body)
    return client


def active_requests(server: Running) -> int:
    lines = server.get("/metrics").text.splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("heed_requests_in_work ")))


def wait_for_active_requests(server: Running, count: int) -> None:
    wait_until(lambda: active_requests(server) == count, f"{count} requests in work", 30)
