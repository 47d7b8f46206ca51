import html
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.serving.markup import join_html, split_html


def uppercased(document: str) -> str:
    """Translate a document by putting every text into capitals and brackets."""
    cut = split_html(document)
    return join_html(cut, [f"[{part.text.upper()}]" for part in cut if part.text is not None])


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
        # element names in raw text
        ("<style>.code { color: red }</style>a", "<style>.code { color: red }</style>[A]"),
        ("<script> pre </script>a", "<script> pre </script>[A]"),
        ("<title>xpre y</title>a", "<title>[XPRE Y]</title>[A]"),
        ("<textarea>/code</textarea>a<b>b</b>", "<textarea>/code</textarea>[A]<b>[B]</b>"),
        ("<xmp> <svg> </xmp>a<iframe>xmath >b</iframe>c", "<xmp> <svg> </xmp>[A]<iframe>xmath >b</iframe>[C]"),
        ("<title>a &lt;b&gt; & <i>c</title>d", "<title>[A &lt;B&gt; &amp; &lt;I&gt;C]</title>[D]"),
        ("<title><!-- a </title>b", "<title>[&lt;!-- A] </title>[B]"),
        ("<noscript>a <b>c</b></noscript>", "<noscript>[A] <b>[C]</b></noscript>"),
        ("a<plaintext>b</plaintext>c", "[A]<plaintext>b</plaintext>c"),
        ("<script><!-- w('<script></script>') --></script>a", "<script><!-- w('<script></script>') --></script>[A]"),
        ("<script><!-- w('</script>') -->a", "<script><!-- w('</script>[') --&gt;A]"),
        ("<script><!--><script></script>a", "<script><!--><script></script>[A]"),
        # an element that is not closed, or closed by another
        ("<div><code>a</div>b", "<div><code>a</div>[B]"),
        ("<pre>a<p>b</p>c</pre>d", "<pre>a<p>b</p>c</pre>[D]"),
        ("<ul><li translate=no>a<li>b</ul>c", "<ul><li translate=no>a<li>[B]</ul>[C]"),
        ("<p translate=no>a<p>b", "<p translate=no>a<p>[B]"),
        ("<p translate=no>a<div>b</div>", "<p translate=no>a<div>[B]</div>"),
        (
            "<table><tr translate=no><td>a<td>b<tr><td>c</table>",
            "<table><tr translate=no><td>a<td>b<tr><td>[C]</table>",
        ),
        ("<code><table><td></code>a</table></code>b", "<code><table><td></code>a</table></code>[B]"),
        ("</code></p>a", "</code></p>[A]"),
        # translate=no and notranslate
        ('<p translate="no">a <b>b</b></p>c', '<p translate="no">a <b>b</b></p>[C]'),
        ("<p TRANSLATE=NO>a</P>b", "<p TRANSLATE=NO>a</P>[B]"),
        ("<i class='x notranslate'>a</i>b", "<i class='x notranslate'>a</i>[B]"),
        ("<i class=notranslates>a</i>b", "<i class=notranslates>[A]</i>[B]"),
        ("<i title='translate=no class=notranslate'>a</i>", "<i title='translate=no class=notranslate'>[A]</i>"),
        ("<p translate=no>a<b translate=yes>b</b>c</p>", "<p translate=no>a<b translate=yes>[B]</b>c</p>"),
        ("<p translate=no>a<b translate>b</b></p>", "<p translate=no>a<b translate>[B]</b></p>"),
        ("<code translate=yes>a</code><code>b</code>", "<code translate=yes>[A]</code><code>b</code>"),
        ("<p translate=&#110;o>a</p>b", "<p translate=&#110;o>a</p>[B]"),
        ("<br translate=no>a<img class=notranslate>b", "<br translate=no>[A]<img class=notranslate>[B]"),
        ("<html translate=no><title>a</title>b", "<html translate=no><title>a</title>b"),
        # SVG and MathML have other rules
        ("<svg><style/><title/><g>a</g></svg>b", "<svg><style/><title/><g>a</g></svg>[B]"),
        ("<svg><![CDATA[</svg>]]></svg>a", "<svg><![CDATA[</svg>]]></svg>[A]"),
        ("<svg><title>a</svg>b", "<svg><title>a</svg>[B]"),
        ("<svg/>a<math><mi>x</mi></math>b", "<svg/>[A]<math><mi>x</mi></math>[B]"),
        ("<svg><path><p>a</p>", "<svg><path><p>[A]</p>"),
        (
            "<svg><foreignObject><p>a</p></foreignObject></svg>b",
            "<svg><foreignObject><p>a</p></foreignObject></svg>[B]",
        ),
        ("a<![CDATA[b>c]]>", "[A]<![CDATA[b>[C]]&gt;]"),  # in HTML a comment that ends at the first >
        ("<code a=x/>b</code>c", "<code a=x/>b</code>[C]"),  # the / belongs to the value
        ("<a b='>' c=\">\" d=>e", "<a b='>' c=\">\" d=>[E]"),
    ],
)
def test_text_is_translated_and_markup_is_left_alone(document: str, expected: str) -> None:
    assert uppercased(document) == expected


class _Tags(HTMLParser):
    """The tags that the standard library's parser sees."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self.found.append(tag)


HOSTILE = st.lists(
    st.sampled_from(
        [
            "<",
            ">",
            "</",
            "<!--",
            "-->",
            "&lt;",
            "&gt;",
            "&amp;",
            "script",
            "b",
            "p",
            '"',
            "'",
            "=",
            "/",
            "a",
            "<script>",
            "</script>",
            "<style>",
            "</style>",
            "<title>",
            "</title>",
            "<pre>",
            "</pre>",
            "<svg>",
            "</svg>",
            "<li\tclass=notranslate>",
            "<p\ttranslate=no>",
            "<![CDATA[",
            "]]>",
            "<td>",
            "<br/>",
            "code",
            ".pre",
            "p\t",
        ]
    )
    | st.text(max_size=3),
    max_size=30,
).map("".join)


@given(HOSTILE)
def test_joining_unchanged_segments_restores_the_document(document: str) -> None:
    cut = split_html(document)
    assert "".join(part.raw for part in cut) == document
    texts = [part.text for part in cut if part.text is not None]
    assert join_html(cut, texts) == document


@given(st.text(max_size=100))
def test_escaped_text_never_becomes_a_tag(text: str) -> None:
    document = f"<p>{html.escape(text)}</p>"
    parser = _Tags()
    parser.feed(uppercased(document))
    parser.close()
    assert parser.found == ["p"]


def test_hostile_documents_are_split_in_linear_time() -> None:
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
        assert "".join(part.raw for part in split_html(hostile)) == hostile
