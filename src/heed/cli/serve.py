"""`heed serve`: model folders behind an HTTP server.

Enters: folders, an address, API keys, settings. Leaves: an exit code when the server ends. This process answers HTTP
and imports no torch; a second one, forked before, translates.
"""

import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from heed.cli.options import from_options
from heed.config import SearchConfig
from heed.errors import ConfigError
from heed.interop.engine_names import EngineName
from heed.serving.config import LOOPBACK, ServeConfig

EPILOG = "\n\n".join(
    (
        "Settings, with --set:",
        *(
            f"serve.{name}={field.default}  {field.description}"
            for name, field in ServeConfig.model_fields.items()
            if name not in ("host", "port")
        ),
    )
)


def serve(
    models: Annotated[list[Path] | None, typer.Argument(metavar="MODEL...", help="Model folders to serve.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0: any free one.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on; default: this machine only.")] = None,
    keys: Annotated[Path | None, typer.Option(help="A file of hashed API keys; requests then need a key.")] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make a key, add its hash to --keys and print the key.")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve other machines without keys.")] = False,
    languages: Annotated[
        list[str],
        typer.Option(help="What a model translates, such as en-de, where its card does not say; once for each."),
    ] = [],
    engine: Annotated[
        EngineName | None,
        typer.Option(help="What translates; by default heed, in int8 where the folder is quantised."),
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="A setting of server or search: serve.queue=64, search.beam=1.")
    ] = [],
) -> None:
    """Serve models over HTTP: translation by LibreTranslate's interface, and all else by our own."""
    if new_key:
        _make_key(keys)
        return
    if not models:
        raise ConfigError("heed serve needs a model folder: heed serve runs/ende")
    settings, search = _settings(set_, {"port": port, "host": host})
    lets_in = f"--host {settings.host}" if settings.host not in LOOPBACK else ""
    if set(settings.allowed_hosts) - LOOPBACK:
        lets_in = lets_in or f"serve.allowed_hosts={','.join(settings.allowed_hosts)}"
    if lets_in and keys is None and not insecure:
        raise ConfigError(
            f"{lets_in} lets others in: ask for keys (heed serve --new-key --keys keys.txt, then "
            "--keys keys.txt), or add --insecure"
        )
    sys.exit(_serve(models, languages, settings, search, keys, engine))


def _make_key(keys: Path | None) -> None:
    from heed.serving.limits import add_key  # noqa: PLC0415 - no verb but this one serves

    if keys is None:
        raise ConfigError("--new-key needs a file to add the key's hash to: heed serve --new-key --keys keys.txt")
    typer.echo(add_key(keys))
    typer.echo(f"its hash is in {keys}; the key itself is kept nowhere: note it now", err=True)


def _settings(options: list[str], named: dict[str, Any]) -> tuple[ServeConfig, dict[str, Any]]:
    given = from_options(options)
    for section in given:
        if section not in ("serve", "search"):
            raise ConfigError(f"--set {section}.…: only serve and search can be set here, such as serve.queue=64")
    search = given.get("search", {})
    SearchConfig.model_validate({"beam": search.get("nbest", 1)} | search)
    server = given.get("serve", {}) | {name: value for name, value in named.items() if value is not None}
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
        raise ConfigError("heed serve needs a system that forks processes, such as Linux or macOS; on Windows, use WSL")
    from heed.serving.limits import ApiKeys  # noqa: PLC0415
    from heed.serving.processes import ForkServer  # noqa: PLC0415
    from heed.serving.security_middleware import check_addresses, with_middleware  # noqa: PLC0415 - slow to import
    from heed.serving.server import bind, run  # noqa: PLC0415
    from heed.serving.worker_proxy import WorkerProxy  # noqa: PLC0415

    check_addresses(settings)
    known = None if keys is None else ApiKeys(keys)
    if known is not None and not known:
        raise ConfigError(f"{keys} has no keys: make one with heed serve --new-key --keys {keys}")
    fork_server = ForkServer(partial(_translate, models, languages, settings, search, engine, known is not None))
    listening = bind(settings)  # after the fork: a port must not stay taken by a process that outlives this one
    worker = WorkerProxy(fork_server.start, settings)
    notes = worker.open()
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return run(
        with_middleware(worker, settings, known, worker.admission.rejection),
        worker.admission,
        settings,
        listening,
        lambda: typer.echo("\n".join((f"heed serves on {address}", *notes)), err=True),
    )


def _translate(
    models: list[Path],
    languages: list[str],
    settings: ServeConfig,
    search: dict[str, Any],
    engine: EngineName | None,
    key_required: bool,
    connection: socket.socket,
) -> None:
    """The main function of the process that translates."""
    from heed.inference.open import load  # noqa: PLC0415 - torch is for this process alone
    from heed.serving.worker import run_worker  # noqa: PLC0415

    open_model = partial(load, engine=engine)
    run_worker(connection, models, languages, settings, search, open_model, key_required=key_required)
