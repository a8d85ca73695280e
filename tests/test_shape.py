"""Checks the code structure: layers, state, names, sizes. Each rule is run on the repository and on seeded violations.

The rules are in `shape_rules.py` and `shape_rules_text.py`. Files are read as text, not imported.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from tests import shape_rules_text
from tests.shape_rules import LAYERS, Rule, Source
from tests.shape_rules_text import RULES

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("legato", "tests", "parity", "recipes", "benchmarks")
HEAD = '"""Does one thing. Holds no state."""\n'

SEEDED: tuple[tuple[str, str, str], ...] = (
    ("layer_order", "legato/models/a.py", "from legato.engine.core import step"),
    ("layer_order", "legato/text/a.py", "import legato.weights.loading"),
    ("layer_order", "legato/types.py", "from legato import config"),
    ("layer_order", "legato/config/a.py", "from ..text import bpe"),
    ("layer_order", "legato/engine/a.py", "from legato.cli.main import main"),
    ("layer_order", "legato/engine/a.py", "def f():\n    from legato.api import load"),
    ("layer_order", "legato/text/a.py", "if TYPE_CHECKING:\n    from legato.engine.core import step"),
    ("layer_order", "legato/stuff/a.py", "x = 1"),
    ("no_torch", "legato/text/a.py", "def f():\n    import torch"),
    ("no_torch", "legato/session/playback.py", "from torch import nn"),
    ("no_torch", "legato/engine/scheduler.py", "import torch.nn as nn"),
    ("no_torch", "legato/cli/say.py", "import torch"),
    ("no_torch", "legato/__init__.py", "from torch import Tensor"),
    ("environment", "legato/engine/a.py", "import os\nx = os.environ.get('A')"),
    ("environment", "legato/cli/a.py", "import os\nx = os.getenv('A')"),
    ("environment", "legato/models/a.py", "from os import environ"),
    ("own_state", "legato/models/a.py", "class A(nn.Module):\n def forward(self, x):\n  self.last = x"),
    ("own_state", "legato/models/a.py", "class A(nn.Module):\n def step(self, x):\n  self.cache[0] = x"),
    ("own_state", "legato/models/a.py", "class A(nn.Module):\n def decode(self, x):\n  self.n += 1"),
    ("own_state", "legato/models/a.py", "class A(nn.Module):\n def decode(self, x):\n  self.buf.copy_(x)"),
    ("own_state", "legato/models/a.py", "class A(nn.Conv1d):\n def step(self, x):\n  del self.a"),
    ("own_state", "legato/models/a.py", "class A(Decoder):\n def forward(self, x):\n  setattr(self, 'a', x)"),
    ("own_state", "legato/models/a.py", "class A(nn.Module):\n def forward(self, x):\n  self.a, b = x, x"),
    ("globals_rule", "legato/engine/a.py", "def f():\n    global cache\n    cache = 1"),
    ("quiet", "legato/engine/a.py", "print('x')"),
    ("quiet", "legato/models/a.py", "import sys\nsys.stderr.write('x')"),
    ("process_switches", "legato/api.py", "import torch\ntorch.set_num_threads(1)"),
    ("process_switches", "legato/api.py", "import logging\nlogging.basicConfig()"),
    ("process_switches", "legato/api.py", "import logging\nlogging.getLogger('legato').setLevel(1)"),
    ("process_switches", "legato/models/a.py", "torch.backends.cudnn.benchmark = True"),
    ("process_switches", "legato/models/a.py", "log.addHandler(handler)"),
    ("typed", "legato/models/a.py", "def f(**kwargs: int) -> None: ..."),
    ("typed", "legato/engine/a.py", "from typing import Any\ndef f(x: Any) -> None: ..."),
    ("typed", "legato/engine/a.py", "def f(x: dict) -> None: ..."),
    ("size", "legato/engine/a.py", "x = 1\n" * 401),
    ("size", "legato/engine/a.py", "def f():\n" + "    x = 1\n" * 60),
    ("head", "legato/engine/a.py", "x = 1"),
    ("head", "legato/engine/__init__.py", '"""engine."""'),
    ("names", "legato/utils/a.py", "x = 1"),
    ("names", "legato/engine/a.py", "class CacheManager: ..."),
    ("names", "tests/helpers.py", "x = 1"),
    ("exceptions", "legato/engine/a.py", "try:\n    f()\nexcept:\n    g()"),
    ("exceptions", "legato/engine/a.py", "try:\n    f()\nexcept ValueError:\n    pass"),
    ("exceptions", "legato/engine/a.py", "try:\n    f()\nexcept (ValueError, Exception):\n    g()"),
    ("exceptions", "legato/engine/a.py", "with contextlib.suppress(Exception):\n    f()"),
    ("stubs", "legato/engine/a.py", "def f():\n    raise NotImplementedError"),
    ("stubs", "legato/engine/a.py", "x = 1  # TODO later"),
    ("clock", "legato/session/a.py", "import time"),
    ("clock", "legato/engine/scheduler.py", "from time import monotonic"),
    ("lease_makers", "legato/engine/core.py", "lease = KVLease(slot=0, epoch=0, sequence=s)"),
    ("lease_makers", "legato/engine/kv_cache.py", "lease = leases.CodecLease(slot=0, epoch=0, stream=s)"),
    ("lease_makers", "legato/engine/a.py", "from legato.models.code_predictor.predict import _FrameScratch"),
)

INNOCENT: tuple[tuple[str, str, str], ...] = (
    ("layer_order", "legato/engine/a.py", "from legato.weights.loading import load\nfrom .loop import step"),
    ("layer_order", "legato/text/a.py", "from legato.types import IncrementalTokenizer\nimport re"),
    ("layer_order", "legato/__init__.py", "def __getattr__(name):\n    from legato.api import load"),
    ("no_torch", "legato/cli/say.py", "def say():\n    import torch"),
    ("no_torch", "legato/engine/model_runner.py", "import torch"),
    ("environment", "legato/config/environment.py", "import os\nx = os.environ.get('A')"),
    ("own_state", "legato/models/a.py", "class A(nn.Module):\n def __init__(self):\n  self.w = 1"),
    ("own_state", "legato/models/a.py", "class A(nn.Module):\n def forward(self, x):\n  y = self.w + x\n  return y"),
    ("own_state", "legato/models/a.py", "class State:\n def step(self, x):\n  self.n += 1"),
    ("quiet", "legato/cli/say.py", "print('x')"),
    ("process_switches", "legato/cli/main.py", "torch.set_num_threads(1)"),
    ("typed", "legato/models/a.py", "def f(x: dict[str, int], *, y: int) -> list[int]: ..."),
    ("exceptions", "legato/engine/a.py", "try:\n    f()\nexcept Exception as error:\n    raise E from error"),
    ("exceptions", "legato/engine/a.py", "try:\n    f()\nexcept Exception:  # boundary: only this row fails\n    g()"),
    ("exceptions", "legato/engine/a.py", "try:\n    f()\nexcept ValueError:\n    x = 1"),
    ("lease_makers", "legato/engine/kv_cache.py", "lease = KVLease(slot=0, epoch=0, sequence=s)"),
)


def rule_named(name: str) -> Rule:
    return next(rule for rule in RULES if rule.__name__ == name)


@lru_cache(maxsize=1)
def sources() -> tuple[Source, ...]:
    """All Python files of the repository, parsed once."""
    return tuple(Source.parse(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in tree())


def tree() -> list[Path]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(ROOT).parts))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_is_clean(rule: Rule) -> None:
    faults = [f"{source.path}:{fault}" for source in sources() for fault in rule(source)]
    assert not faults, f"{(rule.__doc__ or '').strip()}\n" + "\n".join(faults)


@pytest.mark.parametrize(("rule", "path", "text"), SEEDED)
def test_seeded_fault_is_caught(rule: str, path: str, text: str) -> None:
    assert list(rule_named(rule)(Source.parse(path, text)))


@pytest.mark.parametrize(("rule", "path", "text"), INNOCENT)
def test_valid_code_passes(rule: str, path: str, text: str) -> None:
    assert not list(rule_named(rule)(Source.parse(path, text)))


def test_every_rule_has_a_seeded_fault() -> None:
    assert {rule.__name__ for rule in RULES} == {name for name, _, _ in SEEDED}
    assert {rule.__name__ for rule in RULES} == set(dir(shape_rules_text)) & {name for name, _, _ in SEEDED}


def test_all_layers_are_searched() -> None:
    """A rule that is run on no files would always pass."""
    layers = {source.layer for source in sources()}
    assert {"errors", "types", "config", "text", "models", "audio", "engine", "cli"} <= layers
    assert layers - {None} <= set(LAYERS)


def test_valid_file_passes_every_rule() -> None:
    source = Source.parse("legato/engine/good.py", HEAD + "def double(count: int) -> int:\n    return 2 * count\n")
    assert not [fault for rule in RULES for fault in rule(source)]
