"""`heed serve`: serves models over HTTP.

Enters: model folders, an address, API keys, settings. Leaves: an exit code when the server ends. This process answers
HTTP and imports no torch; a worker process, forked before, runs the models.
"""

import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from heed.cli.options import from_options
from heed.errors import ConfigError
from heed.interop.engine_names import EngineName
from heed.search_config import SearchConfig
from heed.serving.config import LOOPBACK, ServeConfig
from heed.settings import format_setting

EPILOG = "\n\n".join(
    (
        "Settings for --set, with their defaults:",
        *(
            f"serve.{name}={format_setting(field.default)}  {field.description}"
            for name, field in ServeConfig.model_fields.items()
            if name not in ("host", "port")
        ),
    )
)


def serve(
    models: Annotated[list[Path] | None, typer.Argument(metavar="MODEL...", help="Model folders to serve.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free port; default: 8080.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: 127.0.0.1, which only this machine can reach.")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="File of hashed API keys; requests then need a key.")] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Create a key, add its hash to --keys and print the key.")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow requests from other hosts without keys.")] = False,
    languages: Annotated[
        list[str],
        typer.Option(
            help="Language pair of a translation model, such as en-de; once per model; default: from its folder."
        ),
    ] = [],
    engine: Annotated[
        EngineName | None,
        typer.Option(help="Inference engine; default: heed, in int8 if the folder is quantised."),
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="A server or decoding setting, such as serve.queue=64 or search.beam=1.")
    ] = [],
) -> None:
    """Serve models over HTTP, with a LibreTranslate-compatible API and a web page."""
    if new_key:
        _make_key(keys)
        return
    if not models:
        raise ConfigError("heed serve needs a model folder: heed serve runs/ende")
    settings, search = _settings(set_, {"port": port, "host": host})
    exposed_by = f"--host {settings.host}" if settings.host not in LOOPBACK else ""
    if set(settings.allowed_hosts) - LOOPBACK:
        exposed_by = exposed_by or f"serve.allowed_hosts={','.join(settings.allowed_hosts)}"
    if exposed_by and keys is None and not insecure:
        raise ConfigError(
            f"{exposed_by} allows requests from other hosts: require API keys (heed serve --new-key --keys keys.txt, "
            "then --keys keys.txt), or add --insecure"
        )
    sys.exit(_serve(models, languages, settings, search, keys, engine))


def _make_key(keys: Path | None) -> None:
    from heed.serving.limits import add_key  # noqa: PLC0415 - only this verb serves

    if keys is None:
        raise ConfigError("--new-key needs a file for the key's hash: heed serve --new-key --keys keys.txt")
    typer.echo(add_key(keys))
    typer.echo(f"its hash is in {keys}; the key itself is stored nowhere: note it now", err=True)


def _settings(set_options: list[str], options: dict[str, Any]) -> tuple[ServeConfig, dict[str, Any]]:
    sections = from_options(set_options)
    for section in sections:
        if section not in ("serve", "search"):
            raise ConfigError(
                f"--set {section}.…: only serve and search settings are allowed here, such as serve.queue=64"
            )
    search = sections.get("search", {})
    SearchConfig.model_validate({"beam": search.get("nbest", 1)} | search)
    server = sections.get("serve", {}) | {name: value for name, value in options.items() if value is not None}
    return ServeConfig.model_validate(server), search


def _serve(
    models: list[Path],
    languages: list[str],
    settings: ServeConfig,
    search: dict[str, Any],
    keys: Path | None,
    engine: EngineName | None,
) -> int:
    if not hasattr(os, "fork"):
        raise ConfigError("heed serve needs fork(), which Linux and macOS have; on Windows, use WSL")
    from heed.serving.limits import ApiKeys  # noqa: PLC0415
    from heed.serving.metrics import RequestMetrics  # noqa: PLC0415
    from heed.serving.processes import ForkServer, exclude_from_collections  # noqa: PLC0415
    from heed.serving.quick_refusals import QuickRefusals  # noqa: PLC0415 - slow to import
    from heed.serving.security_middleware import HeadCheck, check_addresses, with_middleware  # noqa: PLC0415
    from heed.serving.server import bind, run  # noqa: PLC0415
    from heed.serving.worker_proxy import WorkerProxy  # noqa: PLC0415

    check_addresses(settings)
    api_keys = None if keys is None else ApiKeys(keys)
    if api_keys is not None and not api_keys:
        raise ConfigError(f"{keys} has no keys: create one with heed serve --new-key --keys {keys}")
    fork_server = ForkServer(partial(_run_worker, models, languages, settings, search, engine, api_keys is not None))
    listening = bind(settings)  # after the fork, so that the worker does not inherit the socket and hold the port
    worker = WorkerProxy(fork_server.start, settings)
    notes = worker.open()
    exclude_from_collections()
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    metrics = RequestMetrics()
    return run(
        with_middleware(worker, settings, api_keys, worker.admission.rejection, metrics),
        worker.admission,
        QuickRefusals(worker.admission, HeadCheck.of(settings), metrics),
        settings,
        listening,
        lambda: typer.echo("\n".join((f"heed serves on {address}", *notes)), err=True),
    )


def _run_worker(
    models: list[Path],
    languages: list[str],
    settings: ServeConfig,
    search: dict[str, Any],
    engine: EngineName | None,
    key_required: bool,
    connection: socket.socket,
) -> None:
    """The main function of the worker process."""
    from heed.inference.open import load  # noqa: PLC0415 - torch is for this process alone
    from heed.serving.worker import run_worker  # noqa: PLC0415

    open_model = partial(load, engine=engine)
    run_worker(connection, models, languages, settings, search, open_model, key_required=key_required)
