"""The batcher and its inference thread, without a server."""

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path

import pytest
import torch

from heed import SearchConfig, Transformer, Translator, load
from heed.inference.classifier import Classifier
from heed.inference.generator import Generator
from heed.serving import models as models_module
from heed.serving.batcher import Batcher, CancelToken, Job, JobType, ThreadEndedError
from heed.serving.config import ServeConfig
from heed.serving.http_errors import HttpError
from heed.serving.jobs import ClassificationJobType, GenerationJobType, TranslationJobType
from heed.serving.models import Directions, ServedTranslator, open_translators
from heed.serving.requests import AlternativesRequest, LookRequest, StreamRequest, TranslateRequest
from heed.serving.responses import StreamOutcome
from heed.serving.service import Service
from tests.serving.folders import TOKENIZER, make_lm_or_classifier


@pytest.fixture
def batcher() -> Iterator[Batcher]:
    new_batcher = Batcher(max_delay=0.05, budget=4096)
    yield new_batcher
    new_batcher.close()


@pytest.fixture(scope="module")
def translator(folders: tuple[Path, Path]) -> Translator:
    return load(folders[0])


def hold(batcher: Batcher) -> Callable[[], None]:
    """Keep the thread busy until the returned function is called."""
    started, released = threading.Event(), threading.Event()

    def wait(_: Callable[[], None]) -> None:
        started.set()
        assert released.wait(60)

    batcher.submit([Job(CancelToken(), 1, call=wait)])
    assert started.wait(60)
    return released.set


def pieces(texts: list[str], kind: JobType, cancel_token: CancelToken | None = None) -> list[Job[object]]:
    lengths = [len(ids) for ids in TOKENIZER.encode(texts)]
    return [Job(cancel_token or CancelToken(), length, kind, text) for text, length in zip(texts, lengths, strict=True)]


def test_queued_texts_are_batched_and_each_gets_its_own_translation(batcher: Batcher, translator: Translator) -> None:
    texts = [f"{number} dogs see {number * 7 % 97}." for number in range(60)]
    jobs = pieces(texts, TranslationJobType(translator, translator.search))
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    assert [job.future.result(60).text for job in jobs] == translator(texts)  # type: ignore[attr-defined]
    assert batcher.batches < 10
    assert batcher.texts == 60


def test_only_equal_job_types_of_similar_length_are_batched(batcher: Batcher, translator: Translator) -> None:
    short, long = ["a dog"] * 3, ["the cat sees a bird and the old dog runs."] * 3
    kind = TranslationJobType(translator, translator.search)
    greedy = TranslationJobType(translator, translator.search.model_copy(update={"beam": 1}))
    sampling = TranslationJobType(translator, SearchConfig(sample=True, max_length=9))
    jobs = [*pieces(long, kind), *pieces(short, kind), *pieces(short, greedy), *pieces(short, sampling)]
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    for job in jobs:
        job.future.result(60)
    assert batcher.batches == 3 + 3  # three batches of equal job types, and each sampled text on its own
    samples = {job.future.result(60).text for job in jobs[-3:]}  # type: ignore[attr-defined]
    assert samples == {translator.translate(["a dog"], search=sampling.search)[0].text}


def test_the_budget_bounds_a_batch(translator: Translator) -> None:
    batcher = Batcher(max_delay=0.05, budget=2 * 6 * 2)  # two texts of five letters and EOS, with a beam of two
    jobs = pieces(["a dog"] * 6, TranslationJobType(translator, translator.search))
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    batcher.close()
    assert all(job.future.done() for job in jobs)
    assert batcher.batches == 3


