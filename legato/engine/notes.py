"""By what a loaded model computes, in words: told when it is loaded, and kept with every figure and check of it.

Owns nothing and decides nothing: the loader says what it took and why, and its sentences are put together here.
"""

from __future__ import annotations

from legato.models.load import LoadedModel
from legato.models.native.library import Missing, library


def notes_of(model: LoadedModel) -> tuple[str, ...]:
    """Sentences on the layers of talker and code predictor, with how they are rounded, and on the codec."""
    device = model.talker.codec_head.weight.device
    if device.type == "cpu":
        found = (model.quant_note or _layers_by_torch(), model.codec_note)
    else:
        found = (model.quant_note, f"layers and codec by torch on {device}")
    return tuple(filter(None, found))


def computed_by(model: LoadedModel, *, graphs: bool | None = None) -> str:
    """The same on one line; on CUDA also whether an engine records its work. `graphs` None: there is no engine."""
    notes = notes_of(model)
    if graphs is not None and model.talker.codec_head.weight.is_cuda:
        notes += ("steps recorded as CUDA graphs" if graphs else "steps launched call by call (--no-graphs)",)
    return "; ".join(notes)


def _layers_by_torch() -> str:
    """What the loader says nothing of: layers that are neither rounded nor compiled."""
    found = library()
    return f"layers by torch, slower than compiled: {found.reason}" if isinstance(found, Missing) else "layers by torch"
