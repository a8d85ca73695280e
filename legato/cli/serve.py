"""`legato serve`: the model behind HTTP and WebSockets until a signal comes.

Owns the model and the listening server from start to end, and the logging of requests to standard error.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.util import find_spec

import click

from legato.cli.model_options import (
    ModelChoice,
    compute_options,
    deterministic_option,
    graphs_option,
    load_chosen,
    model_option,
    quant_option,
)
from legato.cli.serve_options import ServeOptions, serve_options
from legato.cli.terminal import note
from legato.errors import UnsupportedError

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")

EPILOG = """\b
Examples:
  legato serve
  legato serve --slots 4 --port 9000
  LEGATO_API_KEY=secret legato serve --host 0.0.0.0
  legato serve -m Qwen/Qwen3-TTS-12Hz-0.6B-Base --voices ./voices
  curl http://127.0.0.1:8000/v1/audio/speech -H 'Content-Type: application/json' \\
    -d '{"model": "tts-1", "input": "Hello.", "voice": "alloy"}' -o hello.mp3

Clients: anything that speaks OpenAI's speech API; docs/server.md has an example for each. API pages are at /docs.
One line a request goes to standard error. SIGTERM and Ctrl-C let streams under way end.
"""


def require_server(what: str, *more: str) -> None:
    """`UnsupportedError`, which says how to get it, where a package of the server (or of `more`) is not installed."""
    missing = [name for name in (*NEEDED, *more) if find_spec(name) is None]
    if missing:
        raise UnsupportedError(f"{what} needs {', '.join(missing)}: pip install 'legato-tts[server]'")


@click.command(epilog=EPILOG, short_help="Speak for other programs: OpenAI's speech API and more, over HTTP.")
@serve_options
@click.option("--slots", default=1, show_default=True, type=click.IntRange(1), help="Streams that speak at once.")
@click.option(
    "--queue", default=64, show_default=True, type=click.IntRange(1), help="Streams that may wait for a slot."
)
@click.option(
    "--positions", default=2048, show_default=True, type=click.IntRange(16), help="Prompt and frames of a sequence."
)
@model_option
@compute_options
@quant_option
@deterministic_option
@graphs_option
def serve(
    options: ServeOptions,
    slots: int,
    queue: int,
    positions: int,
    model: str,
    device: str,
    dtype: str,
    codec_dtype: str,
    threads: int | None,
    quant: str,
    deterministic: bool,
    graphs: bool,
) -> int:
    """Serve speech over HTTP until stopped."""
    require_server("legato serve")
    config = options.config(model)
    for name in ("legato.server", "legato.engine"):  # the engine says once what its limits cost
        logging.getLogger(name).setLevel(logging.INFO)
    how = ModelChoice(model, device, dtype, codec_dtype, threads or 0, slots, positions, queue, quant, deterministic)
    with load_chosen(replace(how, graphs=graphs)) as tts:
        from legato.server.app import create_app
        from legato.server.run import serve as listen

        host = f"[{config.host}]" if ":" in config.host else config.host
        listen(
            create_app(tts, config),
            config,
            listening=lambda port: note(f"listening on http://{host}:{port} (a page; API: /docs); Ctrl-C stops"),
        )
    return 0
