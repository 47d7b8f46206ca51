"""The thread that translates, without a server around it."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import torch

from heed import SearchConfig, Transformer, Translator, load
from heed.serving.batcher import Batcher, Job, Kind, Ticket, WorkerGoneError
from tests.serving.folders import TOKENIZER


@pytest.fixture
def batcher() -> Iterator[Batcher]:
    made = Batcher(patience=0.05, budget=4096)
    yield made
    made.close()


@pytest.fixture(scope="module")
def translator(folders: tuple[Path, Path]) -> Translator:
    return load(folders[0])


def hold(batcher: Batcher) -> Callable[[], None]:
    """Keep the thread busy; returns how to let it go on."""
    begun, released = threading.Event(), threading.Event()

    def wait(_: Callable[[], None]) -> None:
        begun.set()
        released.wait()

    batcher.submit([Job(Ticket(), 1, errand=wait)])
    begun.wait()
    return released.set


def pieces(texts: list[str], kind: Kind, ticket: Ticket | None = None) -> list[Job[object]]:
    lengths = [len(ids) for ids in TOKENIZER.encode(texts)]
    return [Job(ticket or Ticket(), length, kind, text) for text, length in zip(texts, lengths, strict=True)]


def test_what_waits_is_done_together_and_each_gets_its_own(batcher: Batcher, translator: Translator) -> None:
    texts = [f"{number} dogs see {number * 7 % 97}." for number in range(60)]
    jobs = pieces(texts, Kind(translator, translator.search))
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    assert [job.future.result().text for job in jobs] == translator(texts)  # type: ignore[attr-defined]
    assert batcher.batches < 10
    assert batcher.texts == 60


def test_only_what_is_alike_goes_together(batcher: Batcher, translator: Translator) -> None:
    short, long = ["a dog"] * 3, ["the cat sees a bird and the old dog runs."] * 3
    kind = Kind(translator, translator.search)
    greedy = Kind(translator, translator.search.model_copy(update={"beam": 1}))
    drawn = Kind(translator, SearchConfig(sample=True, max_length=9))
    jobs = [*pieces(long, kind), *pieces(short, kind), *pieces(short, greedy), *pieces(short, drawn)]
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    for job in jobs:
        job.future.result()
    assert batcher.batches == 3 + 3  # three kinds of company, and what is drawn at random goes alone
    samples = {job.future.result().text for job in jobs[-3:]}  # type: ignore[attr-defined]
    assert samples == {translator.translate(["a dog"], search=drawn.search)[0].text}


def test_the_budget_bounds_a_batch(translator: Translator) -> None:
    batcher = Batcher(patience=0.05, budget=2 * 6 * 2)  # two texts of five letters and an end, twice for the beam
    jobs = pieces(["a dog"] * 6, Kind(translator, translator.search))
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    batcher.close()
    assert all(job.future.done() for job in jobs)
    assert batcher.batches == 3


def slow_translator(translator: Translator, seconds: float) -> tuple[Translator, threading.Event]:
    """The same with steps that take longer, and an event that is set after the first of them."""
    stepped = threading.Event()

    class Slow(Transformer):
        def step(self, *arguments: object, **more: object) -> object:  # type: ignore[override]
            result = super().step(*arguments, **more)  # type: ignore[arg-type]
            time.sleep(seconds)
            stepped.set()
            return result

    model = Slow(translator.model.config).eval()
    model.load_state_dict(translator.model.state_dict())
    search = SearchConfig(beam=2, min_length=50, max_length=50)
    return Translator([model], translator.tokenizers, search), stepped


def test_a_long_one_steps_aside_for_short_ones(batcher: Batcher, translator: Translator) -> None:
    slow, stepped = slow_translator(translator, 0.01)
    long = pieces(["the cat sees a bird and the old dog runs."], Kind(slow, slow.search))
    batcher.submit(long)
    assert stepped.wait(10)
    for number in range(3):
        short = pieces([f"{number} dogs"], Kind(translator, translator.search))
        batcher.submit(short)
        assert short[0].future.result(10).text == translator(f"{number} dogs")  # type: ignore[attr-defined]
        assert not long[0].future.done()
    assert long[0].future.result(30).text == slow.translate(["the cat sees a bird and the old dog runs."])[0].text  # type: ignore[attr-defined]


def test_what_nobody_waits_for_ends_within_a_step(batcher: Batcher, translator: Translator) -> None:
    slow, stepped = slow_translator(translator, 0.01)
    ticket = Ticket()
    jobs = pieces(["a dog", "the cat"], Kind(slow, slow.search), ticket)
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    assert stepped.wait(10)
    ticket.gone = True
    with pytest.raises(CancelledError):
        jobs[0].future.result(10)
    assert batcher.batches == 0


def test_one_that_goes_leaves_the_others_as_they_would_be(batcher: Batcher, translator: Translator) -> None:
    rows: list[int] = []

    class Counting(Transformer):
        def step(self, ids: torch.Tensor, *arguments: object, **more: object) -> object:  # type: ignore[override]
            rows.append(len(ids))
            if len(rows) == 3:
                going.gone = True
            return super().step(ids, *arguments, **more)  # type: ignore[arg-type]

    model = Counting(translator.model.config).eval()
    model.load_state_dict(translator.model.state_dict())
    search = SearchConfig(beam=2, max_length=30, length_penalty=-1.0, no_repeat_ngram=1)
    counting = Translator([model], translator.tokenizers, search)
    texts = ["17 dogs", "23 dogs", "99 dogs"]
    staying, going = Ticket(), Ticket()
    expected = counting(texts)
    rows.clear()
    going.gone = False
    kind = Kind(counting, search)
    jobs = [*pieces(texts[:1], kind, staying), *pieces(texts[1:2], kind, going), *pieces(texts[2:], kind, staying)]
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    assert jobs[0].future.result(10).text == expected[0]  # type: ignore[attr-defined]
    assert jobs[2].future.result(10).text == expected[2]  # type: ignore[attr-defined]
    assert rows[:3] == [6, 6, 6]
    assert max(rows[3:], default=0) <= 4


def test_a_text_that_fails_does_not_spoil_its_company(batcher: Batcher, translator: Translator) -> None:
    class Choosy(Translator):
        def translate_pieces(self, texts: list[str], *arguments: object, **more: object) -> object:  # type: ignore[override]
            if "bad" in texts:
                raise ValueError("bad")
            return super().translate_pieces(texts, *arguments, **more)  # type: ignore[arg-type]

    choosy = Choosy(translator.models, translator.tokenizers, translator.search)
    jobs = pieces(["good", "bad", "dogs"], Kind(choosy, choosy.search))
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    assert [jobs[0].future.result(10).text, jobs[2].future.result(10).text] == translator(["good", "dogs"])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="bad"):
        jobs[1].future.result(10)


def test_when_the_thread_is_killed_nobody_waits_in_vain(translator: Translator) -> None:
    batcher = Batcher(patience=0.0, budget=4096)
    slow, stepped = slow_translator(translator, 0.01)
    jobs = pieces(["a dog"], Kind(slow, slow.search))
    batcher.submit(jobs)
    assert stepped.wait(10)
    later = pieces(["the cat"], Kind(slow, slow.search))
    batcher.submit(later)
    identity = ctypes.c_ulong(batcher._thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))
    for job in (*jobs, *later):
        with pytest.raises(WorkerGoneError, match="the thread that translates has ended"):
            job.future.result(10)
    assert not batcher.alive
    with pytest.raises(WorkerGoneError, match="the thread that translates has ended"):
        batcher.submit(jobs)
