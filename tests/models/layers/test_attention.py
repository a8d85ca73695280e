"""Sliding-window attention in windows equals one call; positions before 0 are masked, not zero keys."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.models.layers.attention import KeyValues, SlidingWindowAttention, causal_mask, window_mask
from legato.models.layers.rope import apply_rope, inverse_frequencies, rope_tables

WIDTH, HEADS, KV_HEADS, HEAD_DIM, WINDOW = 12, 4, 2, 6, 5
THETA = 1e4
EXACT = 1e-12


def layer(window: int = WINDOW) -> SlidingWindowAttention:
    torch.manual_seed(4)
    made = SlidingWindowAttention(WIDTH, HEADS, KV_HEADS, HEAD_DIM, window).double().requires_grad_(False)
    for parameter in made.parameters():
        parameter.mul_(2.0)
    return made


def signal(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def empty(attention: SlidingWindowAttention, rows: int) -> KeyValues:
    shape = (rows, *attention.history_shape)
    return KeyValues(torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))


def window_step(
    attention: SlidingWindowAttention, x: Tensor, history: KeyValues, positions: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, KeyValues]:
    absolute = positions[:, None] + torch.arange(x.shape[1])
    rope = rope_tables(absolute, inverse_frequencies(HEAD_DIM, THETA), x.dtype)
    mask = window_mask(positions, x.shape[1], attention.window)
    return attention.step(x, history, rope, mask, lengths)


def in_windows(attention: SlidingWindowAttention, x: Tensor, sizes: list[int]) -> Tensor:
    history, parts, start = empty(attention, x.shape[0]), [], 0
    for size in sizes:
        y, history = window_step(
            attention, x[:, start : start + size], history, torch.full((x.shape[0],), start, dtype=torch.int64)
        )
        parts.append(y)
        start += size
    return torch.cat(parts, dim=1)


def one_by_one(attention: SlidingWindowAttention, x: Tensor) -> Tensor:
    """Independent reference: one query and one head at a time, over exactly the keys in its window."""
    length = x.shape[1]
    rope = rope_tables(torch.arange(length)[None], inverse_frequencies(HEAD_DIM, THETA), x.dtype)
    queries = apply_rope(attention.q_proj(x).view(1, length, HEADS, HEAD_DIM).transpose(1, 2), rope)
    keys = apply_rope(attention.k_proj(x).view(1, length, KV_HEADS, HEAD_DIM).transpose(1, 2), rope)
    values = attention.v_proj(x).view(1, length, KV_HEADS, HEAD_DIM).transpose(1, 2)
    rows = []
    for t in range(length):
        first = max(0, t - attention.window + 1)
        heads = []
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = keys[0, shared, first : t + 1] @ queries[0, head, t] / HEAD_DIM**0.5
            heads.append(scores.softmax(0) @ values[0, shared, first : t + 1])
        rows.append(attention.o_proj(torch.cat(heads)))
    return torch.stack(rows)[None]


def test_equals_the_reference() -> None:
    x = signal(1, 14)
    assert (in_windows(layer(), x, [14]) - one_by_one(layer(), x)).abs().max() < EXACT


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_random_windows_equal_one_call(sizes: list[int]) -> None:
    x = signal(2, sum(sizes))
    assert (in_windows(layer(), x, sizes) - in_windows(layer(), x, [sum(sizes)])).abs().max() < EXACT


def test_control_window_that_is_one_too_short() -> None:
    x = signal(1, 14)
    assert (in_windows(layer(), x, [14]) - in_windows(layer(WINDOW - 1), x, [14])).abs().max() > 1e-3


def test_initial_history_is_not_attended_to() -> None:
    attention, x = layer(), signal(1, 3)
    true, _ = window_step(attention, x, empty(attention, 1), torch.zeros(1, dtype=torch.int64))
    pretended, _ = window_step(attention, x, empty(attention, 1), torch.full((1,), WINDOW))
    assert (true - one_by_one(attention, x)).abs().max() < EXACT
    assert (pretended - true).abs().max() > 1e-3


def test_rows_at_different_positions() -> None:
    """Rows with different histories and valid lengths in one window; a row of length 0 keeps its history."""
    attention, x = layer(), signal(3, 12)
    starts, lengths = [4, 9, 0], [3, 1, 0]
    histories = []
    for row, start in enumerate(starts):
        _, history = window_step(
            attention, x[row : row + 1, :start], empty(attention, 1), torch.zeros(1, dtype=torch.int64)
        )
        histories.append(history)
    joined = KeyValues(torch.cat([each.keys for each in histories]), torch.cat([each.values for each in histories]))
    window = torch.full((3, 3, WIDTH), 7.0, dtype=torch.float64)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        window[row, :length] = x[row, start : start + length]
    y, advanced = window_step(attention, window, joined, torch.tensor(starts), torch.tensor(lengths))
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        alone = in_windows(attention, x[row : row + 1], [12])
        assert length == 0 or (y[row, :length] - alone[0, start : start + length]).abs().max() < EXACT
    assert torch.equal(advanced.keys[2], joined.keys[2])
    _, exact = window_step(attention, x[:1, :7], empty(attention, 1), torch.zeros(1, dtype=torch.int64))
    assert (advanced.values[0] - exact.values[0]).abs().max() < EXACT


def test_masks() -> None:
    mask = window_mask(torch.tensor([0, 1, 9]), 2, 3)
    assert mask[:, 0].int().tolist() == [
        [[0, 0, 1, 0], [0, 0, 1, 1]],
        [[0, 1, 1, 0], [0, 1, 1, 1]],
        [[1, 1, 1, 0], [0, 1, 1, 1]],
    ]
    assert causal_mask(2, 2, torch.device("cpu"))[0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
