"""Makes the official package importable without the audio packages that only its 25 Hz tokenizer uses.

Runs in the parity environment alone. Owns nothing but empty stand-ins in `sys.modules`; a call into one of them fails.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

UNUSED_MODULES = ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime")


def install() -> None:
    """Put an empty module in place of each unused one that is not installed."""
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