def slow_translator(
    translator: Translator, steps: int = 50, hurry: threading.Event | None = None
) -> tuple[Translator, threading.Event]:
    """The translator with many slow steps, fast once hurry is set; and an event that is set after the first step."""
    stepped = threading.Event()

    class Slow(Transformer):
        def step(self, *arguments: object, **more: object) -> object:  # type: ignore[override]
            result = super().step(*arguments, **more)  # type: ignore[arg-type]
            if hurry is None or not hurry.is_set():
                time.sleep(0.005)
            stepped.set()
            return result

    model = Slow(translator.model.config).eval()
    model.load_state_dict(translator.model.state_dict())
    search = SearchConfig(beam=2, min_length=steps, max_length=steps)
    return Translator([model], translator.tokenizers, search), stepped


def test_a_long_batch_is_preempted_by_short_jobs(batcher: Batcher, translator: Translator) -> None:
    hurry = threading.Event()
    slow, stepped = slow_translator(translator, 120, hurry)
    long = pieces(["the cat sees a bird and the old dog runs."], TranslationJobType(slow, slow.search))
    batcher.submit(long)
    assert stepped.wait(60)
    for number in range(3):
        short = pieces([f"{number} dogs"], TranslationJobType(translator, translator.search))
        batcher.submit(short)
        assert short[0].future.result(60).text == translator(f"{number} dogs")  # type: ignore[attr-defined]
        assert not long[0].future.done()
    hurry.set()
    assert long[0].future.result(60).text == slow.translate(["the cat sees a bird and the old dog runs."])[0].text  # type: ignore[attr-defined]


def test_a_call_is_preempted_once_it_has_run_many_steps(batcher: Batcher, translator: Translator) -> None:
    """Its steps are counted, whatever its declared length."""
    short, started = pieces(["a dog"], TranslationJobType(translator, translator.search)), threading.Event()

    def endless(between_steps: Callable[[], None]) -> bool:
        started.set()
        while not short[0].future.done():
            time.sleep(0.001)
            between_steps()
        return True

    job: Job[bool] = Job(CancelToken(), 1, call=endless)
    batcher.submit([job])
    assert started.wait(60)
    batcher.submit(short)
    assert short[0].future.result(60).text == translator("a dog")  # type: ignore[attr-defined]
    assert job.future.result(60)


def test_a_prefix_counts_as_cost_and_one_that_is_too_long_is_rejected_before_decoding(translator: Translator) -> None:
    slow, stepped = slow_translator(translator, steps=60)
    model = ServedTranslator(Path("ende"), "en", "de", slow, {})
    service = Service(Directions([model]), ServeConfig())
    lengths: list[int] = []
    submit = service.batcher.submit
    service.batcher.submit = lambda jobs: (lengths.extend(job.length for job in jobs), submit(jobs))[1]  # type: ignore[func-returns-value, method-assign]

    def ask(prefix: str) -> object:
        request = AlternativesRequest(q="A dog", source="en", target="de", prefix=prefix, alternatives=1)
        return asyncio.run(service.alternatives(request, model, CancelToken()))

    with pytest.raises(HttpError, match="the prefix has 60 tokens: expected fewer than 60"):
        ask("a" * 60)
    assert not stepped.is_set()
    assert ask("a" * 30)
    assert lengths == [5 + 60 + 1, 5 + 30 + 1]
    service.close()


def test_a_cancelled_batch_ends_within_a_step(batcher: Batcher, translator: Translator) -> None:
    slow, stepped = slow_translator(translator)
    cancel_token = CancelToken()
    jobs = pieces(["a dog", "the cat"], TranslationJobType(slow, slow.search), cancel_token)
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    assert stepped.wait(60)
    cancel_token.cancelled = True
    with pytest.raises(CancelledError):
        jobs[0].future.result(60)
    assert batcher.batches == 0


