"""Stubs that make the official package importable without the audio packages of its 25 Hz tokenizer.

Used in the parity environment only. The stubs are empty modules in `sys.modules`; using one fails.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

UNUSED_MODULES = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime")


def install() -> None:
    """Add an empty module for each unused module that is not imported yet."""
    for name in UNUSED_MODULES:
        if name in sys.modules:
            continue
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__["__version__"] = "0.0.0"
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
