"""The four kinds of state cannot be confused: mypy refuses it, and where a value exists, so does the code at run time.

mypy checks a file of wrong uses, in which each line must be an error, and a file of right uses without any.
"""

from __future__ import annotations

import gc
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from legato.config.model import TransformerConfig
from legato.engine.codec_state import CodecPool
from legato.engine.kv_cache import KVPool
from legato.errors import StateError
from legato.models.code_predictor import predict
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.models.talker.state import KVRows, TalkerCache, poison, require_kv_rows
from legato.types import SequenceId, StreamId

ROOT = Path(__file__).resolve().parent.parent

PRELUDE = """
from torch import Tensor
from legato.engine.codec_state import CodecPool
from legato.engine.kv_cache import KVPool
from legato.engine.leases import CodecLease, KVLease
from legato.types import SequenceId, StreamId
from legato.models.code_predictor.predict import _FrameScratch
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.models.talker.backbone import Talker
from legato.models.talker.state import KVRows, TalkerCache, poison

def uses(
    kv_pool: KVPool, codec_pool: CodecPool, storage: CodecStatePool, cache: TalkerCache, history: CodecHistory,
    kv_lease: KVLease, codec_lease: CodecLease, kv_rows: KVRows, codec_rows: CodecRows, scratch: _FrameScratch,
    sequence: SequenceId, stream: StreamId, session: str, index: Tensor, talker: Talker, decoder: CodecDecoder,
) -> None:
"""

WRONG = (
    # A sequence leases a KV slot, a stream leases a codec slot, a session (named by a string) neither.
    "kv_pool.acquire(stream)",
    "kv_pool.acquire(session)",
    "kv_pool.acquire(7)",
    "codec_pool.acquire(sequence)",
    "codec_pool.acquire(session)",
    "codec_pool.acquire(7)",
    # A lease is valid only for the pool that created it.
    "kv_pool.rows([codec_lease])",
    "kv_pool.release(codec_lease)",
    "codec_pool.gather([kv_lease])",
    "codec_pool.release(kv_lease)",
    # A bare number or index does not identify its pool.
    "kv_pool.rows([0])",
    "codec_pool.gather([0])",
    "storage.gather(index)",
    "poison(cache, index)",
    # Rows of one pool are not rows of the other.
    "storage.gather(kv_rows)",
    "storage.scatter(kv_rows, history)",
    "storage.reset(kv_rows)",
    "storage.restore(kv_rows, history)",
    "poison(cache, codec_rows)",
    "talker.forward(cache, codec_rows, index, starts=index)",
    "talker.forward(cache, index, index, starts=index)",
    # The contents of the pools cannot be exchanged.
    "talker.forward(history, kv_rows, index, starts=index)",
    "talker.forward(scratch, kv_rows, index, starts=index)",
    "poison(scratch, kv_rows)",
    "decoder.forward(cache, index)",
    "decoder.forward(scratch, index)",
    "storage.scatter(codec_rows, cache)",
    "storage.scatter(codec_rows, scratch)",
    "kv_pool.acquire(sequence).stream",
    "codec_pool.acquire(stream).sequence",
)

RIGHT = (
    "kv_pool.release(kv_pool.acquire(sequence))",
    "talker.forward(cache, kv_pool.rows([kv_lease]), index, starts=index)",
    "poison(cache, kv_rows)",
    "codec_pool.scatter([codec_lease], decoder.forward(codec_pool.gather([codec_lease]), index)[1])",
    "storage.restore(codec_rows, storage.snapshot(codec_rows))",
)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], str]:
    """Errors of one mypy run over both files: (file, line of the use) -> message."""
    folder = tmp_path_factory.mktemp("uses")
    for name, lines in (("wrong", WRONG), ("right", RIGHT)):
        (folder / f"{name}.py").write_text(PRELUDE + "".join(f"    {line}\n" for line in lines), encoding="utf-8")
    files = [str(folder / "wrong.py"), str(folder / "right.py")]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(ROOT / ".mypy_cache")]
    run = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = re.findall(r"(wrong|right)\.py:(\d+): error: (.*)", run.stdout)
    first = PRELUDE.count("\n") + 1
    return {(name, int(line) - first): message for name, line, message in found}


@pytest.mark.parametrize("use", WRONG)
def test_mypy_refuses(use: str, errors: dict[tuple[str, int], str]) -> None:
    message = errors[("wrong", WRONG.index(use))]
    assert re.search(r"\[(arg-type|list-item|attr-defined)\]$", message), message


