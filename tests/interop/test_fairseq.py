"""Imported fairseq checkpoints, compared with fairseq's Transformer in plain torch and with fairseq's own outputs."""

import argparse
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import heed
from heed.artifacts.folder import read_model_folder
from heed.errors import FolderError
from heed.interop.fairseq import import_fairseq
from heed.interop.spm import SpmModel, to_spm, tokenizer_from_spm
from heed.microworld.corpus import corpus
from heed.search_config import SearchConfig

TEXTS = corpus("test", 60, seed=5)
SOURCES = [pair.source.replace(".", " .") for pair in TEXTS]
TARGETS = [pair.target.replace(".", " .") for pair in TEXTS]
HEADS, WIDTH, D_FF = 2, 16, 24
PAD, EOS, UNK = 1, 2, 3
FAIRSEQ = Path(__file__).parent / "fairseq_run"


class FairseqTransformer(nn.Module):
    """fairseq's `transformer` in plain torch: its parameters by their names, and its forward pass for one sentence."""

    def __init__(self, sizes: tuple[int, int], settings: argparse.Namespace) -> None:
        super().__init__()
        self.settings = settings
        layers: dict[str, Any] = {}
        for side, size in zip(("encoder", "decoder"), sizes, strict=True):
            stack: Any = nn.Module()
            stack.embed_tokens = nn.Embedding(size, WIDTH)
            if settings.encoder_learned_pos:
                stack.embed_positions = nn.Embedding(64 + PAD + 1, WIDTH)
            stack.layers = nn.ModuleList(self._layer(side) for _ in range(2))
            if settings.encoder_normalize_before:
                stack.layer_norm = nn.LayerNorm(WIDTH)
            layers[side] = stack
        self.encoder: Any = layers["encoder"]
        self.decoder: Any = layers["decoder"]
        self.decoder.output_projection = nn.Linear(WIDTH, sizes[1], bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4)
        if settings.share_all_embeddings:
            self.encoder.embed_tokens.weight = self.decoder.embed_tokens.weight
        if settings.share_all_embeddings or settings.share_decoder_input_output_embed:
            self.decoder.output_projection.weight = self.decoder.embed_tokens.weight

    @staticmethod
    def _layer(side: str) -> nn.Module:
        layer: Any = nn.Module()
        for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
            module = nn.Module()
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                setattr(module, part, nn.Linear(WIDTH, WIDTH))
            setattr(layer, attention, module)
            setattr(layer, f"{attention}_layer_norm", nn.LayerNorm(WIDTH))
        layer.fc1, layer.fc2 = nn.Linear(WIDTH, D_FF), nn.Linear(D_FF, WIDTH)
        layer.final_layer_norm = nn.LayerNorm(WIDTH)
        return layer

    def forward(self, source: list[int], target: list[int]) -> Tensor:
        memory = self._stack(self.encoder, source, None)
        return self.decoder.output_projection(self._stack(self.decoder, target, memory))

    def _stack(self, stack: Any, ids: list[int], memory: Tensor | None) -> Tensor:
        scale = 1.0 if self.settings.no_scale_embedding else math.sqrt(WIDTH)
        positions = torch.arange(len(ids)) + PAD + 1
        learned = self.settings.encoder_learned_pos
        x = stack.embed_tokens(torch.tensor(ids)) * scale
        x = x + (
            stack.embed_positions(positions)
            if learned
            else torch.stack([self._sinusoid(int(position)) for position in positions])
        )
        for layer in stack.layers:
            x = self._around(
                layer.self_attn_layer_norm, x, lambda y, at=layer: self._attend(at.self_attn, y, y, memory)
            )
            if memory is not None:
                cross_attention = lambda y, at=layer: self._attend(at.encoder_attn, y, memory, None)  # noqa: E731
                x = self._around(layer.encoder_attn_layer_norm, x, cross_attention)
            x = self._around(layer.final_layer_norm, x, lambda y, at=layer: at.fc2(self._activate(at.fc1(y))))
        return stack.layer_norm(x) if self.settings.encoder_normalize_before else x

    def _activate(self, x: Tensor) -> Tensor:
        return functional.relu(x) if self.settings.activation_fn == "relu" else functional.gelu(x)

    def _around(self, norm: nn.Module, x: Tensor, sublayer: Any) -> Tensor:
        return x + sublayer(norm(x)) if self.settings.encoder_normalize_before else norm(x + sublayer(x))

    @staticmethod
    def _sinusoid(position: int) -> Tensor:
        half = WIDTH // 2
        angles = [position * math.exp(-i * math.log(10000) / (half - 1)) for i in range(half)]
        return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])

    @staticmethod
    def _attend(attention: Any, x: Tensor, context: Tensor, causal: Tensor | None) -> Tensor:
        q, k, v = (
            projection(inputs).view(len(inputs), HEADS, -1).transpose(0, 1)
            for projection, inputs in ((attention.q_proj, x), (attention.k_proj, context), (attention.v_proj, context))
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(WIDTH / HEADS)
        if causal is not None:  # in the decoder
            scores = scores.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), -math.inf)
        return attention.out_proj((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


def settings_of(**changed: Any) -> argparse.Namespace:
    per_side = {"attention_heads": HEADS, "embed_dim": WIDTH, "ffn_embed_dim": D_FF, "layers": 2}
    settings: dict[str, Any] = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in per_side.items()
    }
    settings |= {
        f"{side}_{name}": False for side in ("encoder", "decoder") for name in ("normalize_before", "learned_pos")
    }
    settings |= {"arch": "transformer", "source_lang": "en", "target_lang": "fr", "max_source_positions": 64}
    settings |= {"max_target_positions": 64, "activation_fn": "relu", "no_scale_embedding": False, "dropout": 0.2}
    settings |= {"share_all_embeddings": False, "share_decoder_input_output_embed": False}
    return argparse.Namespace(**settings | changed)


def dictionaries(folder: Path, *, joined: bool) -> dict[str, list[str]]:
    """The dictionaries of both sides, written as fairseq does."""
    words = [sorted({word for text in texts for word in text.split()}) for texts in (SOURCES, TARGETS)]
    if joined:
        words = [sorted({*words[0], *words[1]})] * 2
    sides = {}
    for language, side_words in zip(("en", "fr"), words, strict=True):
        dictionary = side_words[5:]  # the first words are unknown
        (folder / f"dict.{language}.txt").write_text("".join(f"{word} 7\n" for word in dictionary), encoding="utf-8")
        sides[language] = ["<s>", "<pad>", "</s>", "<unk>", *dictionary]
    return sides


def ids(names: list[str], text: str) -> list[int]:
    known = {name: number for number, name in enumerate(names)}
    return [known.get(word, UNK) for word in text.split()] + [EOS]


def write_checkpoint(folder: Path, **changed: Any) -> tuple[FairseqTransformer, dict[str, list[str]]]:
    settings = settings_of(**changed)
    words = dictionaries(folder, joined=settings.share_all_embeddings)
    fairseq_model = FairseqTransformer((len(words["en"]), len(words["fr"])), settings).eval()
    torch.save(
        {"args": settings, "model": fairseq_model.state_dict(), "extra_state": {"epoch": 3}}, folder / "checkpoint.pt"
    )
    return fairseq_model, words


VARIANTS: list[dict[str, Any]] = [
    {"share_all_embeddings": True},
    {"share_decoder_input_output_embed": True, "activation_fn": "gelu"},
    {"encoder_normalize_before": True, "decoder_normalize_before": True},
    {"encoder_normalize_before": True, "decoder_normalize_before": True, "no_scale_embedding": True}
    | {"share_all_embeddings": True},
    {"encoder_learned_pos": True, "decoder_learned_pos": True, "no_scale_embedding": True},
    {"share_all_embeddings": True, "no_scale_embedding": True},
]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids="-".join)


