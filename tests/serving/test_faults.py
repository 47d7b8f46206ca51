"""Models and threads that break while they are served: whoever asks is told, and nobody waits for ever."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from heed import ServeConfig
from heed.errors import ConfigError
from heed.serving.admission import HungUpError
from heed.serving.batcher import Job, Ticket, WorkerGoneError
from heed.serving.health import Health
from heed.serving.models import Directions, open_served
from heed.serving.problems import Problem
from heed.serving.schemas import Translate
from heed.serving.service import Service
from tests.serving.folders import make_folder
from tests.serving.running import CLIENT, serving

ASKED = Translate(q="A dog", source="en", target="de")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(Directions(open_served([make_folder(tmp_path / "ende")], [], {})), ServeConfig(deadline=5))
    yield made
    if made.batcher.alive:
        made.close()


def test_all_is_well(service: Service) -> None:
    assert asyncio.run(Health(service).look()) is None


def test_weights_that_turn_to_nan_are_noticed_and_no_translation_is_made_up(service: Service) -> None:
    with torch.no_grad():
        next(service.directions.served[0].translator.model.parameters()).fill_(float("nan"))
    problem = asyncio.run(Health(service).look())
    assert problem == "ende gives nan for a log-probability: its weights are damaged"
    with pytest.raises(Exception, match="the model gives nan"):
        asyncio.run(service.translate(ASKED, Ticket()))


def test_a_folder_that_is_gone_is_noticed(service: Service) -> None:
    shutil.rmtree(service.directions.served[0].path)
    assert asyncio.run(Health(service).look()) == "The folder of ende is gone"
    (answer,) = asyncio.run(service.translate(ASKED, Ticket()))  # what is in memory still works
    assert answer.text


def test_a_thread_that_has_ended_is_noticed(service: Service) -> None:
    def end(_: object) -> None:
        raise SystemExit

    service.batcher.submit([Job(Ticket(), 1, errand=end)])
    service.batcher._thread.join(10)
    health = Health(service)
    assert asyncio.run(health.look()) == "The thread that translates has ended"
    assert health.problem == "The thread that translates has ended"
    with pytest.raises(WorkerGoneError, match="the thread that translates has ended"):
        asyncio.run(service.translate(ASKED, Ticket()))


def test_a_server_with_damaged_weights_says_so_in_its_answers(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "broken", broken=True)
    with serving(folder) as server:
        answer = server.post("/translate", q="A dog", source="en", target="de")
        assert (answer.status_code, answer.json()) == (500, {"error": "Internal server error"})
        ready = server.get("/health/ready")
        assert (ready.status_code, ready.json()["error"]) == (
            503,
            "broken gives nan for a log-probability: its weights are damaged",
        )
        assert server.get("/health").status_code == 503


def test_what_is_logged_is_the_defect_and_never_a_text(tmp_path: Path) -> None:
    broken = make_folder(tmp_path / "broken", broken=True)
    with serving(broken) as server:
        for content_type in ("multipart/form-data; boundary=x", "application/json"):
            CLIENT.post(f"{server.address}/translate", content=b"SECRET", headers={"Content-Type": content_type})
        assert server.post("/translate", q="SECRET", source="en", target="de").status_code == 500
        assert server.end() == 0
        said = server.errors.read()
    assert "a request failed: POST" in said
    assert "InputError (message left out: it may quote a text)" in said
    assert "SECRET" not in said


def test_a_log_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    broken = make_folder(tmp_path / "broken", broken=True)
    with serving(broken) as server:  # its standard error is a pipe with room for 64 KiB, and each defect takes 6
        for _ in range(150):
            assert server.post("/translate", q="A dog", source="en", target="de").status_code == 500
        assert server.end() == 0


def test_a_client_that_hangs_up_frees_its_place(service: Service) -> None:
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def never(ticket: Ticket) -> None:
        tickets.append(ticket)
        await asyncio.sleep(60)

    tickets: list[Ticket] = []
    with pytest.raises(HungUpError):
        asyncio.run(service.admission.work(gone, never))
    assert service.admission.taken == 0
    assert all(ticket.gone for ticket in tickets)


def test_folders_that_do_not_go_together_are_refused(folders: tuple[Path, Path]) -> None:
    ende, deen = folders
    with pytest.raises(ConfigError, match=f"{ende} and {ende} both translate en to de: serve one of them"):
        open_served([ende, ende], [], {})
    with pytest.raises(ConfigError, match="--languages en: expected two language codes; say which with --languages"):
        open_served([ende], ["en"], {})
    with pytest.raises(ConfigError, match="--languages is given 1 times for 2 models"):
        open_served([ende, deen], ["en-de"], {})
    (other,) = open_served([ende], ["xx-yy"], {"beam": 3})
    assert (other.source, other.target, other.translator.search.beam) == ("xx", "yy", 3)


def test_without_profiles_auto_is_refused_only_where_it_would_be_a_guess(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / name, name, "de") for name in ("xx", "yy")]
    one, both = (Service(Directions(open_served(folders[:count], [], {})), ServeConfig()) for count in (1, 2))
    assert one.route("hello", "xx", "de")[1] == ("xx", 100.0)
    assert one.directions.detect("hello", ["xx"]) == ("xx", 0.0)
    assert both.directions.detect("hello", ["xx", "yy"]) is None
    with pytest.raises(Problem, match="yy is not available as a target language from xx"):
        both.route("hello", "xx", "yy")
    one.close()
    both.close()
