"""Language codes as clients write them (BCP 47: `pt-BR`, `zh-Hans`, `DE`) to the codes that models have."""

from collections.abc import Sequence

AUTO = "auto"

# ISO 639-1, for people to read; a language that is not here is called by its code.
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

# Regions that mean a script, where a language is written in several.
_SCRIPTS = {"zh-cn": "hans", "zh-sg": "hans", "zh-tw": "hant", "zh-hk": "hant", "zh-mo": "hant"}


def name_of(code: str) -> str:
    """A language's name in English."""
    language, *rest = code.replace("_", "-").split("-")
    name = NAMES.get(language.lower(), language)
    return f"{name} ({'-'.join(rest)})" if rest else name


def is_code(text: str) -> bool:
    """Whether a text can be the code of a language: letters and digits, with regions and scripts after hyphens."""
    return text.isascii() and all(part.isalnum() for part in text.replace("_", "-").split("-")) and text != AUTO


def nearest_code(requested: str, known: Sequence[str]) -> str | None:
    """The known code nearest to a requested one: of the same language, and not of another script.

    The identical code first, then the one with most subtags in common, then the shortest, then the first.
    """
    wanted = _subtags(requested)
    fitting = [code for code in known if _is_same_language(wanted, _subtags(code))]
    if not fitting:
        return None
    return max(fitting, key=lambda code: (len(set(wanted) & set(_subtags(code))), -len(_subtags(code))))


def _subtags(code: str) -> list[str]:
    found = code.lower().replace("_", "-").split("-")
    script = _SCRIPTS.get("-".join(found[:2]))
    return [*found, script] if script else found


def _is_same_language(one: Sequence[str], other: Sequence[str]) -> bool:
    scripts = [[tag for tag in tags[1:] if len(tag) == 4 and tag.isalpha()] for tags in (one, other)]
    return one[0] == other[0] and (not all(scripts) or scripts[0] == scripts[1])
