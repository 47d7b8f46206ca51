"""Starting a server: valid and invalid arguments, addresses, notes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heed import load
from heed.cli.serve import serve
from heed.errors import ConfigError
from tests.cli.command import ONE_THREAD, heed
from tests.serving.folders import make_folder
from tests.serving.running import CLIENT, Running, refused, serving, wait_until


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "heed serve needs a model folder: heed serve runs/ende"),
        (["{ende}", "--host", "::"], "--host :: allows requests from other hosts: require API keys"),
        (["{ende}", "--set", "serve.que=3"], "unknown setting 'que' in ServeConfig: did you mean 'queue'?"),
        (["{ende}", "--set", "serve.queue=0"], "queue = 0: input should be greater than 0"),
        (["{ende}", "--set", "model.norm=pre"], "--set model.…: only serve and search settings are allowed here"),
        (["--new-key"], "--new-key needs a file for the key's hash"),
        (["nothing"], "nothing does not exist: expected a model folder"),
    ],
)
def test_invalid_serve_arguments_say_why(folders: tuple[Path, Path], arguments: list[str], error: str) -> None:
    code, message = refused(*(argument.replace("{ende}", str(folders[0])) for argument in arguments))
    assert code == 2
    assert message.startswith("error: ")
    assert error in message


def test_a_server_says_which_backend_runs_and_why(server: Running, folders: tuple[Path, Path]) -> None:
    choices = {folder.name: load(folder).backend.choice for folder in folders}
    assert server.get("/health/ready").json()["backends"] == {name: str(choice) for name, choice in choices.items()}
    for name, choice in choices.items():
        assert choice.reason
        assert f"{name}: {choice}\n" in server.stderr_text()


def test_serving_without_fork_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ConfigError, match=r"heed serve needs fork\(\), which Linux and macOS have"):
        serve([Path("nothing")])


def test_a_model_that_does_not_name_its_languages_is_served_with_a_note(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "nameless", "", "")
    with serving(folder) as running:
        assert (
            f"{folder} does not name its languages: served as 'source' and 'target'; name them with --languages"
            in running.stderr_text()
        )
        assert running.post("/translate", q="A dog", source="source", target="target").status_code == 200


def test_a_port_in_use_is_an_error_that_names_it(server: Running, folders: tuple[Path, Path]) -> None:
    port = server.address.rsplit(":", 1)[1]
    code, message = refused(folders[0], "--port", port)
    assert code == 2
    assert message == f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port\n"


def test_a_new_key_is_printed_and_accepted(folders: tuple[Path, Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    process = heed("serve", "--new-key", "--keys", str(keys))
    with serving(folders[0], "--keys", keys) as server:
        answer = server.post("/translate", q="A dog", source="en", target="de", api_key=process.stdout.strip())
        assert answer.status_code == 200


def test_another_host_needs_keys_or_insecure(folders: tuple[Path, Path]) -> None:
    code, message = refused(folders[0], "--host", "127.0.0.2", "--port", "0")
    assert (code, message.startswith("error: --host 127.0.0.2 allows requests from other hosts: require API keys")) == (
        2,
        True,
    )
    with serving(folders[0], "--host", "127.0.0.2", "--insecure") as server:
        assert server.address.startswith("http://127.0.0.2:")
        response = CLIENT.get(f"{server.address}/health", headers={"Host": "translate.example"})
        assert response.status_code == 200


def test_without_a_host_the_server_listens_on_loopback(server: Running) -> None:
    assert server.address.startswith("http://127.0.0.1:")


# Reports outgoing connections and new processes by Python's audit events (PEP 578).
WATCH = """
import sys
def note(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request",
                 "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        print("OUTGOING", event, arguments, file=sys.stderr, flush=True)
sys.addaudithook(note)
from heed.cli.main import main
main()
"""


def test_the_server_opens_no_outgoing_connection(folders: tuple[Path, Path], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as errors:
        command = [sys.executable, "-c", WATCH, "serve", *map(str, folders), "--port", "0"]
        process = subprocess.Popen(command, stderr=errors, stdout=errors, env=ONE_THREAD)
    try:
        wait_until(lambda: "serves on" in log.read_text() or process.poll() is not None, "a first line")
        address = next(line.split()[3] for line in log.read_text().splitlines() if line.startswith("heed serves on"))
        fields = {"q": "A dog", "source": "auto", "target": "de"}
        for route in ("/translate", "/detect", "/translate/stream", "/alternatives", "/look", "/suggest"):
            assert CLIENT.post(address + route, json=fields).status_code in (200, 403), route
        for route in ("/", "/docs", "/spec", "/metrics", "/models", "/health/ready", "/frontend/settings"):
            assert CLIENT.get(address + route).status_code == 200, route
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)
    assert "OUTGOING" not in log.read_text()
