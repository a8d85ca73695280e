"""The thread pool of the kernels: its C tests with 1, 2 and 3 threads, and all kernels with 1, 2 and 3 threads."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from legato.backends.base import FrameInputs
from legato.backends.cpu.backend import CpuBackend
from legato.backends.cpu.codec import pack_decoder
from legato.backends.cpu.lm import NativeLayers, native_linear
from legato.kernels.build import FOLDER, THIS_CPU, Unavailable
from legato.kernels.codec_library import CodecLibrary, codec_library
from legato.kernels.library import Library, library
from legato.kernels.threads import set_num_threads
from legato.models.sampling import SamplingRows
from legato.models.talker.state import KVRows, TalkerCache
from legato.types import SamplingParams
from legato.weights.loading import load_model
from legato.weights.quantized_linear import Int4Linear, Int8Linear, to_int4, to_int8
from tests.conftest import TinyCheckpoint
from tests.models.codec.tiny_codec import DECODER, tiny_decoder

COMPILER = shutil.which("cc")
FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{FOLDER}")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    set_num_threads(None)


@pytest.fixture(scope="module")
def pool_test(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("pool") / "pool_test"
    sources = [str(Path(__file__).with_name("pool_test.c")), str(FOLDER / "thread_pool.c")]
    subprocess.run([COMPILER, *FLAGS, *sources, "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_pool(pool_test: Path, threads: int) -> None:
    done = subprocess.run([pool_test, str(threads)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


# --- kernels ---------------------------------------------------------------------------------------------------------

# With `SPLIT_ALL` every phase is split into single units, so that tiny models run on several threads, too.
SPLIT = library(THIS_CPU, "SPLIT_ALL")
SPLIT_CODEC = codec_library(THIS_CPU, "SPLIT_ALL")
needs_kernels = pytest.mark.skipif(isinstance(SPLIT, Unavailable), reason="no kernels on this machine")
REPETITIONS = 10

MATRICES: dict[str, Callable[[Tensor], Int8Linear | Int4Linear | nn.Linear]] = {
    "int8": lambda weight: to_int8(weight, None),
    "int4": to_int4,
    "bfloat16": lambda weight: dense(weight.bfloat16()),
    "float32": lambda weight: dense(weight),
}


def dense(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight
    return linear


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_threads(compute: Callable[[], Tensor]) -> None:
    """The result has the same bits with 1, 2 and 3 threads."""
    set_num_threads(1)
    with torch.inference_mode():
        alone = compute()
        for threads in (2, 3):
            set_num_threads(threads)
            for _ in range(REPETITIONS):
                assert torch.equal(compute(), alone)


@needs_kernels
@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_linears_have_the_same_bits_with_any_number_of_threads(kind: str, rows: int) -> None:
    assert isinstance(SPLIT, Library)
    linear, x = native_linear(MATRICES[kind](random(701, 256)), SPLIT), random(rows, 256, seed=1)
    check_threads(lambda: linear(x))


@pytest.fixture(scope="module", params=["int8", "none"])
def backend(request: pytest.FixtureRequest, tiny_checkpoint: TinyCheckpoint) -> CpuBackend:
    model = load_model(tiny_checkpoint("tiny-custom-voice"), quant=request.param)
    backend = CpuBackend(model, SPLIT, SPLIT_CODEC)
    assert isinstance(backend.talker.model.layers, NativeLayers)
    return backend


@needs_kernels
@pytest.mark.parametrize("rows", [1, 3])
def test_layers_have_the_same_bits_with_any_number_of_threads(backend: CpuBackend, rows: int) -> None:
    """A prefill of 30 positions and three steps, for every row."""
    stack = backend.talker.config.stack
    x, slots, start = random(rows, 33, stack.hidden_size), KVRows.of(list(range(rows))), torch.zeros(rows).long()

    def hidden() -> Tensor:
        cache, parts = TalkerCache.allocate(stack, rows, 33, torch.float32), []
        for begin, end in ((0, 30), (30, 31), (31, 32), (32, 33)):
            parts.append(backend.talker.forward_all(cache, slots, x[:, begin:end], start + begin))
        return torch.cat(parts, dim=1)

    check_threads(hidden)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 5])
def test_frames_have_the_same_codes_with_any_number_of_threads(backend: CpuBackend, rows: int) -> None:
    config = backend.model.config.code_predictor
    source = torch.Generator().manual_seed(4)
    settings = SamplingRows.of([SamplingParams(0.9, 50, 1.0, 1.05, 0.9, 20, 0.95)] * rows).residual
    inputs = FrameInputs(
        random(rows, backend.model.config.talker.stack.hidden_size),
        torch.randint(0, config.codebook_size, (rows,), generator=source),
        settings.temperature,
        settings.top_k,
        settings.top_p,
        torch.rand(rows, config.num_codebooks, dtype=torch.float64, generator=source),
    )
    check_threads(lambda: backend.predict_frame(inputs).codes)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
def test_codec_has_the_same_bits_with_any_number_of_threads(dtype: torch.dtype, rows: int) -> None:
    assert isinstance(SPLIT_CODEC, CodecLibrary)
    decoder = pack_decoder(tiny_decoder(DECODER, dtype=dtype), SPLIT_CODEC)
    source = torch.Generator().manual_seed(rows)
    codes = torch.randint(DECODER.codebook_size, (rows, 12, DECODER.num_quantizers), generator=source)

    def samples() -> Tensor:
        history, parts = decoder.initial_history(rows), []
        for window in torch.split(codes, 4, dim=1):
            part, history = decoder(history, window)
            parts.append(part)
        return torch.cat(parts, dim=1)

    check_threads(samples)
