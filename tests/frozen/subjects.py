"""All parts of the package that the recordings use. After a rename, only the imports of this file change.

The other files of `tests/frozen` use only the public API, HTTP and sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import numpy as np
import torch

import legato
from legato.backends.torch import TorchBackend
from legato.cli.main import legato as command_group
from legato.config.server import ServerConfig
from legato.server.app import create_app
from legato.verify.harness import SteppedEngine
from legato.verify.target import Depth, Target
from legato.weights.loading import load_model
from legato.weights.quantization import dequantized_copy
from legato.weights.random_checkpoint import write_checkpoint
from tests.server.running import Running, running, wait_for

Folder = Callable[[str], Path]
"""The folder of the tiny checkpoint of a kind; see `tests/conftest.py`."""

WEIGHT_NOISE = 1e-5
"""Relative change of all weights that must not change a recorded code. CPUs differ by less."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The codes of one utterance [T][Q] and its float samples."""

    codes: list[list[int]]
    samples: np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(slots=True)
class Subjects:
    """Tiny checkpoints, and two servers that start on first use."""

    folder: Folder
    stack: ExitStack
    _servers: dict[str, Running] = field(default_factory=dict)

    def voices_url(self) -> str:
        """The URL of a server for `tiny-custom-voice`, which has built-in voices."""
        config = ServerConfig(model_id="tiny", text_characters=5000)
        return self._server("tiny-custom-voice", config, positions=256).url

    def words_url(self) -> str:
        """The URL of a server for `tiny-embedded`, which supports word times."""
        return self._words_server().url

    def wyoming_port(self) -> int:
        """The Wyoming port of the server for `tiny-embedded`."""
        state = self._words_server().state
        wait_for(lambda: state.wyoming_port is not None)
        assert state.wyoming_port is not None
        return state.wyoming_port

    def openapi(self) -> dict[str, object]:
        """The OpenAPI document of the application."""
        with legato.load(self.folder("tiny-custom-voice")) as tts:
            return create_app(tts).openapi()

    def _words_server(self) -> Running:
        config = ServerConfig(model_id="tiny-embedded", warm_up=False, wyoming_port=0)
        return self._server("tiny-embedded", config, positions=512)

    def _server(self, kind: str, config: ServerConfig, *, positions: int) -> Running:
        if kind not in self._servers:
            tts = self.stack.enter_context(
                legato.load(self.folder(kind), max_num_seqs=2, max_queue=2, max_seq_len=positions)
            )
            self._servers[kind] = self.stack.enter_context(running(tts, config))
        return self._servers[kind]


@contextmanager
def subjects(folder: Folder) -> Iterator[Subjects]:
    """The subjects. Their servers stop at the end of the block."""
    with ExitStack() as stack:
        yield Subjects(folder, stack)


def write_tiny(kind: str, folder: Path) -> None:
    """Write the tiny checkpoint of a kind. Its weights are the same on every machine."""
    write_checkpoint(kind, folder)


def commands() -> click.Group:
    """The command group of the CLI."""
    return command_group


def generate(
    folder: Path, text: str, *, transcript: str, seed: int, frames: int, weight_noise: float = 0.0
) -> Generated:
    """Generate speech with the engine in float32. Base checkpoints clone a fixed recording.

    Runs in PyTorch, without Legato's kernels. `weight_noise`: standard deviation of a random relative change of every
    weight.
    """
    model = load_model(folder)
    if weight_noise:  # in float32: a small change of a bfloat16 weight would be rounded away, or to a large one
        model = replace(
            model, talker=dequantized_copy(model.talker), code_predictor=dequantized_copy(model.code_predictor)
        )
    modules = (model.talker, model.code_predictor, model.decoder, model.encoder, model.speaker_encoder, model.durations)
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        for parameter in (
            each for module in modules if weight_noise and module is not None for each in module.parameters()
        ):
            parameter.mul_(1 + weight_noise * torch.randn(parameter.shape, generator=generator))
        subject = Target.of(TorchBackend(model), Depth(), seed=0)
        rig = SteppedEngine(subject, subject.engine_config(max_num_seqs=1, deterministic=True))
        client = rig.submit(subject.request(seed, transcript=transcript, max_frames=frames), text)
        rig.run()
    outcome = rig.outcome(client)
    assert outcome.errors == ()
    return Generated([list(frame) for frame in outcome.codes], outcome.samples[0].numpy())
