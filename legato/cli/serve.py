"""`legato serve`: HTTP and WebSocket server for one or several models.

Loads the models, serves them until a signal arrives, and configures request logging to standard error.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import threading
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from legato.cli.json_log import log_as_json
from legato.cli.loading import load_engine
from legato.cli.model_options import (
    EngineOptions,
    ModelOptions,
    cuda_graphs_option,
    deterministic_option,
    max_num_seqs_option,
    max_queue_option,
    max_seq_len_option,
    models_options,
    yield_option,
)
from legato.cli.serve_options import ServeOptions, serve_options
from legato.cli.terminal import note
from legato.errors import UnsupportedError

if TYPE_CHECKING:
    from legato.api import Legato
    from legato.config.server import ServerConfig

EXIT_OK = 0
EXIT_CUT = 3
"""Exit code if streams or requests were aborted at shutdown."""
EXIT_ENGINE = 70
"""Exit code if the engine is stuck or dead (EX_SOFTWARE of sysexits.h)."""

_WORKERS_S = 2.0

SERVER_PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")

EPILOG = """\b
Examples:
  legato serve
  legato serve --max-num-seqs 4 --port 9000
  LEGATO_API_KEY=secret legato serve --host 0.0.0.0
  legato serve -m Qwen/Qwen3-TTS-12Hz-0.6B-Base --voices ./voices
  legato serve -m embedded -m Qwen/Qwen3-TTS-12Hz-0.6B-Base --name small --name large
  curl http://127.0.0.1:8000/v1/audio/speech -H 'Content-Type: application/json' \\
    -d '{"model": "tts-1", "input": "Hello.", "voice": "alloy"}' -o hello.mp3

With several models, each request selects one by its id ("model"); the first is the default. Each has its own engine.

Works with every client of the OpenAI speech API; docs/server.md has examples. The API reference is at /docs. Each
request is logged as one line on standard error. SIGTERM and Ctrl-C let active streams finish (--drain-s).

Exit codes: 0 all streams finished, 3 streams were aborted at shutdown, 70 the engine was stuck or dead (--watchdog-s).
"""


def require_server(feature: str, *more: str) -> None:
    """Raise `UnsupportedError` with the remedy if a package of the server, or one of `more`, is not installed."""
    missing = [name for name in (*SERVER_PACKAGES, *more) if find_spec(name) is None]
    if missing:
        raise UnsupportedError(f'{feature} requires {", ".join(missing)}: pip install ".[server]"')


@click.command(epilog=EPILOG, short_help="Serve the OpenAI speech API and other protocols.")
@serve_options
@max_num_seqs_option(1, help_text="Maximum number of streams generated at the same time.")
@max_queue_option(64)
@yield_option
@max_seq_len_option(2048)
@models_options
@deterministic_option
@cuda_graphs_option
def serve(
    options: ServeOptions,
    max_num_seqs: int,
    max_queue: int,
    yield_s: float,
    max_seq_len: int,
    models: list[ModelOptions],
    deterministic: bool,
    cuda_graphs: bool,
) -> int:
    """Serve one or several models over HTTP and WebSockets until stopped."""
    require_server("legato serve")
    ids = options.model_ids([model.model for model in models])
    config = options.config(ids[0])
    for name in ("legato.server", "legato.engine"):  # requests, and the memory the engine allocates
        logging.getLogger(name).setLevel(logging.INFO)
    if options.log_format == "json":
        log_as_json()
    _warn_if_open(config)
    engine_options = EngineOptions(
        max_num_seqs=max_num_seqs,
        max_seq_len=max_seq_len,
        max_queue=max_queue,
        yield_s=yield_s,
        deterministic=deterministic,
        cuda_graphs=cuda_graphs,
    )
    engines: dict[str, Legato] = {}
    stopped = True
    try:
        for model_id, model in zip(ids, models, strict=True):
            engines[model_id] = load_engine(model, engine_options)
        cut = _listen(engines, config)
    finally:
        for tts in engines.values():
            stopped = tts.close() and stopped
    code = EXIT_CUT if cut else EXIT_OK
    if cut:
        note(f"{cut} streams or requests did not finish within --drain-s")
    if not stopped or _has_stuck_worker():
        note("a thread does not stop; ending the process without it")
        end_process(code if stopped else EXIT_ENGINE)
    return code


def _warn_if_open(config: ServerConfig) -> None:
    """Warn if other machines can use the server without a key."""
    if not is_loopback(config.host) and not config.api_key and config.api_keys_file is None:
        note(f"warning: everyone who can reach {config.host} can use this server: set an API key (docs/expose.md)")
    if config.wyoming_port is not None and not is_loopback(config.wyoming_host):
        note(f"warning: everyone who can reach {config.wyoming_host} can use Wyoming, which has no keys")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(engines: dict[str, Legato], config: ServerConfig) -> int:
    """Serve until a signal arrives. Returns the number of streams and requests that were aborted."""
    from legato.server.app import create_app
    from legato.server.uvicorn_server import serve as listen
    from legato.server.watchdog import Watchdog

    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "https" if config.ssl_certfile else "http"
    app = create_app(engines, config)
    # The objects of the models live as long as the process. Without this, a request that makes many objects would start
    # a collection of all of them, which takes some 300 ms and stops every thread.
    gc.collect()
    gc.freeze()
    state = app.state.legato
    with Watchdog(lambda: state.engine_fault, config.watchdog_s, end_process=lambda: end_process(EXIT_ENGINE)):
        return listen(
            app,
            config,
            on_listening=lambda port: note(
                f"listening on {scheme}://{host}:{port} (API reference: /docs); Ctrl-C stops"
            ),
        )


def _has_stuck_worker() -> bool:
    """Whether a worker thread still runs after a short wait. Python would wait for it forever at exit."""
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("legato-server")]
    end_s = time.monotonic() + _WORKERS_S
    for worker in workers:
        worker.join(max(0.0, end_s - time.monotonic()))
    return any(worker.is_alive() for worker in workers)


def end_process(code: int) -> None:
    """End the process without waiting for any thread."""
    logging.shutdown()
    os._exit(code)
