import importlib.util
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heed import SearchConfig, load
from heed.artifacts.writing import json_bytes, write_folder
from heed.errors import ConfigError, FolderError, InputError
from heed.evaluation.metrics import bleu
from heed.interop.engine_names import ENGINES, EngineName, parse_engine_name
from heed.interop.folders import export_for
from heed.serving.batcher import Batcher, CancelToken, Job
from heed.serving.jobs import TranslationJobType
from heed.serving.models import open_translators
from tests.cli.command import heed
from tests.interop.engine_models import TEXTS, folder

OTHER_ENGINES: list[EngineName] = ["ctranslate2", "ctranslate2-int8", "onnx"]
FLOAT32_ENGINES: list[EngineName] = ["ctranslate2", "onnx"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("engines") / "model", separate=True, tie_embeddings=False)


@pytest.fixture(scope="module")
def exported(model: Path) -> dict[EngineName, Path]:
    folders = {name: model.parent / name for name in OTHER_ENGINES}
    for name, out in folders.items():
        export_for(name, model, out)
    return folders


@pytest.mark.parametrize("name", FLOAT32_ENGINES)
def test_an_engine_translates_like_heed_from_a_model_folder_and_from_its_export(
    name: EngineName, model: Path, exported: dict[EngineName, Path]
) -> None:
    expected = load(model).translate(TEXTS, beam=1, align=False)
    for translator in (load(model, engine=name), load(exported[name], engine=name), load(exported[name])):
        assert translator.search == load(model).search
        assert translator.max_tokens == 60
        translations = translator.translate(TEXTS, beam=1, align=False)
        assert [(translation.text, translation.tokens, translation.source_tokens) for translation in translations] == [
            (translation.text, translation.tokens, translation.source_tokens) for translation in expected
        ]


def test_heed_int8_is_an_engine_close_to_float32(model: Path) -> None:
    float32, int8 = (load(model, engine=name).translate(TEXTS, beam=1) for name in ("heed", "heed-int8"))
    assert any(
        translation.score != int8_translation.score for translation, int8_translation in zip(float32, int8, strict=True)
    )
    assert all(
        abs(translation.score - int8_translation.score) < 0.5
        for translation, int8_translation in zip(float32, int8, strict=True)
    )


def test_an_engine_on_a_model_folder_aligns_scores_streams_and_looks_like_heed(model: Path) -> None:
    translator, heed_translator = load(model, engine="ctranslate2"), load(model)
    [translation] = translator.translate(TEXTS[:1], beam=1)
    [expected] = heed_translator.translate(TEXTS[:1], beam=1)
    assert translation.alignment == expected.alignment
    assert translator.score(TEXTS, TEXTS) == heed_translator.score(TEXTS, TEXTS)
    assert "".join(translator.stream(TEXTS[0])) == heed_translator.translate(TEXTS[:1], beam=1)[0].text
    assert translator.look(TEXTS[0], "A").target_tokens == heed_translator.look(TEXTS[0], "A").target_tokens
    assert len(translator.alternatives(TEXTS[0], "A", 2)) == 2


def test_an_exported_folder_only_translates(model: Path, exported: dict[EngineName, Path]) -> None:
    translator = load(exported["onnx"])
    for call in (
        lambda: translator.translate(TEXTS),
        lambda: translator.score(TEXTS, TEXTS),
        lambda: list(translator.stream("A dog.")),
        lambda: translator.look("A dog."),
    ):
        with pytest.raises(InputError, match="an exported model only translates"):
            call()
    with pytest.raises(FolderError, match=r"onnx is an exported model, for heed translate only"):
        load(exported["onnx"], engine="heed")
    with pytest.raises(ConfigError, match=r"was exported for onnx, found --engine ctranslate2"):
        load(exported["onnx"], engine="ctranslate2")
    with pytest.raises(FolderError, match="onnx already exists"):
        export_for("onnx", model, exported["onnx"])


def test_a_damaged_export_is_refused(model: Path, tmp_path: Path) -> None:
    export_for("onnx", model, tmp_path / "out")
    (tmp_path / "out" / "decoder.onnx").write_bytes(b"")
    with pytest.raises(FolderError, match=r"damaged: decoder.onnx does not match manifest.json"):
        load(tmp_path / "out")


