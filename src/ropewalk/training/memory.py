"""The bytes of one process in a training step, by formula."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig

SINGLE, HALF = 4, 2  # bytes of float32 and of bfloat16
HEAD_ROWS = 512  # number of tokens with logits at the same time


class TrainingBytes(NamedTuple):
    """Bytes of one rank.

    - `parameters`, `gradients`, `states`: float32, sharded; AdamW's states are two numbers for each parameter.
    - `unsharded`: bfloat16 parameters of two layers, or of the embedding or head, that FSDP2 gathers.
    - `activations`: with activation checkpointing: each layer's float32 input, and what one layer or the head keeps.
    - `keys_and_values`: bfloat16, of one layer and the whole sequence, gathered over the context-parallel ranks.
    """

    parameters: int
    gradients: int
    states: int
    unsharded: int
    activations: int
    keys_and_values: int


def training_bytes(config: DecoderConfig, tokens: int, *, dp: int = 1, cp: int = 1, tp: int = 1) -> TrainingBytes:
    """Estimate the memory of one rank that trains on one sequence for each data-parallel rank.

    The layers are Llama's: RMSNorm, SwiGLU, no biases. FSDP2 shards parameters, gradients and states over dp x cp;
    tensor parallelism shards matrices over tp. Nothing is allocated.

    **Arguments:**
    - `config`: the model's shape. `tokens`: length of a sequence.
    - `dp`, `cp`, `tp`: ranks of data, context and tensor parallelism.

    **Returns:** a `TrainingBytes`; `sum` of it is the peak. **Raises:** `RopeError` if `tp` does not divide the heads
    and the feed-forward, or `cp` the tokens.

    >>> from ropewalk.rope.config import RopeConfig
    >>> llama = DecoderConfig(vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32,
    ...                       num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False,
    ...                       rope=RopeConfig(128, interleaved=False))
    >>> round(sum(training_bytes(llama, 131_072, cp=8)) / 2**30, 1)  # GiB
    26.6
    """
    if config.kv_heads % tp or config.num_attention_heads % tp or config.intermediate_size % tp or tokens % cp:
        sizes = {"kv_heads": config.kv_heads, "intermediate_size": config.intermediate_size, "tokens": tokens}
        raise RopeError(
            "training_bytes: `tp` must divide the heads and the feed-forward, and `cp` the tokens.",
            facts={"tp": tp, "cp": cp, **sizes},
            cure="Choose other sizes.",
        )
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    head_dim = config.head_dim or 0
    width, kv_width, rows = config.num_attention_heads * head_dim, config.kv_heads * head_dim, tokens // cp
    # rows and columns of a rank's part after tensor parallelism; FSDP2 then shards rows, and rank 0 has the most
    layer = [(width // tp, hidden), (hidden, width // tp), *2 * [(kv_width // tp, hidden)]]
    layer += [*2 * [(inner // tp, hidden)], (hidden, inner // tp), *2 * [(hidden, 1)]]
    others = [*(1 if config.tie_word_embeddings else 2) * [(config.vocab_size // tp, hidden)], (hidden, 1)]
    own = sum(-(-height // (dp * cp)) * columns for height, columns in [*layers * layer, *others])
    largest = max(2 * sum(map(prod, layer)), *map(prod, others))
    kept = layers * rows * SINGLE * hidden
    one_layer = rows * (2 * HALF + SINGLE) * hidden  # both norms, and the sum between
    one_layer += rows * HALF * (2 * width + 2 * kv_width + 3 * inner) // tp
    head = rows * SINGLE * hidden + HEAD_ROWS * config.vocab_size // tp * (SINGLE + HALF)
    return TrainingBytes(
        parameters=SINGLE * own,
        gradients=SINGLE * own,
        states=2 * SINGLE * own,
        unsharded=HALF * largest,
        activations=kept + max(one_layer, head),
        keys_and_values=2 * tokens * kv_width // tp * HALF,
    )
