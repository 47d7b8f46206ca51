"""Infers the languages of a corpus from file names, column names or JSON keys.

Enters: corpora. Leaves: the language codes of source and target and where they come from, or nothing.

Only listed codes count: by ISO 639-3 ``.txt``, ``.tok`` and ``.bpe`` are language codes too. Of two names only the
components in which they differ are considered (``train.en`` and ``train.de``), of one name only two adjacent codes
(``corpus.en-de.tsv``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heed.errors import ConfigError

if TYPE_CHECKING:
    from heed.text.corpus import Corpus

# ISO 639-1, then the same languages by ISO 639-3, then other languages of parallel corpora.
_KNOWN_CODES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo
    es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg
    ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn
    no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw
    ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu

    aar abk afr aka amh arg ara asm ava aym aze bak bel bul bis bam ben bod bre bos cat che cha cos cre ces chu chv cym
    dan deu div dzo ewe ell eng epo spa est eus fas ful fin fij fao fra fry gle gla glg grn guj glv hau heb hin hmo hrv
    hat hun hye ina ind ile ibo ipk ido isl ita iku jpn jav kat kon kik kua kaz kal khm kan kor kau kas kur kom cor kir
    lat ltz lug lim lin lao lit lub lav mlg mah mri mkd mal mon mar msa mlt mya nau nob nde nep ndo nld nno nor nbl nav
    nya oci oji orm ori oss pan pli pol pus por que roh ron rus kin san srd snd sme sag sin slk slv smo sna som sqi srp
    ssw sot sun swe swa tam tel tgk tha tir tuk tgl tsn ton tur tso tat twi tah uig ukr urd uzb ven vie vol wln wol xho
    yid yor zha zho zul

    acm als apc arb ars ary arz ast azb azj ber bho ceb ckb cmn crh dsb fil fur gom gsw haw hsb ilo kab khk kmr lij lmo
    ltg lus lvs mai mni nap nds npi nso ory pap pbt pcm pes plt prs quy scn szl swh tpi tzm uzn vec wuu ydd yue zsm
    """.split()  # noqa: SIM905 - a list of these would be hundreds of lines
)
_LOWERCASE_REGIONS = frozenset(("br", "cn", "gb", "hk", "mx", "tw", "us"))  # others may be languages
_CODE = re.compile(r"([A-Za-z]{2,3})(?:[-_]([A-Z][a-z]{3}))?(?:[-_]([A-Za-z]{2}|[0-9]{3}))?")
_CODE_PAIR_PATTERNS = (
    re.compile(r"^([a-z]{2,3}(?:_[A-Z][a-z]{3})?)[-_]([a-z]{2,3}(?:_[A-Z][a-z]{3})?)$"),  # en-de, eng_Latn-zho_Hans
    re.compile(r"^([A-Z]{2})[-_]([A-Z]{2})$"),
    re.compile(r"[-_]([a-z]{2})[-_]([a-z]{2})$"),  # train_en_de
)
_BCP_47 = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")


@dataclass(frozen=True)
class LanguagePair:
    """The language codes of a corpus, and where they come from: ``the file names``."""

    source: str
    target: str
    origin: str


def infer_languages(corpora: "Sequence[Corpus]") -> list[LanguagePair]:
    """The distinct language pairs that the names in the corpora indicate: one if they agree, none if none has codes."""
    pairs = (pair for corpus in corpora if (pair := _infer_one(corpus)) is not None)
    return list({(pair.source, pair.target): pair for pair in pairs}.values())


def check_language_code(code: str, option: str) -> str:
    """Return a code given by the user if it has the form of a BCP 47 tag; else raise a ConfigError."""
    if not _BCP_47.fullmatch(code):
        raise ConfigError(f"{option} {code!r}: expected a language code such as en, hsb, pt-BR or zh-Hans")
    return code


def _infer_one(corpus: "Corpus") -> LanguagePair | None:
    if corpus.text or corpus.labelled:
        return None
    if corpus.source and corpus.target:
        return _language_pair(
            _from_two_names(_without_compression_suffix(corpus.source), _without_compression_suffix(corpus.target)),
            "the file names",
        )
    if corpus.format == "jsonl" and (codes := _from_two_names(corpus.source_key, corpus.target_key)):
        return LanguagePair(*codes, "the JSON keys")
    if corpus.columns and (codes := _from_two_names(*corpus.columns.split(","))):
        return LanguagePair(*codes, "the column names")
    return _language_pair(_from_one_name(_without_compression_suffix(str(corpus.pairs))), "the file name")


def is_known_code(text: str) -> bool:
    """Whether a text is exactly one listed language code."""
    return _code(text) is not None


def _language_pair(codes: tuple[str, str] | None, origin: str) -> LanguagePair | None:
    return None if codes is None else LanguagePair(*codes, origin)


def _without_compression_suffix(path: str) -> str:
    return re.sub(r"\.(gz|zst)$", "", path, flags=re.IGNORECASE)


def _from_two_names(source: str, target: str) -> tuple[str, str] | None:
    """``train.en`` and ``train.de``, ``en/a.txt`` and ``de/a.txt``, ``translation.en`` and ``translation.de``."""
    for separators in (r"[/\\.]", r"[/\\._-]"):
        source_parts, target_parts = re.split(separators, source), re.split(separators, target)
        if len(source_parts) == len(target_parts):
            parts = zip(source_parts, target_parts, strict=True)
            differences = {
                (_code(source_part), _code(target_part))
                for source_part, target_part in parts
                if source_part != target_part
            }
            if len(differences) == 1 and (codes := _distinct(*differences.pop())):
                return codes
    return _distinct(*(_last_code(name) for name in (source, target)))  # a.en and b.de


def _from_one_name(path: str) -> tuple[str, str] | None:
    """``corpus.en-de.tsv``, ``train_en_de.tsv``, ``en-de/train.tsv``, ``corpus.en.de.tsv``."""
    parts = re.split(r"[/\\]", path)
    folder, words = "".join(parts[-2:-1]), parts[-1].split(".")[:-1]
    for text in (*reversed(words), folder):
        for pattern in _CODE_PAIR_PATTERNS:
            if (match := pattern.search(text)) and (codes := _distinct(_code(match[1]), _code(match[2]))):
                return codes
    return _distinct(_code(words[-2]), _code(words[-1])) if len(words) > 1 else None


def _distinct(source: str | None, target: str | None) -> tuple[str, str] | None:
    return (source, target) if source and target and source != target else None


def _last_code(path: str) -> str | None:
    parts = re.split(r"[/\\]", path)[-1].split(".")
    return next((code for part in reversed(parts) if (code := _code(part))), None)


def _code(part: str) -> str | None:
    """A part of a name as a BCP 47 language code; None: it is not a listed code."""
    if not (match := _CODE.fullmatch(part)):
        return None
    language, script, region = match.groups()
    if language.lower() not in _KNOWN_CODES or not (language.islower() or language.isupper()):
        return None
    if region and region.isalpha() and not (region.isupper() or region in _LOWERCASE_REGIONS):
        return None
    return "-".join(filter(None, (language.lower(), script, region and region.upper())))
