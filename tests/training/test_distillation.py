"""`heed.distil`: the student's text, its settings, and what happens when it is interrupted."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import heed
from heed.artifacts.folder import read_model_folder
from heed.inference.translator import Translator
from heed.training import distillation, synthetic_pairs
from tests.training.examples import RecordingListener

SETTINGS: dict[str, Any] = {
    "model.d_model": 16,
    "model.heads": 2,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.d_ff": 16,
    "training.tokens_per_batch": 80,
    "training.validate_every": 2,
    "training.checkpoint_every": 2,
    "training.max_steps": 2,
}

LONGER = {"training.max_steps": 60, "training.learning_rate": 1e-2, "training.warmup_steps": 10}  # so outputs end


def words_and_reversed(count: int) -> list[tuple[str, str]]:
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdef", k=draw.randint(3, 6))) for _ in range(count)]
    return [(word, word[::-1]) for word in words]


def write_tsv(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return path


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs on the same two corpora, which differ in their seed."""
    folder = tmp_path_factory.mktemp("teachers")
    pairs = words_and_reversed(90)
    first, second, valid = (
        write_tsv(folder / name, part)
        for name, part in (("1.tsv", pairs[:40]), ("2.tsv", pairs[40:70]), ("v.tsv", pairs[70:]))
    )
    for seed in (1, 2):
        heed.train(
            pairs=[first, second],
            weight=[1, 2],
            valid_pairs=valid,
            settings={**SETTINGS, **LONGER, "training.seed": seed, "search.beam": 2, "data.max_tokens": 50},
            out=folder / f"s{seed}",
            cache=folder / "cache",
        )
    return [folder / "s1", folder / "s2"]


def rows(path: Path) -> list[tuple[str, str]]:
    return [(row["source"], row["target"]) for row in map(json.loads, path.read_text().splitlines())]


def whole_translations(*models: Path, sources: list[str]) -> list[str]:
    """The translations by an ensemble; those that the length limit truncated are empty."""
    translations = heed.load(*models).translate(sources)
    return ["" if translation.truncated else translation.text for translation in translations]


def test_the_student_is_trained_on_the_pairs_and_on_the_translations_of_the_ensemble(
    teachers: list[Path], tmp_path: Path
) -> None:
    run = heed.distil(*teachers, out=tmp_path / "student", settings=SETTINGS)
    text, pairs = tmp_path / "student/distilled", words_and_reversed(90)
    assert rows(text / "training-1.jsonl") == pairs[:40]
    assert rows(text / "validation-1.jsonl") == pairs[70:]
    translated = rows(text / "translated-2.jsonl")
    sources = [source for source, _ in pairs[40:70]]
    assert translated == list(zip(sources, whole_translations(*teachers, sources=sources), strict=True))
    assert translated != list(zip(sources, whole_translations(teachers[0], sources=sources), strict=True))
    folder = read_model_folder(run.folder)
    corpora = folder.trained["texts"]["training"]
    assert [(corpus["pairs"], corpus["weight"]) for corpus in corpora] == [(40, 1), (30, 2), (40, 1), (30, 2)]
    assert (folder.run.search.beam, folder.run.data.max_tokens) == (2, 50)


def test_held_out_pairs_of_a_teacher_are_the_validation_set_of_its_student(tmp_path: Path) -> None:
    pairs = words_and_reversed(90)
    settings = {**SETTINGS, "data.hold_out": 20}
    teacher = heed.train(pairs=write_tsv(tmp_path / "all.tsv", pairs), settings=settings, out=tmp_path / "s1")
    heed.distil(tmp_path / "s1", out=tmp_path / "student", settings=SETTINGS)
    text = tmp_path / "student/distilled"
    held_out = rows(text / "validation-1.jsonl")
    (validation,) = read_model_folder(teacher.folder).trained["texts"]["validation"]
    assert len(held_out) == validation["pairs"] > 10
    assert sorted(held_out + rows(text / "training-1.jsonl")) == sorted(pairs)
    assert not {source for source, _ in held_out} & {source for source, _ in rows(text / "translated-1.jsonl")}


