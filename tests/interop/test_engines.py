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

OTHERS: list[EngineName] = ["ctranslate2", "ctranslate2-int8", "onnx"]
EXACT: list[EngineName] = ["ctranslate2", "onnx"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("engines") / "model", separate=True, tie_embeddings=False)


@pytest.fixture(scope="module")
def exported(model: Path) -> dict[EngineName, Path]:
    folders = {name: model.parent / name for name in OTHERS}
    for name, out in folders.items():
        export_for(name, model, out)
    return folders


@pytest.mark.parametrize("name", EXACT)
def test_an_engine_writes_what_heed_writes_from_either_folder(
    name: EngineName, model: Path, exported: dict[EngineName, Path]
) -> None:
    ours = load(model).translate(TEXTS, beam=1, align=False)
    for translator in (load(model, engine=name), load(exported[name], engine=name), load(exported[name])):
        assert translator.search == load(model).search
        assert translator.max_tokens == 60
        found = translator.translate(TEXTS, beam=1, align=False)
        assert [(one.text, one.tokens, one.source_tokens) for one in found] == [
            (one.text, one.tokens, one.source_tokens) for one in ours
        ]


def test_heeds_own_integers_are_an_engine_that_needs_nothing(model: Path) -> None:
    ours, integers = (load(model, engine=name).translate(TEXTS, beam=1) for name in ("heed", "heed-int8"))
    assert any(one.score != other.score for one, other in zip(ours, integers, strict=True))
    assert all(abs(one.score - other.score) < 0.5 for one, other in zip(ours, integers, strict=True))


def test_a_model_folder_keeps_what_only_heed_can_do(model: Path) -> None:
    translator, ours = load(model, engine="ctranslate2"), load(model)
    [one] = translator.translate(TEXTS[:1], beam=1)
    [expected] = ours.translate(TEXTS[:1], beam=1)
    assert one.alignment == expected.alignment
    assert translator.score(TEXTS, TEXTS) == ours.score(TEXTS, TEXTS)
    assert "".join(translator.stream(TEXTS[0])) == ours.translate(TEXTS[:1], beam=1)[0].text
    assert translator.look(TEXTS[0], "A").target_tokens == ours.look(TEXTS[0], "A").target_tokens
    assert len(translator.alternatives(TEXTS[0], "A", 2)) == 2


def test_an_exported_folder_only_translates(model: Path, exported: dict[EngineName, Path]) -> None:
    translator = load(exported["onnx"])
    for ask in (
        lambda: translator.translate(TEXTS),
        lambda: translator.score(TEXTS, TEXTS),
        lambda: list(translator.stream("A dog.")),
        lambda: translator.look("A dog."),
    ):
        with pytest.raises(InputError, match="an exported model only translates"):
            ask()
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


def test_an_export_for_no_engine_is_refused(model: Path, tmp_path: Path) -> None:
    export_for("onnx", model, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "heed.json").read_text())
    files = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir() if file.name != "manifest.json"}
    write_folder(tmp_path / "out", files | {"heed.json": json_bytes(settings | {"engine": "abacus"})})
    with pytest.raises(FolderError, match="names the engine 'abacus', expected one of heed, heed-int8, ctranslate2"):
        load(tmp_path / "out")


def test_what_is_not_installed_is_named_with_its_extra(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    absent = ("onnxruntime", "ctranslate2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else there(name))
    with pytest.raises(ConfigError, match=r"onnx needs onnxruntime: install with pip install 'heed\[onnx\]'"):
        load(model, engine="onnx")
    with pytest.raises(ConfigError, match=r"ctranslate2-int8 needs ctranslate2: .* 'heed\[ctranslate2\]'"):
        export_for("ctranslate2-int8", model, tmp_path / "out")


def test_engines_are_known_by_name() -> None:
    assert [parse_engine_name(name) for name in ENGINES] == list(ENGINES)
    with pytest.raises(ConfigError, match="unknown engine 'onx': did you mean 'onnx'"):
        parse_engine_name("onx")


@pytest.mark.parametrize("name", EXACT)
def test_a_server_translates_with_an_engine(name: EngineName, model: Path) -> None:
    [served] = open_translators([model], [], {"beam": 1}, partial(load, engine=name))
    assert (served.source, served.target) == ("en", "de")
    batcher = Batcher(max_delay=0.0, budget=4096)
    jobs: list[Job[Any]] = [
        Job(CancelToken(), 9, TranslationJobType(served.translator, served.translator.search), text) for text in TEXTS
    ]
    batcher.submit(jobs)
    written = [job.future.result(timeout=30).text for job in jobs]
    batcher.close()
    assert written == [one.text for one in load(model).translate(TEXTS, beam=1, align=False)]


def test_the_command_exports_and_translates(model: Path, tmp_path: Path) -> None:
    lines = "".join(f"{text}\n" for text in TEXTS)
    expected = "".join(f"{one.text}\n" for one in load(model).translate(TEXTS, beam=1, align=False))
    done = heed("export", str(model), "--to", "ctranslate2", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    for options in ([str(tmp_path / "out")], [str(model), "--engine", "onnx"]):
        assert heed("translate", *options, "--beam", "1", stdin=lines).stdout == expected


def test_the_command_refuses_what_no_engine_can_do(model: Path, exported: dict[EngineName, Path]) -> None:
    for arguments, message in (
        (
            ["translate", str(model), "--engine", "onnx", "--with", str(model)],
            "only the engines heed and heed-int8 run an ensemble",
        ),
        (["translate", str(model), "--engine", "onx"], "'onx' is not one of 'heed', 'heed-int8', 'ctranslate2'"),
        (["score", str(exported["onnx"]), "--source", __file__, "--target", __file__], "is an exported model"),
        (["serve", str(exported["onnx"]), "--engine", "onnx"], "is an exported model"),
    ):
        done = heed(*arguments, stdin="A dog.\n")
        assert done.returncode == 2, done.stderr
        assert message in done.stderr


@pytest.mark.slow
def test_a_trained_model_says_the_same_in_every_engine(tmp_path: Path) -> None:
    assert heed("demo", "--steps", "400", "--out", str(tmp_path / "demo")).returncode == 0
    lines = (tmp_path / "demo" / "test.tsv").read_text(encoding="utf-8").splitlines()
    sources, references = zip(*(line.split("\t") for line in lines), strict=True)
    assert len(sources) == 1000
    for beam, least in ((1, 0.999), (4, 0.99)):
        search = SearchConfig(beam=beam)
        written = {
            name: [
                one.text for one in load(tmp_path / "demo", engine=name).translate(sources, search=search, align=False)
            ]
            for name in ENGINES
        }
        same = {name: sum(map(str.__eq__, found, written["heed"])) for name, found in written.items()}
        assert same["onnx"] == 1000
        assert same["ctranslate2"] >= least * 1000
        assert bleu(written["ctranslate2-int8"], references) == pytest.approx(
            bleu(written["heed"], references), abs=0.3
        )