@pytest.mark.parametrize("route", ["alternatives", "stream"])
def test_a_cancelled_call_ends_within_a_step(translator: Translator, route: str) -> None:
    slow, stepped = slow_translator(translator, steps=10_000)
    model = ServedTranslator(Path("ende"), "en", "de", slow, {})
    service, cancel_token = Service(Directions([model]), ServeConfig()), CancelToken()

    async def ask() -> None:
        if route == "stream":
            async for _ in service.stream(
                StreamRequest(q="A dog", source="en", target="de"), model, cancel_token, StreamOutcome()
            ):
                pass
        await service.alternatives(AlternativesRequest(q="A dog", source="en", target="de"), model, cancel_token)

    async def ask_and_go() -> None:
        asking = asyncio.ensure_future(ask())
        assert await asyncio.to_thread(stepped.wait, 60)
        cancel_token.cancelled = True
        with pytest.raises((asyncio.CancelledError, CancelledError)):
            await asyncio.wait_for(asking, 60)

    asyncio.run(ask_and_go())
    service.close()
    assert not service.batcher.alive


def test_a_trace_does_not_block_translations(translator: Translator) -> None:
    started, hurry = threading.Event(), threading.Event()

    class Held(Transformer):
        def step(self, *arguments: object, **more: object) -> object:  # type: ignore[override]
            started.set()
            assert hurry.wait(60)
            return super().step(*arguments, **more)  # type: ignore[arg-type]

    held = Held(translator.model.config).eval()
    held.load_state_dict(translator.model.state_dict())
    model = ServedTranslator(Path("ende"), "en", "de", Translator([held], translator.tokenizers, translator.search), {})
    other = ServedTranslator(Path("deen"), "de", "en", translator, {})
    service, cancel_token = Service(Directions([model, other]), ServeConfig()), CancelToken()

    async def ask() -> None:
        looking = asyncio.ensure_future(
            service.look(LookRequest(q="A dog", source="en", target="de"), model, cancel_token)
        )
        assert await asyncio.to_thread(started.wait, 60)
        (answer,) = await service.translate(TranslateRequest(q="Die Katze", source="de", target="en"), CancelToken())
        assert answer.text == translator("Die Katze")
        assert not looking.done()
        hurry.set()
        assert await asyncio.wait_for(looking, 60)

    asyncio.run(ask())
    service.close()


def test_concurrent_traces_and_translations_do_not_affect_each_other(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directions = Directions(open_translators(folders[:1], [], {}))
    service, model = Service(directions, ServeConfig()), directions.served[0]
    ours, its = model.translator.model, model.traced_translator.model
    assert {*map(id, ours.modules())}.isdisjoint(map(id, its.modules()))  # a trace registers hooks on the modules
    assert [*map(id, ours.parameters())] == [*map(id, its.parameters())]
    monkeypatch.setattr(model.translator, "look", None)
    texts = [f"{number} dogs see {number * 7 % 97}." for number in range(40)]
    request = LookRequest(q="The old dog", source="en", target="de", parts=["encoder.1.self.query"])

    async def ask() -> tuple[list[bytes], list[str]]:
        looks = asyncio.gather(*(service.look(request, model, CancelToken()) for _ in range(3)))
        answers = await service.translate(TranslateRequest(q=texts, source="en", target="de"), CancelToken())
        return await looks, [answer.text for answer in answers]

    single_look = asyncio.run(service.look(request, model, CancelToken()))
    looks, answers = asyncio.run(ask())
    service.close()
    assert set(looks) == {single_look}
    assert answers == model.translator(texts)


def test_cancelling_one_text_does_not_change_the_others_of_its_batch(batcher: Batcher, translator: Translator) -> None:
    rows: list[int] = []

    class Counting(Transformer):
        def step(self, ids: torch.Tensor, *arguments: object, **more: object) -> object:  # type: ignore[override]
            rows.append(len(ids))
            if len(rows) == 3:
                going.cancelled = True
            return super().step(ids, *arguments, **more)  # type: ignore[arg-type]

    model = Counting(translator.model.config).eval()
    model.load_state_dict(translator.model.state_dict())
    search = SearchConfig(beam=2, max_length=30, length_penalty=-1.0, no_repeat_ngram=1)
    counting = Translator([model], translator.tokenizers, search)
    texts = ["17 dogs", "23 dogs", "99 dogs"]
    staying, going = CancelToken(), CancelToken()
    expected = counting(texts)
    rows.clear()
    going.cancelled = False
    kind = TranslationJobType(counting, search)
    jobs = [*pieces(texts[:1], kind, staying), *pieces(texts[1:2], kind, going), *pieces(texts[2:], kind, staying)]
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    assert jobs[0].future.result(60).text == expected[0]  # type: ignore[attr-defined]
    assert jobs[2].future.result(60).text == expected[2]  # type: ignore[attr-defined]
    assert rows[:3] == [6, 6, 6]
    assert max(rows[3:], default=0) <= 4


def test_a_failing_text_does_not_fail_the_others_of_its_batch(batcher: Batcher, translator: Translator) -> None:
    class Choosy(Translator):
        def translate_segments(self, texts: list[str], *arguments: object, **more: object) -> object:  # type: ignore[override]
            if "bad" in texts:
                raise ValueError("bad")
            return super().translate_segments(texts, *arguments, **more)  # type: ignore[arg-type]

    choosy = Choosy(translator.models, translator.tokenizers, translator.search)
    jobs = pieces(["good", "bad", "dogs"], TranslationJobType(choosy, choosy.search))
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    assert [jobs[0].future.result(60).text, jobs[2].future.result(60).text] == translator(["good", "dogs"])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="bad"):
        jobs[1].future.result(60)


