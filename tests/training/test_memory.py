"""The memory formula, against a model's own parameters and against numbers that torch's sharding counted."""

from __future__ import annotations

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.config import RopeConfig
from ropewalk.training.memory import training_bytes


def llama(hidden: int, inner: int, layers: int, heads: int) -> DecoderConfig:
    """The shapes of Llama 3.1 (arXiv:2407.21783, table 3)."""
    return DecoderConfig(
        vocab_size=128_256, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, rope=RopeConfig(128, interleaved=False),
        tie_word_embeddings=False,
    )  # fmt: skip


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_the_models_own(tied):
    """On one rank the formula counts the parameters of the decoder that the config describes."""
    config = DecoderConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=4, rope=RopeConfig(8, interleaved=False), tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.device("meta"):
        model = Decoder(config)
    held = training_bytes(config, 1024)
    assert held.parameters == held.gradients == held.states // 2 == 4 * model.num_parameters()


@pytest.mark.parametrize(
    ("shape", "tokens", "ranks", "gib"),
    [
        # counted at commit d970beb: parts of torch's FSDP2 and tensor parallelism on a fake process group
        ((4096, 14_336, 32, 32), 131_072, (1, 8, 1), (3.74, 3.74, 7.48, 0.98, 10.12, 0.50)),
        ((4096, 14_336, 32, 32), 1_048_576, (8, 64, 8), (0.01, 0.01, 0.02, 0.12, 8.70, 0.50)),
        ((8192, 28_672, 80, 64), 131_072, (8, 8, 8), (0.51, 0.51, 1.03, 0.40, 41.40, 0.06)),
    ],
)
def test_llama_3_as_torch_shards_it(shape, tokens, ranks, gib):
    """The formula gives, to 0.01 GiB, what torch's own wrapping counted for Llama 3 on 8 to 4,096 ranks."""
    dp, cp, tp = ranks
    held = training_bytes(llama(*shape), tokens, dp=dp, cp=cp, tp=tp)
    assert tuple(round(size / 2**30, 2) for size in held) == gib


@pytest.mark.parametrize("sizes", [{"tp": 16}, {"cp": 3}])
def test_sizes_that_do_not_divide_are_refused(sizes):
    """More tensor-parallel ranks than key-value heads, and a sequence that the ranks do not divide."""
    with pytest.raises(RopeError, match="must divide"):
        training_bytes(llama(4096, 14_336, 32, 32), 1024, **sizes)
