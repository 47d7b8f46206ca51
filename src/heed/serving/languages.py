"""Matches language codes of requests (BCP 47: `pt-BR`, `zh-Hans`, `DE`) to the codes of the served models."""

from collections.abc import Sequence

AUTO = "auto"

# English names of ISO 639-1 codes; other languages are shown by their code.
_NAMES = """
    ar Arabic   bg Bulgarian   bn Bengali    ca Catalan  cs Czech       da Danish     de German      el Greek
    en English  eo Esperanto   es Spanish    et Estonian eu Basque      fa Persian    fi Finnish     fr French
    ga Irish    gl Galician    he Hebrew     hi Hindi    hr Croatian    hu Hungarian  id Indonesian  is Icelandic
    it Italian  ja Japanese    ko Korean     lt Lithuanian  lv Latvian  mk Macedonian ms Malay       nb Norwegian
    nl Dutch    no Norwegian   pl Polish     pt Portuguese  ro Romanian ru Russian    sk Slovak      sl Slovenian
    sq Albanian sr Serbian     sv Swedish    sw Swahili  ta Tamil       th Thai       tl Tagalog     tr Turkish
    uk Ukrainian  ur Urdu      vi Vietnamese  zh Chinese
""".split()  # noqa: SIM905 - a list of these would be sixty lines
NAMES = dict(zip(_NAMES[::2], _NAMES[1::2], strict=True))

# Regions that imply a script, for languages written in several.
_SCRIPTS = {"zh-cn": "hans", "zh-sg": "hans", "zh-tw": "hant", "zh-hk": "hant", "zh-mo": "hant"}


def language_name(code: str) -> str:
    language, *rest = code.replace("_", "-").split("-")
    name = NAMES.get(language.lower(), language)
    return f"{name} ({'-'.join(rest)})" if rest else name


def is_code(text: str) -> bool:
    """Whether a text looks like a language code: letters and digits, with regions and scripts after hyphens."""
    return text.isascii() and all(part.isalnum() for part in text.replace("_", "-").split("-")) and text != AUTO


def nearest_code(requested: str, known: Sequence[str]) -> str | None:
    """The best match for a requested code: the same language and no other script; None: there is no match.

    Prefers the most subtags in common, then the shortest code, then the first.
    """
    subtags = _subtags(requested)
    matching = [code for code in known if _is_same_language(subtags, _subtags(code))]
    if not matching:
        return None
    return max(matching, key=lambda code: (len(set(subtags) & set(_subtags(code))), -len(_subtags(code))))


def _subtags(code: str) -> list[str]:
    subtags = code.lower().replace("_", "-").split("-")
    script = _SCRIPTS.get("-".join(subtags[:2]))
    return [*subtags, script] if script else subtags


def _is_same_language(first: Sequence[str], second: Sequence[str]) -> bool:
    scripts = [[tag for tag in tags[1:] if len(tag) == 4 and tag.isalpha()] for tags in (first, second)]
    return first[0] == second[0] and (not all(scripts) or scripts[0] == scripts[1])