def test_a_student_has_the_settings_of_its_first_teacher_unless_a_preset_is_given(
    teachers: list[Path], tmp_path: Path
) -> None:
    listener = RecordingListener()
    student = heed.distil(teachers[1], out=tmp_path / "like", settings={"training.max_steps": 2}, listener=listener)
    run, teacher = read_model_folder(student.folder).run, read_model_folder(teachers[1]).run
    assert run.model == teacher.model
    assert run.training == teacher.training.model_copy(update={"max_steps": 2})
    assert f"data, search, model, training settings: those of {teachers[1]}" in "\n".join(listener.notes)
    other = heed.distil(teachers[1], out=tmp_path / "tiny", preset="tiny", settings={"training.max_steps": 2})
    run = read_model_folder(other.folder).run
    assert (run.model.d_model, run.training.seed, run.search.beam) == (128, 1, 2)


def test_reverse_teachers_translate_the_targets_which_get_further_sources(teachers: list[Path], tmp_path: Path) -> None:
    listener = RecordingListener()
    run = heed.distil(*teachers, out=tmp_path / "student", reverse=teachers, settings=SETTINGS, listener=listener)
    text, pairs = tmp_path / "student/distilled", words_and_reversed(90)
    for number, teacher in enumerate(teachers, 1):
        for corpus, part in ((1, pairs[:40]), (2, pairs[40:70])):
            targets = [target for _, target in part]
            sources = whole_translations(teacher, sources=targets)
            assert rows(text / f"reverse-{number}-{corpus}.jsonl") == list(zip(sources, targets, strict=True))
    corpora = read_model_folder(run.folder).trained["texts"]["training"]
    assert [corpus["weight"] for corpus in corpora] == [1, 2] * 4
    assert f"translating the targets with {teachers[1]}" in "\n".join(listener.notes)
    assert f"translating the sources with {teachers[0]} + {teachers[1]}" in "\n".join(listener.notes)


def test_a_reverse_teacher_of_the_same_direction_is_an_error(tmp_path: Path) -> None:
    pairs = write_tsv(tmp_path / "pairs.tsv", words_and_reversed(40))
    for name, source, target in (("forth", "en", "fr"), ("back", "fr", "en"), ("other", "fr", "de")):
        settings = {**SETTINGS, "data.source_language": source, "data.target_language": target}
        heed.train(pairs=pairs, settings=settings, out=tmp_path / name)
    forth, back, other = (tmp_path / name for name in ("forth", "back", "other"))
    for wrong, languages in ((forth, "en to fr"), (other, "fr to de")):
        with pytest.raises(heed.ConfigError, match=f"{wrong} translates {languages}: a reverse teacher .* fr to en"):
            heed.distil(forth, reverse=[wrong], out=tmp_path / "student", settings=SETTINGS)
    assert not (tmp_path / "student").exists()
    heed.distil(forth, reverse=[back], out=tmp_path / "student", settings=SETTINGS)


def test_a_distillation_resumes_only_with_the_teachers_it_began_with(teachers: list[Path], tmp_path: Path) -> None:
    heed.distil(teachers[0], out=tmp_path / "student", settings=SETTINGS)
    for first, reverse in ((teachers[1], []), (teachers[0], [teachers[1]])):
        with pytest.raises(heed.ConfigError, match="student was begun with other teachers"):
            heed.distil(first, out=tmp_path / "student", reverse=reverse, settings=SETTINGS, resume=True)
    heed.distil(teachers[0], out=tmp_path / "student", settings=SETTINGS, resume=True)


def test_a_damaged_record_of_the_teachers_is_an_error_and_an_interrupt_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "student/distilled"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            distillation._record_teachers(text, ["a"], [])
    assert not (text / "teachers.json").exists()
    distillation._record_teachers(text, ["a"], [])
    (text / "teachers.json").write_text('{"teach')
    with pytest.raises(heed.FolderError, match=r"teachers\.json is damaged: .* Remove .*distilled to translate again"):
        distillation._record_teachers(text, ["a"], [])


