"""What a benchmark asks of any kind of checkpoint: a plain request in its own default sampling. Owns nothing.

A Base checkpoint speaks without a reference here: its speed does not depend on whose voice it is.
"""

from __future__ import annotations

from legato.engine.framing import PacketPolicy
from legato.engine.frontend import FrontEnd
from legato.engine.resolve import default_sampling
from legato.engine.stream import StreamRequest
from legato.flow import PromptSpec, TextLayout
from legato.models.load import LoadedModel

INSTRUCT = "A calm voice."


def plain_request(model: LoadedModel, front_end: FrontEnd) -> StreamRequest:
    """The first voice the checkpoint has, if it has any; text laid out as it streams; packets of 4 frames."""
    config = model.config
    spec = PromptSpec(
        language="auto",
        speaker=next(iter(config.talker.speakers), ""),
        layout=TextLayout.STREAMING,
        instruct=front_end.instruct(INSTRUCT) if config.kind == "voice_design" else (),
    )
    return StreamRequest(spec, default_sampling(config), 0, PacketPolicy((4,)))
