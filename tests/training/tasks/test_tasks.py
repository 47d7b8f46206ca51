"""The batches and losses of each task; that models learn them is tested through the command line."""

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
from heed.training.bucketing import BucketShape
from heed.training.tasks import task_named
from heed.training.tasks.masked import MaskedLMTask
from tests.training.examples import VOCABULARY

ROWS = [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15, 16]]


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def config_of(task: str, **model_settings: object) -> RunConfig:
    small = {"vocab_size": VOCABULARY, "d_model": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 16}
    model = ModelConfig.model_validate(
        {**small, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0} | model_settings
    )
    data = DataConfig.model_validate({"task": task, "labels": ("x", "y", "z") if task == "classify" else ()})
    return RunConfig(model=model, data=data, training=TrainingConfig(label_smoothing=0.0))


def model_of(config: RunConfig) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config.model).eval()


def test_a_language_models_packed_loss_is_the_sum_over_single_texts() -> None:
    config, task = config_of("language-model", kind="decoder"), task_named("language-model")
    model = model_of(config)
    batch = task.collate(Ragged.of([[]] * 3), Ragged.of(ROWS), random())
    single = [
        functional.cross_entropy(model(tgt_in=torch.tensor([[1, *row]]))[0], torch.tensor([*row, EOS]), reduction="sum")
        for row in ROWS
    ]
    torch.testing.assert_close(task.loss(model, batch, config, fused_attention), torch.stack(single).sum())
    assert batch.tokens == sum(len(row) + 1 for row in ROWS)


def test_a_classifiers_packed_loss_is_the_sum_over_single_texts() -> None:
    config, task = config_of("classify", kind="encoder", labels=3), task_named("classify")
    model = model_of(config)
    batch = task.collate(
        Ragged.of(ROWS), Ragged.of([[FIRST_LABEL_ID], [FIRST_LABEL_ID + 2], [FIRST_LABEL_ID + 1]]), random()
    )
    single = [
        functional.cross_entropy(model(torch.tensor([[*row, EOS]])), torch.tensor([label]), reduction="sum")
        for row, label in zip(ROWS, (0, 2, 1), strict=True)
    ]
    torch.testing.assert_close(task.loss(model, batch, config, fused_attention), torch.stack(single).sum())
    assert batch.tokens == 3


def test_masking_selects_15_percent_of_the_tokens_and_leaves_the_others_alone() -> None:
    rows = [random(number).integers(5, VOCABULARY, 50).tolist() for number in range(200)]
    batch = MaskedLMTask(0.15).collate(Ragged.of([[]] * 200), Ragged.of(rows), random())
    text = torch.tensor([token for row in rows for token in (*row, EOS)])
    selected = batch.tgt_out != PAD
    assert torch.equal(batch.tgt_out[selected], text[selected])
    assert torch.equal(batch.src[~selected], text[~selected])
    assert not selected[text == EOS].any()
    assert batch.tokens == int(selected.sum()) == pytest.approx(0.15 * 10_000, rel=0.1)
    inputs, originals = batch.src[selected], text[selected]
    assert (inputs == MASK).float().mean() == pytest.approx(0.8, abs=0.04)
    # A tenth is kept, and a tenth replaced by a random token, which may be the original by chance.
    assert (inputs == originals).float().mean() == pytest.approx(0.1 + 0.1 / 35, abs=0.03)


def test_masking_selects_a_token_of_every_text_and_others_in_other_epochs() -> None:
    rows = [[5]] * 30 + [[6, 7, 8]] * 30
    batches = [MaskedLMTask(0.01).collate(Ragged.of([[]] * 60), Ragged.of(rows), random(seed)) for seed in (1, 1, 2)]
    for batch in batches:
        for start, end in zip(batch.src_layout.cu_seqlens[:-1], batch.src_layout.cu_seqlens[1:], strict=True):
            assert (batch.tgt_out[start:end] != PAD).any()
    assert torch.equal(batches[0].src, batches[1].src)
    assert not torch.equal(batches[0].src, batches[2].src)


@pytest.mark.parametrize("name", ["language-model", "masked", "classify"])
def test_padding_to_a_bucket_or_halving_a_batch_keeps_its_loss(name: str) -> None:
    kinds = {"language-model": {"kind": "decoder"}, "masked": {"kind": "encoder"}}
    config = config_of(name, **kinds.get(name, {"kind": "encoder", "labels": 3}))
    model, task = model_of(config), task_named(name)
    sides = (
        (ROWS, [[FIRST_LABEL_ID], [FIRST_LABEL_ID + 2], [FIRST_LABEL_ID + 1]])
        if name == "classify"
        else ([[]] * 3, ROWS)
    )
    source, target = (Ragged.of(side) for side in sides)
    batch = task.collate(source, target, random())
    shape = BucketShape.for_batches_like([batch], 20)
    padded = shape.batch(shape.pad(batch), batch.tokens)
    loss = task.loss(model, batch, config, fused_attention)
    torch.testing.assert_close(task.loss(model, padded, config, fused_attention), loss)
    halves = batch.halves()
    assert sum(half.tokens for half in halves) == batch.tokens
    torch.testing.assert_close(sum(task.loss(model, half, config, fused_attention) for half in halves), loss)


@pytest.mark.parametrize(
    ("task", "corpus", "message"),
    [
        (
            "language-model",
            Corpus("a", "b"),
            "task = 'language-model' trains on text files, one text per line, found a \\+ b",
        ),
        ("masked", Corpus(pairs="a.tsv"), "task = 'masked' trains on text files"),
        ("classify", Corpus(text="a"), "task = 'classify' trains on pairs files, a label and a text per row, found a"),
        ("translate", Corpus(text="a"), "task = 'translate' trains on source and target files, or pairs, found a"),
    ],
)
def test_a_corpus_that_a_task_cannot_train_on_is_refused(task: str, corpus: Corpus, message: str) -> None:
    with pytest.raises(DataError, match=message):
        task_named(task).corpus(corpus, DataConfig.model_validate({"task": task}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "language-model", "separate_vocabularies": True}, "separate_vocabularies needs task = 'translate'"),
        ({"task": "masked", "labels": ("a", "b")}, "labels are for task = 'classify', found 'masked'"),
        ({"task": "classify", "documents": True}, "documents = True does not apply to task = 'classify'"),
        ({"task": "classify", "bpe_dropout": 0.1}, "bpe_dropout = 0.1 does not apply to task = 'classify'"),
        ({"task": "translate", "documents": True}, "documents = True does not apply to task = 'translate'"),
    ],
)
def test_a_data_setting_that_does_not_apply_to_the_task_is_refused(settings: dict[str, object], message: str) -> None:
    data = DataConfig.model_validate(settings)
    with pytest.raises(ConfigError, match=message):
        task_named(data.task).complete_data_config(data, [])


def test_labels_come_from_the_text_unless_they_are_set(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("b\tone\na\ttwo\tthree\n")
    task = task_named("classify")
    corpus = task.corpus(Corpus(pairs=str(file)), DataConfig(task="classify"))
    assert task.complete_data_config(DataConfig(task="classify"), [corpus]).labels == ("a", "b")
    with_labels = DataConfig(task="classify", labels=("b", "a", "c"))
    assert task.complete_data_config(with_labels, [corpus]).labels == ("b", "a", "c")
    assert task.model_settings(with_labels) == {"labels": 3}
