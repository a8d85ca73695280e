"""Codebook tables are float32; levels are summed; an invalid code is reported with its position."""

from __future__ import annotations

import pytest
import torch

from legato.errors import BadCodeError
from legato.models.codec.quantizer import DECODER_UNUSED, check_codes, codebook_table, encoder_unused
from tests.models.codec.tiny_codec import ENCODER, tiny_decoder, tiny_encoder


def test_codebook_table_is_sum_over_usage() -> None:
    table = codebook_table(torch.tensor([[2.0, 4.0], [1.0, 0.0]]), torch.tensor([4.0, 0.0]))
    assert table.tolist() == [[0.5, 1.0], [pytest.approx(1e5), 0.0]]


def test_codebook_table_is_float32() -> None:
    stored, usage = torch.tensor([[1.0, 3.0]]).bfloat16(), torch.tensor([3.0]).bfloat16()
    assert codebook_table(stored, usage).dtype == torch.float32
    assert codebook_table(stored, usage)[0, 0] == torch.tensor(1.0) / 3.0


def test_levels_are_summed_and_projected_separately() -> None:
    quantizer = tiny_decoder(dtype=torch.float32).quantizer
    weights = quantizer.state_dict()
    tables = [weights["rvq_first.vq.layers.0._codebook.table"]]
    tables += [weights[f"rvq_rest.vq.layers.{level}._codebook.table"] for level in range(3)]
    first, *rest = (table[code] for table, code in zip(tables, (3, 1, 4, 15), strict=True))
    expected = weights["rvq_first.output_proj.weight"][..., 0] @ first
    expected = expected + weights["rvq_rest.output_proj.weight"][..., 0] @ torch.stack(rest).sum(0)
    assert torch.allclose(quantizer(torch.tensor([[[3, 1, 4, 15]]]))[0, 0], expected, atol=1e-5)


def test_tables_may_be_float32_in_a_bfloat16_codec() -> None:
    decoder = tiny_decoder(dtype=torch.bfloat16)
    for level in (*decoder.quantizer.rvq_first.vq.layers, *decoder.quantizer.rvq_rest.vq.layers):
        level.float()
    assert decoder.quantizer(torch.zeros(1, 2, 4, dtype=torch.int64)).dtype == torch.bfloat16


@pytest.mark.parametrize("value", [-1, 32, 2150])
def test_invalid_code_is_reported(value: int) -> None:
    frames = [(0, 0, 0, 0)] * 3 + [(0, 31, value, 0), (0, 0, 0, 99)]
    with pytest.raises(BadCodeError, match=rf"code {value} of codebook 2 in frame 3 is outside 0\.\.31"):
        check_codes(frames, 32)


def test_valid_codes_at_both_ends_pass() -> None:
    check_codes([(0, 31)], 32)


def test_unused_tensors_and_parameters_have_different_names() -> None:
    assert not set(DECODER_UNUSED) & set(tiny_decoder().state_dict())
    unused = set(encoder_unused(ENCODER))
    have = {name.replace("codebook.table", "codebook.embed_sum") for name in tiny_encoder().state_dict()}
    assert not unused & have
    stored = {f"quantizer.acoustic_residual_vector_quantizer.layers.{level}.codebook.embed_sum" for level in range(5)}
    assert stored <= unused | have
