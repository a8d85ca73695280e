"""The duration predictor: context window, speakers, and independence from phones outside the window."""

from __future__ import annotations

import pytest
import torch

from legato.config.model import DurationConfig
from legato.models.durations import MAX_QUARTERS, MIN_QUARTERS, DurationNet, SpeakerDurations

SIZES = DurationConfig(hidden_size=16, num_layers=3, kernel_size=7)


def net_of(seed: int = 0) -> DurationNet:
    torch.manual_seed(seed)
    net = DurationNet(phones=80, speakers=2, sizes=SIZES, look_ahead=6).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0.0, 0.3)
    return net


def test_context_window_follows_from_the_sizes() -> None:
    net = net_of()
    assert (net.look_behind, net.look_ahead) == (12, 6)
    assert len(SpeakerDurations(net, 0)([1] * (12 + 16 + 6))) == 16


def test_look_ahead_must_be_a_multiple_of_the_layers() -> None:
    with pytest.raises(ValueError, match="look_ahead 7 must be a multiple of 3"):
        DurationNet(phones=80, speakers=1, sizes=SIZES, look_ahead=7)


def test_phones_outside_the_window_have_no_effect() -> None:
    durations = SpeakerDurations(net_of(), 0)
    phones = torch.randint(0, 80, (34,), generator=torch.Generator().manual_seed(1)).tolist()
    before = durations(phones)
    changed = list(phones)
    changed[12 + 5 + 7] = (changed[12 + 5 + 7] + 1) % 80  # one beyond the look-ahead of phone 5
    after = durations(changed)
    assert after[:6] == before[:6]
    assert after[6] != before[6]


def test_speakers_differ_and_values_are_clamped() -> None:
    net = net_of()
    phones = list(range(34))
    assert SpeakerDurations(net, 0)(phones) != SpeakerDurations(net, 1)(phones)
    with torch.no_grad():
        net.head.bias.fill_(50.0)
    assert SpeakerDurations(net, 0)(phones) == [MAX_QUARTERS] * 16
    with torch.no_grad():
        net.head.bias.fill_(-50.0)
    assert SpeakerDurations(net, 0)(phones) == [MIN_QUARTERS] * 16
