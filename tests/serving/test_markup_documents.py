"""Random documents whose translatable texts are known, from how they were generated or from a browser."""

import html
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser

from heed.serving.markup import join_html, split_html
from tests import browser as browsing

browser = browsing.browser

WORDS = st.sampled_from(["dog", "a cat", "code", "pre x", "x < y", "</b >", "&amp;", "É &", "svg>", "--> no"])
ATTRIBUTES = st.sampled_from(
    ["", ' title="a > b"', " class='xcode pre'", " data-x=</p", " hidden", ' alt="<code>"', " translate=yes"]
)
CLOSED = st.sampled_from([" translate=no", ' translate="NO"', " class=notranslate", " class='a notranslate b'"])
RAW_TEXT = st.sampled_from([".code { }", " pre", "xpre y", "if (a<b) {}", "<!-- <b>", "</b>", "/code >", "svg a", ""])


@dataclass(frozen=True)
class Fragment:
    """A part of a document, the expected result of putting its texts into capitals, and these texts."""

    source: str
    expected: str
    texts: tuple[str, ...] = ()


def _element(name: str, attributes: str, inside: list[Fragment], *, prose: bool = True) -> Fragment:
    source, expected = ("".join(getattr(node, part) for node in inside) for part in ("source", "expected"))
    texts = tuple(text for node in inside for text in node.texts)
    start, end = f"<{name}{attributes}>", f"</{name}>"
    if not prose:
        return Fragment(start + source + end, start + source + end)
    return Fragment(start + source + end, start + expected + end, texts)


def _text(words: str) -> Fragment:
    return Fragment(html.escape(words), html.escape(f"[{words.upper()}]", quote=False), (words,))


def _raw(name: str, content: str) -> Fragment:
    return Fragment(*(2 * (f"<{name}>{content}</{name}>",)))


MARKUP = st.sampled_from(["<br>", "<img alt='a>b'>", "<!-- a <p> -->", "<!---->", "<hr/>", "<!-- <code> --!>"])
LEAVES = st.one_of(
    WORDS.map(_text),
    MARKUP.map(lambda markup: Fragment(markup, markup)),
    st.builds(_raw, st.sampled_from(["script", "style", "textarea", "xmp", "iframe", "noembed"]), RAW_TEXT),
)


def _separated(inside: list[Fragment]) -> list[Fragment]:
    """Put a tag between neighbours, so that each text is a segment of its own."""
    return [node for child in inside for node in (child, Fragment("<wbr>", "<wbr>"))]


def _nodes(inner: st.SearchStrategy[Fragment]) -> st.SearchStrategy[Fragment]:
    children = st.lists(inner, max_size=4).map(_separated)
    names = st.sampled_from(["div", "section", "span", "em", "ul", "blockquote", "DIV"])
    closed = st.sampled_from(["code", "kbd", "samp", "var", "pre", "template"])
    return st.one_of(
        st.builds(_element, names, ATTRIBUTES, children),
        st.builds(
            lambda name, attributes, inside: _element(name, attributes, inside, prose=False), names, CLOSED, children
        ),
        st.builds(lambda name, inside: _element(name, "", inside, prose=False), closed, children),
    )


DOCUMENTS = st.recursive(LEAVES, _nodes, max_leaves=12)


def _without_translate_yes(fragment: Fragment) -> bool:
    return "translate=yes" not in fragment.source  # translate=yes inside translate=no is tested by examples


@given(DOCUMENTS.filter(_without_translate_yes))
@settings(deadline=None)
def test_every_text_is_translated_once_and_nothing_else_changes(document: Fragment) -> None:
    cut = split_html(document.source)
    texts = [part.text for part in cut if part.text is not None]
    assert texts == [text.strip() for text in document.texts]
    assert join_html(cut, [f"[{text.upper()}]" for text in texts]) == document.expected


# The texts of a document that are to be translated, as a browser determines them.
_IN_A_BROWSER = """
(documents) => documents.map((source) => {
  const closed = new Set(('CODE PRE LISTING KBD SAMP VAR SVG MATH TEMPLATE SCRIPT STYLE XMP IFRAME ' +
    'NOEMBED NOFRAMES TEXTAREA PLAINTEXT').split(' '));
  const isProse = (node) => {
    for (let at = node.parentElement; at; at = at.parentElement) {
      const wish = (at.getAttribute('translate') ?? 'none').toLowerCase();
      if (wish === 'no' || at.classList.contains('notranslate')) return false;
      if (wish === '' || wish === 'yes') return true;
      if (closed.has(at.tagName.toUpperCase())) return false;
    }
    return true;
  };
  const page = new DOMParser().parseFromString(source, 'text/html');
  const walker = page.createTreeWalker(page, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    if (text && isProse(walker.currentNode)) found.push(text);
  }
  return found;
})
"""
# HTML as people write it: omitted end tags, tags in raw text, comments. Each piece is put into every other one.
_PIECES = r"""
{}
<p>a{}
<p translate=no>a<p>b{}
<ul><li>a<li class=notranslate>b{}<li>c</ul>
<div><code>a</code>{}</div>
<dl translate=no><dt>a<dd>b{}</dl>c
<table><tr><td translate=no>a{}<td>b<tr><td>c</table>
<div translate=no><p>a<div translate=yes>b{}</div>c</div>
<style>.code{ }</style>{}
<script> pre { } </script>{}
<script><!-- <script> a </script> b --></script>{}
<script><!-- a </script>{}
<!-- a > b -->{}
<!-->{}
<svg><title>a</title><style/><text>b</text></svg>{}
<svg><path d='m'/><p>a</p>{}
<svg><![CDATA[</svg>a]]></svg>{}
<math><mi>x</mi></math>{}
<textarea></b>a</textarea>{}
<a href='x>y'>a{}</a>b
<b a=x/>c{}</b>
<pre>a</pre>{}
<noscript>a</noscript>{}
<span class='notranslate x'>a{}</span>b
<kbd>a</kbd >b{}
a < b{} &lt;c> </>d
<3{}
<select><option translate=no>a<option>b</select>{}
<button translate=no>a</button>{}
x<?pi a>b{}
</p >a{}
<svg><foreignObject><p>a</p><style>.b</style></foreignObject></svg>{}
<h1>a{}</h1>b
<ruby>a<rt translate=no>b<rt>c</ruby>{}
""".strip().splitlines()


@browsing.needs_chromium
def test_a_browser_finds_the_same_texts(browser: Browser) -> None:
    documents = [outer.replace("{}", inner.replace("{}", "end")) for outer in _PIECES for inner in _PIECES]
    page = browser.new_page()
    page.set_content("<!doctype html>")
    expected = page.evaluate(_IN_A_BROWSER, documents)
    for document, texts in zip(documents, expected, strict=True):
        our_texts = [part.text for part in split_html(document) if part.text is not None]
        # compared by letters: a browser moves and joins misplaced text
        assert sorted("".join("".join(our_texts).split())) == sorted("".join("".join(texts).split())), document