def test_an_export_for_an_unknown_engine_is_refused(model: Path, tmp_path: Path) -> None:
    export_for("onnx", model, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "heed.json").read_text())
    files = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir() if file.name != "manifest.json"}
    write_folder(tmp_path / "out", files | {"heed.json": json_bytes(settings | {"engine": "abacus"})})
    with pytest.raises(FolderError, match="names the engine 'abacus', expected one of heed, heed-int8, ctranslate2"):
        load(tmp_path / "out")


def test_a_package_that_is_not_installed_is_named_with_its_extra(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    absent = ("onnxruntime", "ctranslate2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else find_spec(name))
    with pytest.raises(ConfigError, match=r"onnx needs onnxruntime: install with pip install 'heed\[onnx\]'"):
        load(model, engine="onnx")
    with pytest.raises(ConfigError, match=r"ctranslate2-int8 needs ctranslate2: .* 'heed\[ctranslate2\]'"):
        export_for("ctranslate2-int8", model, tmp_path / "out")


def test_engine_names_are_parsed_and_unknown_ones_refused_with_a_suggestion() -> None:
    assert [parse_engine_name(name) for name in ENGINES] == list(ENGINES)
    with pytest.raises(ConfigError, match="unknown engine 'onx': did you mean 'onnx'"):
        parse_engine_name("onx")


@pytest.mark.parametrize("name", FLOAT32_ENGINES)
def test_a_server_translates_with_an_engine(name: EngineName, model: Path) -> None:
    [served] = open_translators([model], [], {"beam": 1}, partial(load, engine=name))
    assert (served.source, served.target) == ("en", "de")
    batcher = Batcher(max_delay=0.0, budget=4096)
    jobs: list[Job[Any]] = [
        Job(CancelToken(), 9, TranslationJobType(served.translator, served.translator.search), text) for text in TEXTS
    ]
    batcher.submit(jobs)
    translations = [job.future.result(timeout=30).text for job in jobs]
    batcher.close()
    assert translations == [translation.text for translation in load(model).translate(TEXTS, beam=1, align=False)]


def test_heed_export_and_heed_translate_with_an_engine_give_heeds_translations(model: Path, tmp_path: Path) -> None:
    lines = "".join(f"{text}\n" for text in TEXTS)
    expected = "".join(f"{translation.text}\n" for translation in load(model).translate(TEXTS, beam=1, align=False))
    process = heed("export", str(model), "--to", "ctranslate2", "--out", str(tmp_path / "out"))
    assert process.returncode == 0, process.stderr
    for options in ([str(tmp_path / "out")], [str(model), "--engine", "onnx"]):
        assert heed("translate", *options, "--beam", "1", stdin=lines).stdout == expected


def test_commands_refuse_what_an_engine_does_not_support(model: Path, exported: dict[EngineName, Path]) -> None:
    for arguments, message in (
        (
            ["translate", str(model), "--engine", "onnx", "--with", str(model)],
            "only the engines heed and heed-int8 run an ensemble",
        ),
        (["translate", str(model), "--engine", "onx"], "'onx' is not one of 'heed', 'heed-int8', 'ctranslate2'"),
        (["score", str(exported["onnx"]), "--source", __file__, "--target", __file__], "is an exported model"),
        (["serve", str(exported["onnx"]), "--engine", "onnx"], "is an exported model"),
    ):
        process = heed(*arguments, stdin="A dog.\n")
        assert process.returncode == 2, process.stderr
        assert message in process.stderr


@pytest.mark.slow
def test_a_trained_model_translates_the_same_in_every_engine(tmp_path: Path) -> None:
    assert heed("demo", "--steps", "400", "--out", str(tmp_path / "demo")).returncode == 0
    lines = (tmp_path / "demo" / "test.tsv").read_text(encoding="utf-8").splitlines()
    sources, references = zip(*(line.split("\t") for line in lines), strict=True)
    assert len(sources) == 1000
    for beam, min_equal in ((1, 0.999), (4, 0.99)):
        search = SearchConfig(beam=beam)
        translations = {
            name: [
                translation.text
                for translation in load(tmp_path / "demo", engine=name).translate(sources, search=search, align=False)
            ]
            for name in ENGINES
        }
        equal = {name: sum(map(str.__eq__, texts, translations["heed"])) for name, texts in translations.items()}
        assert equal["onnx"] == 1000
        assert equal["ctranslate2"] >= min_equal * 1000
        assert bleu(translations["ctranslate2-int8"], references) == pytest.approx(
            bleu(translations["heed"], references), abs=0.3
        )
