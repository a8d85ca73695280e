"""Duration predictor of the embedded voice: phones and speaker to durations.

Parameters are `duration.*` in the checkpoint. A duration depends only on the `look_behind` phones before it and the
`look_ahead` phones after it. It is therefore final as soon as these are known, while text still arrives.
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
    """Residual convolutions over phones, without padding: the caller provides the context phones."""

    def __init__(self, *, phones: int, speakers: int, sizes: DurationConfig, look_ahead: int) -> None:
        super().__init__()
        width, kernel, layers = sizes.hidden_size, sizes.kernel_size, sizes.num_layers
        self.ahead, rest = divmod(look_ahead, layers)
        if rest or self.ahead >= kernel:
            raise ValueError(
                f"look_ahead {look_ahead} must be a multiple of {layers} layers, with less than {kernel} phones each"
            )
        self.behind = kernel - 1 - self.ahead
        self.look_behind, self.look_ahead = self.behind * layers, look_ahead
        self.phone_embedding = nn.Embedding(phones, width)
        self.speaker_embedding = nn.Embedding(speakers, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, kernel) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, phones: Tensor, speakers: Tensor) -> Tensor:
        """Log durations in quarters of a frame, [B, P].

        `phones` int64 [B, look_behind + P + look_ahead]; `speakers` int64 [B].
        """
        x = self.phone_embedding(phones) + self.speaker_embedding(speakers)[:, None]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = conv(x.transpose(1, 2)).transpose(1, 2)
            x = x[:, self.behind : x.shape[1] - self.ahead] + functional.gelu(norm(y))
        log_quarters: Tensor = self.head(x)[..., 0]
        return log_quarters


class SpeakerDurations:
    """The duration predictor for one speaker, as the text front end calls it: phone ids to plain numbers."""

    def __init__(self, net: DurationNet, speaker: int) -> None:
        self._net = net
        self._speaker = speaker
        self.look_behind = net.look_behind
        self.look_ahead = net.look_ahead

    @torch.inference_mode()
    def __call__(self, phones: Sequence[int]) -> list[float]:
        """Durations of the `len(phones) - look_behind - look_ahead` phones with full context, in quarters of a frame.

        For a fixed length of `phones`, a duration depends bit-exactly on its context phones only.
        """
        device = self._net.head.weight.device
        window = torch.tensor([list(phones)], dtype=torch.int64, device=device)
        speaker = torch.tensor([self._speaker], dtype=torch.int64, device=device)
        quarters = self._net(window, speaker)[0].double().exp().clamp(MIN_QUARTERS, MAX_QUARTERS)
        return [float(value) for value in quarters.tolist()]