def assert_same_logits(folder: Path, fairseq_model: FairseqTransformer, words: dict[str, list[str]]) -> None:
    """Compare the logits of a few sentences."""
    translator = heed.load(folder)
    names = words["fr"]
    others = [number for number in range(len(names)) if number not in (PAD, EOS, UNK)]
    their_order = torch.tensor([PAD, EOS, EOS, *others, UNK])
    for source, target in zip(SOURCES[:8], TARGETS[:8], strict=True):
        src = [[*row, 2] for row in translator.tokenizers[0].encode([source])]
        tgt_in = [[1, *row] for row in translator.tokenizers[1].encode([target])]
        with torch.no_grad():
            logits = translator.model(torch.tensor(src), torch.tensor(tgt_in))[0]
            expected = fairseq_model(ids(words["en"], source), [EOS, *ids(names, target)[:-1]])[:, their_order]
        assert expected.std() > 0.5
        not_bos = torch.arange(len(their_order)) != 1  # fairseq starts decoding with EOS and has no counterpart of ⟨s⟩
        torch.testing.assert_close(logits[:, not_bos], expected[:, not_bos], rtol=1e-4, atol=1e-4)
        assert logits.softmax(-1)[:, 1].max() == 0


@every_variant
def test_logits_equal_fairseqs(tmp_path: Path, variant: dict[str, Any]) -> None:
    fairseq_model, words = write_checkpoint(tmp_path, **variant)
    import_fairseq(tmp_path, tmp_path / "ours", "checkpoint.pt")
    assert_same_logits(tmp_path / "ours", fairseq_model, words)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_model_trained_by_fairseq_translates_as_in_fairseq(tmp_path: Path, beam: int) -> None:
    """The files in fairseq_run were made by fairseq 0.12.2 on the microworld corpus, without heed's code:

    preprocess -s en -t fr --thresholdsrc 60 --thresholdtgt 60 …
    train --arch transformer --share-decoder-input-output-embed --encoder-layers 2 --encoder-embed-dim 16 …
    generate --lenpen 0 --max-len-b 60 --beam 1, and --beam 4: the columns of generated.tsv
    """
    import_fairseq(FAIRSEQ, tmp_path / "ours", "checkpoint_best.pt", ("en", "fr"))
    _, *lines = (FAIRSEQ / "generated.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    search = SearchConfig(beam=beam, length_penalty=0.0, max_length=60)
    translations = heed.load(tmp_path / "ours").translate([row[0] for row in rows], search=search, align=False)
    column = {1: 1, 4: 3}[beam]
    texts = [
        " ".join(token.strip() for token in translation.tokens).replace("⟨unk⟩", "<unk>")
        for translation in translations
    ]
    assert texts == [row[column] for row in rows]
    assert len(set(texts)) > 40
    scores = [float(row[column + 1]) * math.log(2) for row in rows]
    assert [translation.log_prob for translation in translations] == pytest.approx(scores, abs=1e-4)


def test_checkpoints_of_other_fairseq_versions_are_imported(tmp_path: Path) -> None:
    fairseq_model, words = write_checkpoint(tmp_path, share_decoder_input_output_embed=True)
    old_state: dict[str, Tensor] = {}
    norms = {
        "encoder": ["self_attn_layer_norm", "final_layer_norm"],
        "decoder": ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"],
    }
    state = fairseq_model.state_dict()
    for name, weight in state.items():
        side, before, last = name.partition(".")[0], *name.rsplit(".", 1)
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            old_state[f"{before.removesuffix('q_proj')}in_proj_{last}"] = torch.cat(parts)
        elif "_layer_norm." in name:
            layer, norm = before.rsplit(".", 1)
            old_state[f"{layer}.layer_norms.{norms[side].index(norm)}.{last}"] = weight
        elif not any(part in name for part in ("k_proj", "v_proj", "output_projection")):
            old_state[name] = weight.double()
    settings = vars(settings_of(share_decoder_input_output_embed=True))
    task = {"source_lang": settings.pop("source_lang"), "target_lang": settings.pop("target_lang")}
    cfg = {"model": argparse.Namespace(**settings), "task": task}
    torch.save(
        {"args": None, "cfg": cfg, "model": old_state | {"encoder.version": torch.tensor([3.0])}}, tmp_path / "old.pt"
    )
    import_fairseq(tmp_path, tmp_path / "ours", "old.pt")
    assert_same_logits(tmp_path / "ours", fairseq_model, words)


def test_the_imported_tokenizer_splits_at_white_space_and_joins_with_spaces(tmp_path: Path) -> None:
    _, words = write_checkpoint(tmp_path, share_all_embeddings=True)
    import_fairseq(tmp_path, tmp_path / "ours", "checkpoint.pt")
    folder = read_model_folder(tmp_path / "ours")
    source, target = folder.tokenizers
    assert source is target
    assert (folder.run.data.tokenizer, folder.run.model.dropout) == ("spaced", 0.2)
    word = words["en"][4]
    (encoded,) = source.encode([f"  {word}\u00a0nowhere\t{word} <s> ⟨pad⟩ "])
    assert [source.tokens([token])[0].strip() for token in encoded] == [word, "⟨unk⟩", word, "⟨unk⟩", "⟨unk⟩"]
    assert source.decode([[1, *encoded, 2, 0]]) == [f"{word} {word}"]
    assert source.encode([""]) == [[]]


def test_a_sentencepiece_model_in_the_folder_is_used_as_tokenizer(tmp_path: Path) -> None:
    _, words = write_checkpoint(tmp_path, share_all_embeddings=True)
    known = words["en"][10]
    pieces = {f"▁{known}": -1.0, known: -2.0, "▁": -3.0, "s": -3.0}
    (tmp_path / "spm.model").write_bytes(to_spm(tokenizer_from_spm(SpmModel(pieces, b""), list(pieces)))[0])
    import_fairseq(tmp_path, tmp_path / "ours", "checkpoint.pt")
    tokenizer = heed.load(tmp_path / "ours").tokenizers[0]
    assert tokenizer.kind == "sentencepiece"
    (ids,) = tokenizer.encode([f"s{known}"])
    assert tokenizer.tokens(ids) == ["⟨unk⟩", "⟨unk⟩", known]  # the dictionary has neither ▁ nor s


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"adaptive_softmax_cutoff": "10,20"}, "adaptive_softmax_cutoff = '10,20' is not supported: heed has one"),
        ({"layernorm_embedding": True}, "layernorm_embedding = True is not supported: heed does not normalise"),
        ({"no_token_positional_embeddings": True}, "no_token_positional_embeddings = True is not supported"),
        ({"no_cross_attention": True}, "no_cross_attention = True is not supported"),
        ({"cross_self_attention": True}, "cross_self_attention = True is not supported"),
        ({"no_decoder_final_norm": True}, "no_decoder_final_norm = True is not supported"),
        ({"base_layers": 1}, "base_layers = 1 is not supported: heed has no mixture of experts"),
        ({"activation_fn": "gelu_accurate"}, "activation_fn = 'gelu_accurate' is not one of heed's: relu, gelu"),
        ({"decoder_attention_heads": 4}, "encoder_attention_heads = 2 and decoder_attention_heads = 4"),
        ({"decoder_embed_dim": 8}, "encoder_embed_dim = 16 and decoder_embed_dim = 8, but heed has one for both"),
        ({"source_lang": None}, "does not name its languages: add --languages en-de; found dict.en.txt, dict.fr.txt"),
        ({"target_lang": "de"}, r"dict.de.txt: No such file"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_heed_does_not_support_are_refused_with_the_reason(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    fairseq_model, _ = write_checkpoint(tmp_path)
    torch.save({"args": settings_of(**changed), "model": fairseq_model.state_dict()}, tmp_path / "checkpoint.pt")
    with pytest.raises(FolderError, match=message):
        import_fairseq(tmp_path, tmp_path / "ours", "checkpoint.pt")
    assert not (tmp_path / "ours").exists()


def test_unsafe_or_invalid_checkpoints_are_refused(tmp_path: Path) -> None:
    fairseq_model, _ = write_checkpoint(tmp_path)

    def assert_refused(content: object, message: str) -> None:
        torch.save(content, tmp_path / "bad.pt")
        with pytest.raises(FolderError, match=message):
            import_fairseq(tmp_path, tmp_path / "ours", "bad.pt")

    assert_refused(
        {"cfg": Path("x")}, r"bad.pt is refused: only tensors and plain values .*, and it names pathlib.PosixPath"
    )
    assert_refused([1], r"bad.pt is not a fairseq checkpoint: it has no 'model'")
    assert_refused({"model": {}}, r"bad.pt has no model settings: it has neither 'args' nor 'cfg'")
    pre_norm = settings_of(encoder_normalize_before=True, decoder_normalize_before=True)
    assert_refused(
        {"args": pre_norm, "model": fairseq_model.state_dict()},
        "this pre-norm model of an early fairseq has no final norm",
    )
    state = {name: weight for name, weight in fairseq_model.state_dict().items() if "output_projection" not in name}
    assert_refused({"args": settings_of(), "model": state}, "the checkpoint has no output matrix")
    unknown_weight = {
        "args": settings_of(),
        "model": fairseq_model.state_dict() | {"decoder.project_out_dim.weight": torch.ones(2, 2)},
    }
    assert_refused(
        unknown_weight, r"bad.pt has weights that heed's model does not have: decoder.project_out_dim.weight"
    )
    with pytest.raises(FolderError, match=r"name it with --weights; found bad.pt, checkpoint.pt"):
        import_fairseq(tmp_path, tmp_path / "ours")
    (tmp_path / "bad.pt").write_text("nothing")
    with pytest.raises(FolderError, match=r"bad.pt is refused: .* it is no file of torch.save"):
        import_fairseq(tmp_path, tmp_path / "ours", "bad.pt")
    with pytest.raises(FolderError, match=r"none.pt: No such file"):
        import_fairseq(tmp_path, tmp_path / "ours", "none.pt")
    (tmp_path / "dict.en.txt").write_text("fine 3\nnot fine\n")
    with pytest.raises(FolderError, match=r"dict.en.txt:2: expected a token and its count, found 'not fine'"):
        import_fairseq(tmp_path, tmp_path / "ours", "checkpoint.pt")
    (tmp_path / "dict.en.txt").write_text("twice 3\ntwice 3\n")
    with pytest.raises(FolderError, match="a dictionary has 1 words twice"):
        import_fairseq(tmp_path, tmp_path / "ours", "checkpoint.pt")
