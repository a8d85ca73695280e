"""Sizes from a checkpoint's config are checked against the fixed buffers of the C kernels when the backend is built."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from legato.backends.cpu.codec import MAX_HEAD_DIM, unsupported_reason
from legato.backends.cpu.lm import MAX_QUERIES_PER_KEY_HEAD, NativeLayers, native_language
from legato.kernels.build import FOLDER
from legato.kernels.library import Library, library
from legato.models.talker.backbone import Talker
from tests.engine.tiny import tiny_config
from tests.models.codec.tiny_codec import DECODER, tiny_decoder


def test_limits_are_those_of_the_c_files() -> None:
    assert f"WIDEST = {MAX_HEAD_DIM} " in (FOLDER / "attention.c").read_text()
    assert re.findall(r"float by\[(\d+)\]", (FOLDER / "layers.c").read_text()) == [str(MAX_QUERIES_PER_KEY_HEAD)]


@pytest.mark.parametrize(("head_dim", "reason"), [(512, ""), (514, "its attention heads have 514 channels")])
def test_codec_head_dim(head_dim: int, reason: str) -> None:
    found = unsupported_reason(tiny_decoder(replace(DECODER, head_dim=head_dim)))
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(("queries", "native"), [(64, True), (65, False)])
def test_queries_per_key_head(queries: int, native: bool) -> None:
    kernels = library()
    if not isinstance(kernels, Library):
        pytest.skip(kernels.reason)
    config = tiny_config().talker
    stack = replace(config.stack, num_attention_heads=queries, num_key_value_heads=1)
    talker = Talker(replace(config, stack=stack)).to(torch.bfloat16)
    assert isinstance(native_language(talker, kernels).model.layers, NativeLayers) == native
