"""No sentence of a document is lost in translation."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from heed import SearchConfig, Translator
from heed.backends.protocol import Hypothesis
from heed.decoding.engine import Engine
from heed.text.sentence_split import SourceLengths, Splitter
from heed.text.sentences import sentence_starts
from heed.text.tokenizer import Tokenizer
from tests.reference.backends import UnusedBackend

SENTENCES = {
    "en": ["The cat sleeps.", "Is Dr. Smith here?", "No!", "He paid 3.50 dollars.", '"Come," she said.', "It rains…"],
    "de": ["Am 3. Mai kam er.", "Wirklich?", "„Ja“, sagte Fr. Huber.", "Es kostet z. B. 5 Euro!", "Gut."],
    "ru": ["Это дом.", "А. С. Пушкин жил здесь?", "Да!"],
    "zh": ["你好。", "今天天气很好！", "真的吗？"],
    "hi": ["यह घर है।", "वह बड़ा है।"],
    "ar": ["ما اسمك؟", "هذا بيت.", "حسنا!"],
}
TOKENIZER = Tokenizer.train([text for texts in SENTENCES.values() for text in texts], "characters", 400)


class Forgetful(Engine):
    """Like a model trained on single sentences: copies the first sentence of its input and drops the others."""

    def search(
        self, sources: Sequence[Sequence[int]], _config: SearchConfig, _numbers: Sequence[int], *_: Any
    ) -> list[list[Hypothesis]]:
        texts = TOKENIZER.decode([list(ids) for ids in sources])
        first = [text[: (sentence_starts(text, self.language) or [len(text)])[0]].rstrip() for text in texts]
        return [[Hypothesis.of(ids, -1.0, 0.6)] for ids in TOKENIZER.encode(first)]

    def __init__(self, language: str) -> None:
        super().__init__(UnusedBackend())
        self.language = language


def paragraphs(language: str, count: int) -> list[str]:
    """Paragraphs of random sentences, some of several lines, with irregular spaces."""
    rng, space = random.Random(f"{language} 1"), "" if language == "zh" else " "
    texts = []
    for _ in range(count):
        lines = [
            rng.choice((space, space, space * 2)).join(rng.choices(SENTENCES[language], k=rng.randint(1, 9)))
            for _ in range(rng.choice((1, 1, 1, 3)))
        ]
        texts.append(rng.choice(("\n", "\n\n", "\r\n")).join(lines))
    return texts


def counted(texts: Sequence[str], language: str) -> int:
    return sum(1 + len(sentence_starts(line, language)) for text in texts for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("language", SENTENCES)
def test_500_paragraphs_are_translated_without_loss(language: str) -> None:
    trained = SourceLengths(sentences=1, common=20, longest=30)
    splitter = Splitter(256, trained, language)
    translator = Translator([], (TOKENIZER, TOKENIZER), engine=Forgetful(language), splitter=splitter)
    texts = paragraphs(language, 500)
    translations = [translation.text for translation in translator.translate(texts, align=False)]
    assert translations == texts
    at_once = [translation.text for translation in translator.translate(texts, align=False, split="line")]
    assert counted(texts, language) > 2 * counted(at_once, language)  # without splitting, sentences are lost