def test_an_interrupted_distillation_resumes_and_gives_the_same_student(
    teachers: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic_pairs, "_CHUNK", 8)
    whole = heed.distil(*teachers, out=tmp_path / "whole", settings=SETTINGS)
    translate, calls = Translator.translate, []

    def interrupted(self: Translator, *texts: Any, **options: Any) -> Any:
        calls.append(texts)
        if len(calls) == 7:  # in the middle of the second corpus
            raise KeyboardInterrupt
        return translate(self, *texts, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            heed.distil(*teachers, out=tmp_path / "cut", settings=SETTINGS)
    unfinished = tmp_path / "cut/distilled/.translated-2.jsonl.writing"
    with unfinished.open("a") as file:
        file.write('{"source": "abc", "tar')  # a kill in the middle of a line
    with pytest.raises(heed.FolderError, match="already holds a distillation: resume it"):
        heed.distil(*teachers, out=tmp_path / "cut", settings=SETTINGS)
    resumed = heed.distil(*teachers, out=tmp_path / "cut", settings=SETTINGS, resume=True)
    for name in ("model.safetensors", "distilled/translated-1.jsonl", "distilled/translated-2.jsonl"):
        assert (whole.folder / name).read_bytes() == (resumed.folder / name).read_bytes()


def test_translations_that_repeat_themselves_are_left_out_and_counted(
    teachers: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic_pairs, "repeats_itself", lambda text, original: text > original)
    listener = RecordingListener()
    heed.distil(*teachers, out=tmp_path / "student", settings=SETTINGS, listener=listener)
    left_out = 0
    for number in (1, 2):
        pairs = rows(tmp_path / f"student/distilled/training-{number}.jsonl")
        kept = [target for _, target in rows(tmp_path / f"student/distilled/translated-{number}.jsonl")]
        whole = whole_translations(*teachers, sources=[source for source, _ in pairs])
        assert kept == ["" if text > target else text for text, (_, target) in zip(whole, pairs, strict=True)]
        left_out += sum(text > target for text, (_, target) in zip(whole, pairs, strict=True))
    assert left_out > 0
    assert f"translations left out because they repeat themselves: {left_out}" in listener.notes


def test_truncated_translations_are_left_out_and_counted(teachers: list[Path], tmp_path: Path) -> None:
    listener, settings = RecordingListener(), {**SETTINGS, "search.max_length": 1}
    run = heed.distil(*teachers, out=tmp_path / "student", settings=SETTINGS, listener=listener)
    assert not any("reached the length limit" in note for note in listener.notes)
    short = tmp_path / "short"
    heed.train(pairs=run.folder / "distilled/training-1.jsonl", settings=settings, out=short)
    heed.distil(short, out=tmp_path / "other", settings=settings, listener=listener)
    (note,) = (note for note in listener.notes if "reached the length limit" in note)
    count = int(note.rpartition(" ")[2])
    assert sum(not target for _, target in rows(tmp_path / "other/distilled/translated-1.jsonl")) == count > 0


def test_teachers_that_cannot_be_distilled_are_errors(
    teachers: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(heed.InputError, match="at least one teacher"):
        heed.distil(out=tmp_path / "student")
    with pytest.raises(heed.FolderError, match=rf"{tmp_path} has no run.json, which names the training text"):
        heed.distil(tmp_path, out=tmp_path / "student")
    (tmp_path / "text").write_text("a b\nb c\n")
    settings = {name: value for name, value in SETTINGS.items() if not name.startswith("model.encoder")}
    heed.train(text=tmp_path / "text", task="language-model", settings=settings, out=tmp_path / "lm")
    with pytest.raises(heed.ConfigError, match="task = 'language-model': only translation models"):
        heed.distil(tmp_path / "lm", out=tmp_path / "student")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(heed.ConfigError, match="distil runs in one process"):
        heed.distil(*teachers, out=tmp_path / "student")
