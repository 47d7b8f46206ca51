"""Behind a reverse proxy: names, forwarded addresses, keys that change; and languages by any of their codes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from heed.errors import ConfigError
from heed.serving.config import ServeConfig
from heed.serving.guard import answers_to, check_addresses, through_proxies
from heed.serving.languages import is_code, name_of, nearest_code
from heed.serving.limits import add_key
from tests.serving.running import CLIENT, Running, refused, serving


def config(**settings: Any) -> ServeConfig:
    return ServeConfig.model_validate(settings)


def test_a_server_answers_to_its_own_names_and_those_it_is_given() -> None:
    own = frozenset({"127.0.0.1", "localhost", "::1"})
    assert answers_to(config()) == own
    assert answers_to(config(allowed_hosts="MT.example.org,b.example")) == own | {"mt.example.org", "b.example"}
    assert answers_to(config(allowed_hosts=["*"])) is None
    assert answers_to(config(host="192.0.2.1")) is None
    assert answers_to(config(host="192.0.2.1", allowed_hosts=["b.example"])) == own | {"192.0.2.1", "b.example"}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"allowed_hosts": "https://a.example"}, r"serve.allowed_hosts has 'https://a.example': expected host names"),
        ({"allowed_hosts": "a.example, b.example"}, r"serve.allowed_hosts has ' b.example'"),
        ({"allowed_hosts": "*.example"}, r"serve.allowed_hosts has '\*.example'"),
        ({"trusted_proxies": "nginx"}, r"serve.trusted_proxies has 'nginx': .* expected addresses or networks"),
        ({"trusted_proxies": "10.0.0.1/8"}, r"serve.trusted_proxies has '10.0.0.1/8': .* has host bits set"),
        ({"trusted_proxies": "*"}, r"serve.trusted_proxies has '\*'"),
    ],
)
def test_names_and_addresses_that_can_never_match_are_refused(settings: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check_addresses(config(**settings))
    check_addresses(config(allowed_hosts="a.example,*", trusted_proxies="127.0.0.1,::1,10.0.0.0/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "6.6.6.6, 192.0.2.7", "192.0.2.7"),  # what a client made up stands on the left
        ("10.0.0.1", "6.6.6.6, 192.0.2.7, 10.0.0.2", "192.0.2.7"),  # two proxies
        ("10.0.0.1", "192.0.2.7:4711", "192.0.2.7"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("192.0.2.9", "6.6.6.6", "192.0.2.9"),  # not a proxy of ours
    ],
)
def test_an_address_is_believed_from_a_trusted_proxy_only(peer: str, forwarded: str, client: str) -> None:
    seen: list[str] = []

    async def ask(trusted: list[str]) -> None:
        nothing: Any = None
        await through_proxies(app, trusted)(dict(scope), nothing, nothing)

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        seen.append(scope["client"][0])

    headers = [(b"x-forwarded-for", forwarded.encode()), (b"forwarded", b"for=7.7.7.7")]
    scope = {"type": "http", "client": (peer, 1), "scheme": "http", "headers": headers}
    for trusted, expected in ((["10.0.0.0/8"], client), ([], peer)):
        asyncio.run(ask(trusted))
        assert seen.pop() == expected


def ask(server: Running, key: str, host: str, client: str) -> int:
    fields = {"q": "A dog", "source": "EN-us", "target": "de_DE", "api_key": key}
    headers = {"Host": host, "X-Forwarded-For": client}
    return CLIENT.post(f"{server.address}/translate", json=fields, headers=headers).status_code


def test_a_server_behind_a_proxy_knows_its_name_its_clients_and_new_keys(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "keys.txt"
    first = add_key(file)
    proxied = ("--set", "serve.allowed_hosts=mt.example.org", "--set", "serve.trusted_proxies=127.0.0.1")
    limits = ("--set", "serve.burst=2", "--set", "serve.requests_per_minute=1")
    with serving(folders[0], "--keys", file, *proxied, *limits) as server:
        assert ask(server, first, "mt.example.org", "192.0.2.1") == 200
        assert ask(server, first, "other.example.org", "192.0.2.1") == 421
        second = add_key(file)  # while it runs
        assert ask(server, second, "MT.example.org:443", "192.0.2.1") == 200
        statuses = [ask(server, "wrong", "mt.example.org", client) for client in ("192.0.2.1",) * 3 + ("192.0.2.2",)]
        assert statuses == [403, 403, 429, 403]  # each client has a rate of its own


def test_a_name_for_others_needs_keys(folders: tuple[Path, Path]) -> None:
    code, said = refused(folders[0], "--set", "serve.allowed_hosts=mt.example.org")
    assert code == 2
    assert said.startswith("error: serve.allowed_hosts=mt.example.org lets others in: ask for keys")


@pytest.mark.parametrize(
    ("asked", "known", "found"),
    [
        ("de", ["en", "de"], "de"),
        ("DE", ["en", "de"], "de"),
        ("pt-BR", ["en", "pt"], "pt"),
        ("pt_br", ["pt", "pt-BR"], "pt-BR"),
        ("pt-PT", ["pt-BR", "pt"], "pt"),
        ("pt", ["pt-BR"], "pt-BR"),
        ("zh-Hans", ["zh"], "zh"),
        ("zh-Hans-CN", ["zh-Hant", "zh-Hans"], "zh-Hans"),
        ("zh-TW", ["zh-Hans", "zh-Hant"], "zh-Hant"),
        ("zh-Hans", ["zh-Hant"], None),  # another script is another text
        ("sr-Latn", ["sr-Cyrl", "en"], None),
        ("d", ["de"], None),
        ("deu", ["de"], None),
        ("", ["de"], None),
        ("-", ["de"], None),
    ],
)
def test_a_code_finds_the_nearest_model(asked: str, known: list[str], found: str | None) -> None:
    assert nearest_code(asked, known) == found


def test_codes_have_names_and_are_told_from_what_is_none() -> None:
    assert [name_of(code) for code in ("de", "PT-br", "zz")] == ["German", "Portuguese (br)", "zz"]
    assert [is_code(text) for text in ("en", "pt-BR", "zh_Hans", "", "e n", "auto", "en-", "ä")] == [True] * 3 + [
        False
    ] * 5


def test_codes_in_capitals_with_regions_and_auto_are_understood(server: Running) -> None:
    plain = server.post("/translate", q="A dog", source="en", target="de").json()
    assert server.post("/translate", q="A dog", source="EN-GB", target="De-AT").json() == plain
    found = server.post("/translate", q="A dog runs.", source="AUTO", target="de_DE").json()
    assert found["detectedLanguage"]["language"] == "en"
    assert server.post("/translate", q="A dog", source="de-CH", target="DE").json() == {"translatedText": "A dog"}
    for route in ("/translate/stream", "/alternatives", "/look"):
        assert server.post(route, q="A dog", source="en-US", target="DE").status_code == 200, route


@pytest.mark.parametrize("text", ["😀😀", "---", "3.14 + 1,000", "  ", "\n12\n", "→ ∞"])
def test_a_text_without_letters_comes_back_as_it_was(server: Running, text: str) -> None:
    for q in (text, [text, "A dog"]):
        found = server.post("/translate", q=q, source="en", target="de", alternatives=2).json()["translatedText"]
        assert (found if isinstance(q, str) else found[0]) == text
    cells = f"<td>{text}</td><td>&#8212; &copy;</td>"
    assert server.post("/translate", q=cells, source="en", target="de", format="html").json()["translatedText"] == cells
    assert text.strip() in server.post("/translate/stream", q=f"{text}.", source="en", target="de").text or "\n" in text


def test_alternatives_are_all_different(server: Running) -> None:
    for text in ("A dog runs.", "Cat", "x y", "<b>a</b> b"):
        for form in ("text", "html"):
            found = server.post("/translate", q=text, source="en", target="de", alternatives=5, format=form).json()
            texts = [found["translatedText"], *found["alternatives"]]
            assert len(set(texts)) == len(texts)
        offers = server.post("/alternatives", q=text, source="en", target="de", prefix="").json()["alternatives"]
        assert len({offer["text"] for offer in offers}) == len(offers)
