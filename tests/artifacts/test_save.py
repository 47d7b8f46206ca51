import inspect
from pathlib import Path

import pytest
import torch

import heed
from heed import ModelConfig, SearchConfig, Tokenizer, Transformer
from heed.artifacts.folder import read_model_folder
from heed.artifacts.manifest import verify
from heed.errors import FolderError, InputError

TEXTS = ["A dog runs.", "Two men sit on a bench."] * 3
SMALL = {"d_model": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 8}
BPE = Tokenizer.train(TEXTS, "bpe", 270)


def model_of(**settings: object) -> Transformer:
    return Transformer(ModelConfig.model_validate({**SMALL, "vocab_size": BPE.vocab_size, **settings}))


def test_a_saved_model_translates_like_the_model_in_memory(tmp_path: Path) -> None:
    model, search = model_of(), SearchConfig(beam=2, max_length=6)
    heed.save(model, BPE, tmp_path / "mine", source_language="en", target_language="de", search=search, max_tokens=30)
    translator = heed.load(tmp_path / "mine")
    assert translator.search == search
    expected = heed.Translator([model.eval()], (BPE, BPE), search, 30)
    assert translator(["A dog.", "Two"]) == expected(["A dog.", "Two"])
    folder = read_model_folder(tmp_path / "mine")
    assert (folder.run.data.source_language, folder.run.data.target_language) == ("en", "de")
    assert "en to de" in (tmp_path / "mine" / "README.md").read_text()


def test_separate_tokenizers_and_decoder_only_and_encoder_only_models_can_be_saved(tmp_path: Path) -> None:
    source = Tokenizer.train(TEXTS, "bpe", 265)
    pair = heed.save(model_of(source_vocab_size=source.vocab_size), (source, BPE), tmp_path / "pair", card="# Mine\n")
    assert read_model_folder(pair).run.data.separate_vocabularies
    assert (pair / "README.md").read_text() == "# Mine\n"
    letters = Tokenizer.train(TEXTS, "characters", 300)
    two_types = heed.save(model_of(source_vocab_size=letters.vocab_size), (letters, BPE), tmp_path / "types")
    assert read_model_folder(two_types).run.data.tokenizer_types == ("characters", "bpe")
    assert [tokenizer.kind for tokenizer in heed.load(two_types).tokenizers] == ["characters", "bpe"]
    language_model = heed.save(model_of(kind="decoder"), BPE, tmp_path / "language_model")
    assert heed.Generator.open(language_model).generate(["A"])
    classifier = heed.save(model_of(kind="encoder", labels=2), BPE, tmp_path / "classifier", labels=["up", "down"])
    assert heed.Classifier.open(classifier).classify(["A dog"])[0].label in ("up", "down")


def test_saving_again_replaces_the_folder_and_stores_float32_for_a_bfloat16_model(tmp_path: Path) -> None:
    heed.save(model_of(), BPE, tmp_path / "mine")
    second = model_of().to(torch.bfloat16)
    heed.save(second, BPE, tmp_path / "mine")
    verify(tmp_path / "mine")
    weights = read_model_folder(tmp_path / "mine").model().state_dict()
    for name, weight in second.state_dict().items():
        assert weights[name].dtype == torch.float32
        assert torch.equal(weights[name], weight.float())


def test_save_refuses_a_model_that_its_tokenizer_labels_or_folder_do_not_fit(tmp_path: Path) -> None:
    out, unchecked = tmp_path / "mine", inspect.unwrap(heed.save)  # without the tests' runtime type checks
    with pytest.raises(FolderError, match=r"a vocabulary of 269 tokens, but its tokenizer has 270"):
        heed.save(model_of(vocab_size=269), BPE, out)
    with pytest.raises(FolderError, match=r"a source vocabulary of 99 tokens, but its source tokenizer has 270"):
        heed.save(model_of(source_vocab_size=99), BPE, out)
    with pytest.raises(FolderError, match=r"pad_id, bos_id and eos_id are \(5, 1, 2\)"):
        heed.save(model_of(pad_id=5), BPE, out)
    with pytest.raises(FolderError, match=r"the model has 2 classes, but data.labels has 1 names"):
        heed.save(model_of(kind="encoder", labels=2), BPE, out, labels=["up"])
    with pytest.raises(InputError, match=r"save takes a heed.Transformer, found Linear"):
        unchecked(torch.nn.Linear(2, 2), BPE, out)
    with pytest.raises(InputError, match=r"save takes a heed.Tokenizer or a pair of them, found str"):
        unchecked(model_of(), "tokenizer.json", out)
    other = Tokenizer.train(TEXTS, "unigram", 270)
    with pytest.raises(
        InputError, match="tokenizers of two types, 'unigram' and 'bpe', need a model with a source_vocab"
    ):
        heed.save(model_of(), (other, BPE), out)
    poisoned = model_of()
    with torch.no_grad():
        poisoned.vocabulary.embedding.weight[3] = torch.nan
    with pytest.raises(InputError, match=r"weight vocabulary.embedding.weight is not finite"):
        heed.save(poisoned, BPE, out)
    assert not out.exists()
    out.mkdir()
    (out / "thesis.tex").touch()
    with pytest.raises(FolderError, match="mine already exists and is not a model folder"):
        heed.save(model_of(), BPE, out)