def test_jobs_of_a_killed_thread_fail_instead_of_waiting(translator: Translator) -> None:
    batcher = Batcher(max_delay=0.0, budget=4096)
    slow, stepped = slow_translator(translator)
    jobs = pieces(["a dog"], TranslationJobType(slow, slow.search))
    batcher.submit(jobs)
    assert stepped.wait(60)
    later = pieces(["the cat"], TranslationJobType(slow, slow.search))
    batcher.submit(later)
    identity = ctypes.c_ulong(batcher._threads[0].ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))
    for job in (*jobs, *later):
        with pytest.raises(ThreadEndedError, match="an inference thread has ended"):
            job.future.result(60)
    assert not batcher.alive
    with pytest.raises(ThreadEndedError, match="an inference thread has ended"):
        batcher.submit(jobs)


def test_batches_of_several_threads_run_at_the_same_time(translator: Translator) -> None:
    batcher, together = Batcher(max_delay=0.0, budget=4096, threads=2), threading.Barrier(2)
    calls = [Job(CancelToken(), 1, call=lambda _: (together.wait(60), torch.get_num_threads())[1]) for _ in range(2)]
    batcher.submit(calls)
    assert [call.future.result(60) for call in calls] == [1, 1]
    texts = [f"{number} dogs see {number * 7 % 97}." for number in range(60)]
    jobs = pieces(texts, TranslationJobType(translator, translator.search))
    for job in jobs:
        batcher.submit([job])
    assert [job.future.result(60).text for job in jobs] == translator(texts)  # type: ignore[attr-defined]
    assert batcher.texts == 60
    batcher.close()
    assert not batcher.alive


def test_idle_threads_share_what_is_queued(translator: Translator) -> None:
    batcher = Batcher(max_delay=0.0, budget=4096, threads=2)
    jobs = pieces(["a dog"] * 8, TranslationJobType(translator, translator.search))
    batcher.submit(jobs)
    for job in jobs:
        job.future.result(60)
    batcher.close()
    assert batcher.batches > 1


def test_short_texts_run_in_the_order_in_which_they_arrived(translator: Translator) -> None:
    batcher = Batcher(max_delay=0.0, budget=1)  # one text per batch
    finished = list[str]()
    texts = ["the old dog runs.", "a dog", "the cat sees.", "dogs"]
    jobs = pieces(texts, TranslationJobType(translator, translator.search))
    for job in jobs:
        job.future.add_done_callback(partial(lambda text, _: finished.append(text), job.text))
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    batcher.close()
    assert finished == texts


