"""Folders of untrained models whose output depends on the input."""

from pathlib import Path
from typing import Literal

import torch

from heed import ModelConfig, RunConfig, SearchConfig, Transformer
from heed.artifacts.folder import model_files
from heed.artifacts.writing import write_folder
from heed.config import DataConfig
from heed.search_config import TranslateConfig
from heed.text.language_identification import trigram_profile
from heed.text.lexicon import Lexicon
from heed.text.tokenizer import Tokenizer

ENGLISH = ["A dog runs.", "The cat sees a bird and the old dog.", "This is the house that they want to see with him."]
GERMAN = ["Ein Hund rennt.", "Die Katze sieht einen Vogel.", "Das ist das Haus, das sie mit ihm sehen wollen."]
TOKENIZER = Tokenizer.train([*ENGLISH, *GERMAN, "0123456789"] * 3, "characters", 330)


Task = Literal["language-model", "masked", "classify"]
LABELS = ("animal", "house", "<b>other</b>")


def make_lm_or_classifier(
    folder: Path,
    task: Task,
    *,
    labels: tuple[str, ...] = LABELS,
    seed: int = 0,
    max_tokens: int = 60,
    broken: bool = False,
    ends: bool = True,
) -> Path:
    """A language model, masked LM or classifier with weights as large as those of `make_folder`.

    broken: the weights overflow, and the output is nan. ends: if False, it never predicts EOS.
    """
    torch.manual_seed(seed)
    labels = labels if task == "classify" else ()
    config = ModelConfig(
        kind="decoder" if task == "language-model" else "encoder",
        vocab_size=TOKENIZER.vocab_size,
        d_model=32,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        d_ff=32,
        tie_embeddings=False,
        labels=len(labels) or None,
    )
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e38 if broken else 4)
        if task == "language-model":
            model.get_parameter("vocabulary.output.bias").add_(letters_only_bias(ends=ends))
    run = RunConfig(
        model=config,
        data=DataConfig(task=task, labels=labels, tokenizer="characters", max_tokens=max_tokens),
        search=SearchConfig(no_repeat_ngram=1 if ends else None),
    )
    write_folder(folder, model_files(model.state_dict(), run, {"texts": {}}, (TOKENIZER, TOKENIZER), "# A card\n"))
    return folder


def letters_only_bias(*, ends: bool) -> torch.Tensor:
    """An output bias that allows only lower-case letters, digits, a few signs and, with ends, EOS."""
    allowed = [2] * ends + [*(ids[0] for ids in TOKENIZER.encode(list("abcdefghijklmnopqrstuvwxyz 0123456789<>&")))]
    return torch.full((TOKENIZER.vocab_size,), -1e4).index_fill(0, torch.tensor(allowed), 0.0)


def make_folder(
    folder: Path,
    source: str = "en",
    target: str = "de",
    *,
    seed: int = 0,
    max_length: int | None = 12,
    broken: bool = False,
    ends: bool = True,
    correct_spelling: bool = False,
) -> Path:
    """A translation model. Its weights are so large that rounding errors do not change the most probable token.

    broken: the weights overflow, and the output is nan. ends: if False, it never predicts EOS. correct_spelling: by the
    words of `ENGLISH`.
    """
    torch.manual_seed(seed)
    size = TOKENIZER.vocab_size
    config = ModelConfig(
        vocab_size=size, d_model=32, heads=2, encoder_layers=1, decoder_layers=1, d_ff=32, tie_embeddings=False
    )
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e38 if broken else 4)
        model.get_parameter("vocabulary.output.bias").add_(letters_only_bias(ends=ends))
    run = RunConfig(
        model=config,
        data=DataConfig(tokenizer="characters", source_language=source, target_language=target, max_tokens=60),
        search=SearchConfig(beam=2, max_length=max_length, no_repeat_ngram=1 if ends else None),
        translate=TranslateConfig(correct_spelling=correct_spelling),
    )
    texts = {"en": ENGLISH, "de": GERMAN}
    trained = {
        "texts": {},
        "trigrams": {
            side: trigram_profile(texts[code])
            for side, code in (("source", source), ("target", target))
            if code in texts
        },
    }
    lexicon = Lexicon.from_texts(ENGLISH * 20) if correct_spelling else None
    write_folder(folder, model_files(model.state_dict(), run, trained, (TOKENIZER, TOKENIZER), "# A card\n", lexicon))
    return folder
