"""What each task makes of a batch; that they are learnt at all is shown by the command line's tests."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from heed import ConfigError, DataConfig, DataError, ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.model.attention import fused_attention
from heed.text.corpus import Corpus
from heed.text.labels import FIRST_LABEL_ID
from heed.text.tokenizer import EOS, MASK, PAD
from heed.training.batches import Ragged
from heed.training.bucketing import Shape
from heed.training.tasks import task_named
from heed.training.tasks.masked import MaskedLMTask

WORDS = 40
ROWS = [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15, 16]]


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def config_of(task: str, **shape: object) -> RunConfig:
    small = {"vocab_size": WORDS, "d_model": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 16}
    model = ModelConfig.model_validate(
        {**small, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0} | shape
    )
    data = DataConfig.model_validate({"task": task, "labels": ("x", "y", "z") if task == "classify" else ()})
    return RunConfig(model=model, data=data, training=TrainingConfig(label_smoothing=0.0))


def model_of(config: RunConfig) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config.model).eval()


def test_a_language_models_loss_is_that_of_each_text_alone() -> None:
    config, task = config_of("language-model", kind="decoder"), task_named("language-model")
    model = model_of(config)
    batch = task.collate(Ragged.of([[]] * 3), Ragged.of(ROWS), random())
    alone = [
        functional.cross_entropy(model(tgt_in=torch.tensor([[1, *row]]))[0], torch.tensor([*row, EOS]), reduction="sum")
        for row in ROWS
    ]
    torch.testing.assert_close(task.loss(model, batch, config, fused_attention), torch.stack(alone).sum())
    assert batch.tokens == sum(len(row) + 1 for row in ROWS)


def test_a_classifiers_loss_is_that_of_each_text_alone() -> None:
    config, task = config_of("classify", kind="encoder", labels=3), task_named("classify")
    model = model_of(config)
    batch = task.collate(
        Ragged.of(ROWS), Ragged.of([[FIRST_LABEL_ID], [FIRST_LABEL_ID + 2], [FIRST_LABEL_ID + 1]]), random()
    )
    alone = [
        functional.cross_entropy(model(torch.tensor([[*row, EOS]])), torch.tensor([label]), reduction="sum")
        for row, label in zip(ROWS, (0, 2, 1), strict=True)
    ]
    torch.testing.assert_close(task.loss(model, batch, config, fused_attention), torch.stack(alone).sum())
    assert batch.tokens == 3


def test_what_is_asked_for_was_there_and_the_rest_is_left_alone() -> None:
    rows = [random(number).integers(5, WORDS, 50).tolist() for number in range(200)]
    batch = MaskedLMTask(0.15).collate(Ragged.of([[]] * 200), Ragged.of(rows), random())
    text = torch.tensor([token for row in rows for token in (*row, EOS)])
    asked = batch.tgt_out != PAD
    assert torch.equal(batch.tgt_out[asked], text[asked])
    assert torch.equal(batch.src[~asked], text[~asked])
    assert not asked[text == EOS].any()
    assert batch.tokens == int(asked.sum()) == pytest.approx(0.15 * 10_000, rel=0.1)
    hidden, left = (batch.src[asked] == MASK).float().mean(), (batch.src[asked] == text[asked]).float().mean()
    assert hidden == pytest.approx(0.8, abs=0.04)
    assert left == pytest.approx(0.1 + 0.1 / 35, abs=0.03)  # what is put in its place may be the same by chance


def test_of_every_text_something_is_asked_and_other_epochs_ask_for_other_words() -> None:
    rows = [[5]] * 30 + [[6, 7, 8]] * 30
    batches = [MaskedLMTask(0.01).collate(Ragged.of([[]] * 60), Ragged.of(rows), random(seed)) for seed in (1, 1, 2)]
    for batch in batches:
        for start, end in zip(batch.src_layout.cu_seqlens[:-1], batch.src_layout.cu_seqlens[1:], strict=True):
            assert (batch.tgt_out[start:end] != PAD).any()
    assert torch.equal(batches[0].src, batches[1].src)
    assert not torch.equal(batches[0].src, batches[2].src)


@pytest.mark.parametrize("task", ["language-model", "masked", "classify"])
def test_a_batch_that_is_filled_up_or_cut_in_two_has_the_same_loss(task: str) -> None:
    kinds = {"language-model": {"kind": "decoder"}, "masked": {"kind": "encoder"}}
    config, learnt = config_of(task, **kinds.get(task, {"kind": "encoder", "labels": 3})), task_named(task)
    model = model_of(config)
    sides = (
        (ROWS, [[FIRST_LABEL_ID], [FIRST_LABEL_ID + 2], [FIRST_LABEL_ID + 1]])
        if task == "classify"
        else ([[]] * 3, ROWS)
    )
    source, target = (Ragged.of(side) for side in sides)
    batch = learnt.collate(source, target, random())
    shape = Shape.for_batches_like([batch], 20)
    filled = shape.batch(shape.fill(batch), batch.tokens)
    whole, full = (learnt.loss(model, one, config, fused_attention) for one in (batch, filled))
    torch.testing.assert_close(full, whole)
    halves = batch.halves()
    assert sum(half.tokens for half in halves) == batch.tokens
    torch.testing.assert_close(sum(learnt.loss(model, half, config, fused_attention) for half in halves), whole)


@pytest.mark.parametrize(
    ("task", "corpus", "message"),
    [
        (
            "language-model",
            Corpus("a", "b"),
            "task = 'language-model' learns from --text, a text a line, found a \\+ b",
        ),
        ("masked", Corpus(pairs="a.tsv"), "task = 'masked' learns from --text"),
        ("classify", Corpus(text="a"), "task = 'classify' learns from --pairs, a label and a text a row, found a"),
        ("translate", Corpus(text="a"), "task = 'translate' learns from --source and --target, or --pairs: found a"),
    ],
)
def test_a_corpus_that_a_task_cannot_learn_from_is_refused(task: str, corpus: Corpus, message: str) -> None:
    with pytest.raises(DataError, match=message):
        task_named(task).corpus(corpus, DataConfig.model_validate({"task": task}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "language-model", "separate_vocabularies": True}, "separate_vocabularies needs task = 'translate'"),
        ({"task": "masked", "labels": ("a", "b")}, "labels are for task = 'classify', found 'masked'"),
        ({"task": "classify", "documents": True}, "documents = True is of no use to task = 'classify'"),
        ({"task": "classify", "bpe_dropout": 0.1}, "bpe_dropout = 0.1 is of no use to task = 'classify'"),
        ({"task": "translate", "documents": True}, "documents = True is of no use to task = 'translate'"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused(settings: dict[str, object], message: str) -> None:
    data = DataConfig.model_validate(settings)
    with pytest.raises(ConfigError, match=message):
        task_named(data.task).complete_data_config(data, [])


def test_labels_come_from_the_text_unless_they_are_given(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("b\tone\na\ttwo\tthree\n")
    task = task_named("classify")
    corpus = task.corpus(Corpus(pairs=str(file)), DataConfig(task="classify"))
    assert task.complete_data_config(DataConfig(task="classify"), [corpus]).labels == ("a", "b")
    given = DataConfig(task="classify", labels=("b", "a", "c"))
    assert task.complete_data_config(given, [corpus]).labels == ("b", "a", "c")
    assert task.model_settings(given) == {"labels": 3}
