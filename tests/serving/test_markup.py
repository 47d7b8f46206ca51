import html
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.serving.markup import joined, parts


def shouted(document: str) -> str:
    """Every text in capitals, between marks: what a translator might do."""
    cut = parts(document)
    return joined(cut, [f"[{part.text.upper()}]" for part in cut if part.text is not None])


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("a dog", "[A DOG]"),
        ("<p>a dog</p>", "<p>[A DOG]</p>"),
        ("<p> a <b>big</b>\n dog </p>", "<p> [A] <b>[BIG]</b>\n [DOG] </p>"),
        ('<a title="a > b" href=x>c</a>', '<a title="a > b" href=x>[C]</a>'),
        ("<a title='it\"s'>c</a>", "<a title='it\"s'>[C]</a>"),
        ('<a ="x>y">c', '<a ="x>[Y"&gt;C]'),  # a name may begin with =, and then there is no value yet
        ("<br/>x<br>", "<br/>[X]<br>"),
        ("&lt;script&gt;alert(1)&lt;/script&gt;", "[&lt;SCRIPT&gt;ALERT(1)&lt;/SCRIPT&gt;]"),
        ("&amp;lt;b&amp;gt;", "[&amp;LT;B&amp;GT;]"),
        ("&#60;b&#x3e;", "[&lt;B&gt;]"),
        ("a < b and c > d", "[A &lt; B AND C &gt; D]"),
        ("1<2", "[1&lt;2]"),
        ("<3", "[&lt;3]"),
        ("<script>if (a<b) x()</script>y", "<script>if (a<b) x()</script>[Y]"),
        ("<SCRIPT>a</b></Script >y", "<SCRIPT>a</b></Script >[Y]"),
        ("<script>a</scriptx>b</script>y", "<script>a</scriptx>b</script>[Y]"),
        ("<style>p{}</style><!-- a > b -->y", "<style>p{}</style><!-- a > b -->[Y]"),
        ("<!-->x-->y", "<!-->[X--&gt;Y]"),
        ("<!doctype html><?pi x?>y</ x>z", "<!doctype html><?pi x?>[Y]</ x>[Z]"),
        ("<code>a <b>c</b></code>d", "<code>a <b>c</b></code>[D]"),
        ("<pre>a<pre>b</pre>c</pre>d", "<pre>a<pre>b</pre>c</pre>[D]"),
        ("<code/>a", "<code/>[A]"),
        ("<textarea><b>a</b></textarea>b", "<textarea><b>a</b></textarea>[B]"),
        ("a<b", "[A]<b"),
        ("a<!-- b", "[A]<!-- b"),
        ("<script>a", "<script>a"),
        ("<p></p> \n ", "<p></p> \n "),
        ("&nbsp;a", "\xa0[A]"),
        ("İ<SCRIPT>ı</SCRIPT>b", "[İ]<SCRIPT>ı</SCRIPT>[B]"),
        ("", ""),
    ],
)
def test_text_is_translated_and_markup_is_left_alone(document: str, expected: str) -> None:
    assert shouted(document) == expected


class _Tags(HTMLParser):
    """The standard library's opinion of what is a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self.found.append(tag)


HOSTILE = st.lists(
    st.sampled_from(
        ["<", ">", "</", "<!--", "-->", "&lt;", "&gt;", "&amp;", "script", "b", "p ", '"', "'", "=", "/", "a"]
    )
    | st.text(max_size=3),
    max_size=30,
).map("".join)


@given(HOSTILE)
def test_what_is_put_back_as_it_was_is_what_it_was(document: str) -> None:
    cut = parts(document)
    assert "".join(part.raw for part in cut) == document
    texts = [part.text for part in cut if part.text is not None]
    assert html.unescape(joined(cut, texts)) == html.unescape("".join(part.raw for part in cut))


@given(st.text(max_size=100))
def test_escaped_text_never_becomes_a_tag(text: str) -> None:
    document = f"<p>{html.escape(text)}</p>"
    seen = _Tags()
    seen.feed(shouted(document))
    seen.close()
    assert seen.found == ["p"]


def test_a_hundred_thousand_open_brackets_take_no_time() -> None:
    for hostile in (
        "<" * 100_000,
        "<a " * 30_000,
        "<!--" * 30_000,
        "<script>" * 10_000,
        "<b '" * 20_000,
        "</x" * 30_000,
        "<script></script>" * 10_000,
        "<!---->" * 20_000,
        "<!----!>" * 20_000,
        "<!-- -- -" * 20_000,
    ):
        assert "".join(part.raw for part in parts(hostile)) == hostile