def test_mypy_accepts_right_uses(errors: dict[tuple[str, int], str]) -> None:
    assert not [message for (name, _), message in errors.items() if name == "right"]


# --- and at run time -------------------------------------------------------------------------------------------------

STACK = TransformerConfig(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_position_embeddings=16,
)


class Pools:
    """One small pool of each kind, with a lease of each."""

    def __init__(self) -> None:
        empty = CodecHistory(
            positions=torch.zeros(2, dtype=torch.int64),
            keys=(torch.zeros(2, 1, 3, 4),),
            values=(torch.zeros(2, 1, 3, 4),),
            convs=(torch.zeros(2, 5, 2),),
        )
        self.cache = TalkerCache.allocate(STACK, slots=2, positions=4, dtype=torch.float32)
        self.kv_pool, self.storage = KVPool(self.cache), CodecStatePool(empty)
        self.codec_pool = CodecPool(self.storage)
        self.kv_lease = self.kv_pool.acquire(SequenceId(1))
        self.codec_lease = self.codec_pool.acquire(StreamId(1))


REFUSED: dict[str, Callable[[Pools], object]] = {
    "talker pool, codec lease": lambda b: b.kv_pool.rows([b.codec_lease]),  # type: ignore[list-item]
    "talker pool releases a codec lease": lambda b: b.kv_pool.release(b.codec_lease),  # type: ignore[arg-type]
    "codec pool, talker lease": lambda b: b.codec_pool.gather([b.kv_lease]),  # type: ignore[list-item]
    "codec pool releases a talker lease": lambda b: b.codec_pool.release(b.kv_lease),  # type: ignore[arg-type]
    "talker pool, bare slot": lambda b: b.kv_pool.rows([0]),  # type: ignore[list-item]
    "codec pool, bare slot": lambda b: b.codec_pool.gather([0]),  # type: ignore[list-item]
    "codec storage, talker rows": lambda b: b.storage.gather(KVRows.of([0])),  # type: ignore[arg-type]
    "codec storage, bare index": lambda b: b.storage.gather(torch.tensor([0])),  # type: ignore[arg-type]
    "talker cache, codec rows": lambda b: poison(b.cache, CodecRows.of([0])),  # type: ignore[arg-type]
    "talker cache, bare index": lambda _: require_kv_rows(torch.tensor([0])),  # type: ignore[arg-type]
    "talker rows of floats": lambda _: KVRows(torch.tensor([0.0])),
    "codec rows of floats": lambda _: CodecRows(torch.tensor([0.0])),
    "one codec slot twice": lambda _: CodecRows.of([1, 1]),
}


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED.keys())
def test_run_time_refuses(use: Callable[[Pools], object]) -> None:
    with pytest.raises(StateError):
        use(Pools())


def test_stale_leases_are_refused() -> None:
    pools = Pools()
    pools.kv_pool.release(pools.kv_lease)
    pools.codec_pool.release(pools.codec_lease)
    assert pools.kv_pool.acquire(SequenceId(2)).slot == pools.kv_lease.slot
    assert pools.codec_pool.acquire(StreamId(2)).slot == pools.codec_lease.slot
    with pytest.raises(StateError, match="stale"):
        pools.kv_pool.rows([pools.kv_lease])
    with pytest.raises(StateError, match="stale"):
        pools.kv_pool.release(pools.kv_lease)
    with pytest.raises(StateError, match="stale"):
        pools.codec_pool.gather([pools.codec_lease])


def test_right_uses_run() -> None:
    pools = Pools()
    assert pools.kv_pool.rows([pools.kv_lease]).index.tolist() == [pools.kv_lease.slot]
    pools.codec_pool.scatter([pools.codec_lease], pools.codec_pool.gather([pools.codec_lease]))


def test_kinds_of_state_share_no_base_class() -> None:
    kinds = (TalkerCache, CodecHistory, KVRows, CodecRows, type(Pools().kv_lease), type(Pools().codec_lease))
    assert all(kind.__bases__ == (object,) for kind in kinds)


def test_frame_scratch_is_private_to_predict_frame() -> None:
    """`predict_frame` takes no state and returns only codes: the scratch is created and freed inside."""
    signature = inspect.signature(predict.predict_frame)
    assert not {"scratch", "cache", "kv", "state"} & set(signature.parameters)
    assert "Scratch" not in str(signature)
    assert not [name for name in vars(predict) if "scratch" in name.lower() and not name.startswith("_")]
    assert not [kept for kept in gc.get_objects() if type(kept).__name__ == "_FrameScratch"]
