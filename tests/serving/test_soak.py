"""The memory of a server does not grow over many requests."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.serving.clients import distinct_sentences
from tests.serving.running import Running

CONCURRENT = 16
_LANGUAGES = {"source": "en", "target": "de"}


def resident_kib(server: Running) -> int:
    """Resident memory of the server process in KiB."""
    lines = Path(f"/proc/{server.process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:")))


RequestSpec = tuple[str, dict[str, object], int]  # route, fields and expected status


async def send_requests(server: Running, first: int, count: int) -> None:
    """Send different valid and invalid requests to all routes, concurrently."""
    texts = iter(enumerate(distinct_sentences(first + count)[first:]))

    async def client() -> None:
        async with httpx.AsyncClient(verify=False, timeout=60, base_url=server.address) as connection:  # noqa: S501
            for number, text in texts:
                choices: list[RequestSpec] = [
                    ("/translate", {"q": text}, 200),
                    ("/translate", {"q": [text, "A dog"], "alternatives": 2, "source": "auto"}, 200),
                    ("/translate", {"q": f"<p>{text}<b>A dog</b></p>", "format": "html", "details": True}, 200),
                    ("/translate/stream", {"q": text}, 200),
                    ("/alternatives", {"q": text, "prefix": "ab"}, 200),
                    ("/detect", {"q": text}, 200),
                    ("/look", {"q": text[:20]}, 200),
                    ("/translate", {"q": text, "target": text}, 400),
                    (f"/{number}", {}, 404),
                ]
                route, fields, status = choices[number % len(choices)]
                answer = await connection.post(route, json=_LANGUAGES | fields)
                assert answer.status_code == status, answer.text

    await asyncio.gather(*(client() for _ in range(CONCURRENT)))


@pytest.mark.parametrize(
    "count", [pytest.param(4000, marks=pytest.mark.slow), pytest.param(20_000, marks=pytest.mark.endless)]
)
def test_memory_does_not_grow_with_use(server: Running, count: int) -> None:
    warm_up = count // 4  # so that caches are full
    asyncio.run(send_requests(server, 0, warm_up))
    before = resident_kib(server)
    asyncio.run(send_requests(server, warm_up, count))
    after = resident_kib(server)
    print(f"{before} KiB after {warm_up} requests, {after} KiB after {count} more: {after / before - 1:+.2%}")
    assert after < 1.02 * before
