"""The duration net of the embedded voice: how long each phone sounds, from the phones around it and the speaker.

Owns its weights (`duration.*` in the checkpoint). Without state: a duration depends on a bounded window of phones,
`look_behind` before and `look_ahead` after, which is what makes text durations final while text still arrives. Knows no
text, no track and no rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.config.model import DurationConfig

MIN_QUARTERS = 0.25
MAX_QUARTERS = 60.0


class DurationNet(nn.Module):
    """Residual convolutions over phones, without padding: the caller supplies the context."""

    def __init__(self, *, phones: int, speakers: int, sizes: DurationConfig, look_ahead: int) -> None:
        super().__init__()
        width, kernel, layers = sizes.hidden_size, sizes.kernel_size, sizes.num_layers
        self.ahead, rest = divmod(look_ahead, layers)
        if rest or self.ahead >= kernel:
            raise ValueError(f"a look-ahead of {look_ahead} phones does not spread over {layers} layers of {kernel}")
        self.behind = kernel - 1 - self.ahead
        self.look_behind, self.look_ahead = self.behind * layers, look_ahead
        self.phone_embedding = nn.Embedding(phones, width)
        self.speaker_embedding = nn.Embedding(speakers, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, kernel) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, phones: Tensor, speakers: Tensor) -> Tensor:
        """Log of quarters of a frame: `phones` int64 [B, behind + P + ahead], `speakers` int64 [B] -> [B, P]."""
        x = self.phone_embedding(phones) + self.speaker_embedding(speakers)[:, None]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            mixed = conv(x.transpose(1, 2)).transpose(1, 2)
            x = x[:, self.behind : x.shape[1] - self.ahead] + functional.gelu(norm(mixed))
        log_quarters: Tensor = self.head(x)[..., 0]
        return log_quarters


class SpeakerDurations:
    """The net for one speaker as the front end calls it: phone ids in, quarters out, plain numbers."""

    def __init__(self, net: DurationNet, speaker: int) -> None:
        self._net = net
        self._speaker = speaker
        self.look_behind = net.look_behind
        self.look_ahead = net.look_ahead

    @torch.inference_mode()
    def __call__(self, phones: Sequence[int]) -> list[float]:
        """Durations of ``len(phones) - look_behind - look_ahead`` phones, in quarters of a frame.

        The same ids at the same place of an equally long window give the same numbers, whatever stands elsewhere.
        """
        device = self._net.head.weight.device
        window = torch.tensor([list(phones)], dtype=torch.int64, device=device)
        speaker = torch.tensor([self._speaker], dtype=torch.int64, device=device)
        quarters = self._net(window, speaker)[0].double().exp().clamp(MIN_QUARTERS, MAX_QUARTERS)
        return [float(value) for value in quarters.tolist()]