def test_threads_share_what_is_queued_while_one_of_them_is_busy(translator: Translator) -> None:
    batcher = Batcher(max_delay=0.0, budget=4096, threads=2)
    release = hold(batcher)
    jobs = pieces(["a dog"] * 8, TranslationJobType(translator, translator.search))
    batcher.submit(jobs)
    for job in jobs:
        job.future.result(60)
    assert batcher.batches == 4  # of 4, 2, 1 and 1: the other thread could have had the rest at any time
    release()
    batcher.close()


def test_small_models_in_compiled_code_run_in_a_thread_per_core(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_module, "max_threads", lambda: 3)
    served = [ServedTranslator(tmp_path, "en", "de", translator, {})]
    is_compiled = translator.backend.choice.backend == "cpu"
    assert models_module.inference_threads(served) == (3 if is_compiled else 1)
    monkeypatch.setattr(models_module, "_SMALL_MODEL", 10)
    assert models_module.inference_threads(served) == 1


def test_where_one_of_several_threads_is_killed_the_others_end_too() -> None:
    batcher = Batcher(max_delay=0.0, budget=4096, threads=2)
    ending = Job[object](CancelToken(), 1, call=lambda _: sys.exit())
    batcher.submit([ending])
    with pytest.raises(ThreadEndedError, match="an inference thread has ended"):
        ending.future.result(60)
    for thread in batcher._threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in batcher._threads)


def test_classification_is_batched_across_requests(batcher: Batcher, tmp_path: Path) -> None:
    classifier = Classifier.open(make_lm_or_classifier(tmp_path / "c", "classify"))
    texts = [f"{number} dogs" for number in range(40)]
    jobs = pieces(texts, ClassificationJobType(classifier, TOKENIZER))
    release, before = hold(batcher), batcher.batches
    batcher.submit(jobs)
    release()
    probabilities = [job.future.result(60).probabilities for job in jobs]  # type: ignore[attr-defined]
    assert batcher.batches - before == 1
    for batched, single in zip(probabilities, classifier.classify(texts), strict=True):
        assert batched == pytest.approx(single.probabilities, abs=1e-5)


def test_generation_is_batched_and_cancelling_one_text_does_not_change_the_others(
    batcher: Batcher, tmp_path: Path
) -> None:
    generator = Generator.open(make_lm_or_classifier(tmp_path / "lm", "language-model", ends=False))
    search = SearchConfig(beam=1, max_length=40)
    prompts = ["The cat", "A dog runs", "1"]
    expected = [generation.text for (generation,) in generator.generate(prompts, search)]
    rows: list[int] = []
    going, step = CancelToken(), generator.model.step

    def counted(ids: torch.Tensor, *arguments: object, **more: object) -> object:
        rows.append(len(ids))
        going.cancelled = len(rows) > 15
        return step(ids, *arguments, **more)  # type: ignore[arg-type]

    generator.model.step = counted  # type: ignore[method-assign, assignment]
    cancel_tokens = [CancelToken(), going, CancelToken()]
    jobs: list[Job[object]] = [
        Job(cancel_token, 40, GenerationJobType(generator, search), prompt)
        for cancel_token, prompt in zip(cancel_tokens, prompts, strict=True)
    ]
    release = hold(batcher)
    batcher.submit(jobs)
    release()
    assert [jobs[n].future.result(60).text for n in (0, 2)] == [expected[0], expected[2]]  # type: ignore[attr-defined]
    assert rows[:15] == [3] * 15
    assert rows[20:] == [2] * len(rows[20:])


def test_sampling_is_never_batched(batcher: Batcher, tmp_path: Path) -> None:
    generator = Generator.open(make_lm_or_classifier(tmp_path / "lm", "language-model"))
    search = SearchConfig(beam=1, sample=True, seed=3, temperature=5.0, max_length=30)
    jobs: list[Job[object]] = [Job(CancelToken(), 30, GenerationJobType(generator, search), "A dog") for _ in range(3)]
    release, before = hold(batcher), batcher.batches
    batcher.submit(jobs)
    release()
    assert len({job.future.result(60).text for job in jobs}) == 1  # type: ignore[attr-defined]
    assert batcher.batches - before == 3
