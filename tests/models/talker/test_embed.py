"""Input vectors of prompt plans and frames: each is the sum of the embeddings of its parts.

The expected sums are built from single rows of the embedding tables.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from legato.errors import StateError
from legato.models.talker.embed import embed_prompt, frame_vectors, next_input, text_vectors
from legato.types import PromptPlan, PromptRow
from tests.models.tiny_talker import CODEBOOKS, CODES, PHONES, make_predictor, make_talker, talker_config

REFERENCE = torch.randint(0, CODES, (3, CODEBOOKS), generator=torch.Generator().manual_seed(1))


def plan(*rows: PromptRow) -> PromptPlan:
    return PromptPlan(
        rows=rows, fixed_prefix_len=0, next_text_index=0, leading_tokens=(), trailing_tokens=(), pad_token=(1,)
    )


def one_frame(codes: list[int], feedback: int) -> Tensor:
    talker, predictor = make_talker(), make_predictor()
    total = talker.model.codec_embedding.weight[codes[0]].clone()
    for j in range(feedback - 1):
        total += next(iter(predictor.model.codec_embedding[j].parameters()))[codes[j + 1]]
    return total


def test_row_is_the_sum_of_its_parts() -> None:
    talker, predictor = make_talker(), make_predictor()
    vector = torch.randn(32)
    with torch.inference_mode():
        text = talker.text_projection(talker.model.text_embedding.weight[9])
        code = talker.model.codec_embedding.weight[CODES + 1]
        frame = one_frame(REFERENCE[2].tolist(), CODEBOOKS)
        x = embed_prompt(
            talker,
            predictor,
            plan(
                PromptRow(text=(9,)),
                PromptRow(code=CODES + 1),
                PromptRow(text=(9,), code=CODES + 1),
                PromptRow(text=(9,), speaker_vector=True),
                PromptRow(text=(9,), reference_frame=2),
                PromptRow(),
            ),
            speaker_vector=vector,
            reference_codes=REFERENCE,
        )
    expected = torch.stack((text, code, text + code, text + vector, text + frame, torch.zeros(32)))
    assert (x - expected).abs().max() < 1e-6


def test_part_that_the_voice_does_not_have_is_an_error() -> None:
    talker, predictor = make_talker(), make_predictor()
    with pytest.raises(StateError, match="reference"):
        embed_prompt(talker, predictor, plan(PromptRow(reference_frame=0)), speaker_vector=torch.zeros(32))
    with pytest.raises(StateError, match="speaker"):
        embed_prompt(talker, predictor, plan(PromptRow(speaker_vector=True)), reference_codes=REFERENCE)


@pytest.mark.parametrize("feedback", [1, 2, CODEBOOKS])
def test_only_the_fed_back_codebooks_are_summed(feedback: int) -> None:
    talker, predictor = make_talker(talker_config(feedback_codebooks=feedback)), make_predictor()
    with torch.inference_mode():
        vectors = frame_vectors(talker, predictor, REFERENCE)
        expected = torch.stack([one_frame(codes, feedback) for codes in REFERENCE.tolist()])
        following = next_input(talker, predictor, REFERENCE, torch.tensor([[9], [8], [7]]))
        texts = text_vectors(talker, [(9,), (8,), (7,)])
    assert (vectors - expected).abs().max() < 1e-6
    assert (following - vectors - texts).abs().max() < 1e-6


def test_phone_ids_of_a_token_are_embedded_by_their_tables_and_summed() -> None:
    talker = make_talker(talker_config(PHONES))
    with torch.inference_mode():
        vectors = text_vectors(talker, [(0, 1, 2, 3), (3, 2, 1, 0)])
        tables = [next(iter(table.parameters())) for table in talker.model.phone_embedding]
    expected = tables[0][0] + tables[1][1] + tables[2][2] + tables[3][3]
    assert (vectors[0] - expected).abs().max() < 1e-6
    assert (vectors[0] - vectors[1]).abs().max() > 0.1


def test_parameter_names_are_official() -> None:
    """One name of each kind; the tests of the loader check all."""
    talker, phones = make_talker().state_dict(), make_talker(talker_config(PHONES)).state_dict()
    predictor, wide = make_predictor().state_dict(), make_predictor(width=24).state_dict()
    for name in (
        "model.text_embedding.weight",
        "text_projection.linear_fc1.bias",
        "text_projection.linear_fc2.weight",
        "model.codec_embedding.weight",
        "model.layers.2.self_attn.q_norm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.norm.weight",
        "codec_head.weight",
    ):
        assert name in talker
    assert {name for name in phones if "text" in name or "phone" in name} == {
        f"model.phone_embedding.{j}.weight" for j in range(4)
    }
    assert {"model.codec_embedding.3.weight", "lm_head.3.weight", "model.layers.1.mlp.gate_proj.weight"} <= set(
        predictor
    )
    assert set(wide) - set(predictor) == {"small_to_mtp_projection.weight", "small_to_mtp_projection.bias"}
