"""Estimate the memory of a GPU for tuning with transformers' Trainer and FSDP2, by formula."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

from ropewalk.errors import RopeError

SINGLE, HALF = 4, 2  # bytes of float32 and of bfloat16


class TuningBytes(NamedTuple):
    """Bytes of one GPU.

    - `parameters`: its shard; float32 if trained, bfloat16 if frozen.
    - `gradients`, `states`: float32, of its shard of the trained parameters; AdamW has two states for each.
    - `gathered`: bfloat16 parameters of two layers or of the head, and unsharded gradients of one unit.
    - `checkpoints`: the bfloat16 input of each layer, kept by gradient checkpointing.
    - `layer`: the saved tensors of one recomputed layer, and the temporaries of its backward pass.
    - `loss`: the logits, three times `[tokens, vocab_size]` in float32, and the last norm.

    The peaks of the loss and of the layers occur at different times.
    """

    parameters: int
    gradients: int
    states: int
    gathered: int
    checkpoints: int
    layer: int
    loss: int

    @property
    def activations(self) -> int:
        """Return the largest bytes of activations at one time."""
        return self.checkpoints + max(self.layer, self.loss)

    @property
    def peak(self) -> int:
        """Return the largest sum at one time: in the loss, in the last layer, or in the first when gradients exist."""
        moment = max(self.activations, self.gradients + self.layer)
        return self.parameters + self.states + self.gathered + moment


def tuning_bytes(
    config: Any, tokens: int, *, gpus: int = 1, rank: int | None = None, fused_loss: bool = False
) -> TuningBytes:
    """Estimate the memory of one GPU for tuning with one sequence per GPU, in bfloat16 mixed precision.

    The layers are Llama's: RMSNorm, SwiGLU, no biases, and an attention kernel that stores neither scores nor a mask.
    FSDP2 shards parameters, gradients and states over all GPUs, and each layer is checkpointed (`use_reentrant=False`).
    Each GPU has the activations of a whole sequence. Nothing is allocated. The allocator's fragments, NCCL's buffers
    and the CUDA context are not included.

    **Arguments:**
    - `config`: the model's shape: a `DecoderConfig`, or a config of transformers with the fields of Llama's.
    - `tokens`: length of a sequence. `gpus`: number of processes.
    - `rank`: of LoRA on q, k, v and o with trained norms and a frozen rest; None trains all parameters.
    - `fused_loss`: whether the loss avoids storing all logits (liger-kernel's fused linear cross entropy).

    **Returns:** a `TuningBytes`. **Raises:** `RopeError` for sizes below 1.

    >>> from ropewalk.models.config import DecoderConfig
    >>> from ropewalk.rope.config import RopeConfig
    >>> llama = DecoderConfig(vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32,
    ...                       num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False,
    ...                       rope=RopeConfig(128, interleaved=False))
    >>> [round(tuning_bytes(llama, 32_768, gpus=8, fused_loss=fused).peak / 2**30) for fused in (False, True)]  # GiB
    [71, 30]
    """
    if min(tokens, gpus, 1 if rank is None else rank) < 1:
        raise RopeError(
            "tuning_bytes: `tokens`, `gpus` and `rank` must be at least 1.",
            facts={"tokens": tokens, "gpus": gpus, "rank": rank},
            cure="Leave out `rank` to train all parameters.",
        )
    hidden, inner, layers, vocab = (
        int(getattr(config, name)) for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    )
    heads = int(config.num_attention_heads)
    head_dim = int(getattr(config, "head_dim", None) or hidden // heads)
    width, kv_width = heads * head_dim, int(config.num_key_value_heads or heads) * head_dim
    layer = 2 * hidden * (width + kv_width) + 3 * hidden * inner + 2 * hidden
    head = vocab * hidden + hidden
    count = layers * layer + head + (0 if config.tie_word_embeddings else vocab * hidden)
    trained = count
    if rank is not None:
        adapters = layers * rank * 2 * (2 * hidden + width + kv_width)
        trained = adapters + layers * 2 * hidden + hidden
        count += adapters
    own = -(-trained // gpus)
    gathered = max(2 * layer, head) + (max(layer, head) if rank is None else 0)
    return TuningBytes(
        parameters=SINGLE * own + HALF * -(-(count - trained) // gpus),
        gradients=SINGLE * own,
        states=2 * SINGLE * own,
        gathered=HALF * gathered,
        checkpoints=HALF * tokens * hidden * layers,
        # two norms (float32 input, bfloat16 input of the weight, output), q, repeated k and v, output, two gradients;
        # gate, its SiLU and up, and three temporaries of their size
        layer=HALF * tokens * (10 * hidden + 4 * width + 6 * inner),
        loss=tokens * (10 * HALF * hidden + (0 if fused_loss else 3 * SINGLE * vocab)),
    )


LLAMA = {
    "1B": (16, 2048, 8192, 32, True),
    "8B": (32, 4096, 14_336, 32, False),
    "70B": (80, 8192, 28_672, 64, False),
}
"""Layers, hidden size, feed-forward size, heads, and tied head of Llama 3.2 1B, 3.1 8B and 3.1 70B."""


def tuning_table(size: str) -> str:
    """Return the memory of tuning a model of `LLAMA` on 1, 8 and 64 GPUs, with a fused loss, as text in GiB.

    >>> print(tuning_table("1B").splitlines()[1])
    LoRA  1   32k         2.3        0.0    0.0          6.8    9.6
    """
    layers, hidden, inner, heads, tied = LLAMA[size]
    config = SimpleNamespace(
        vocab_size=128_256, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, tie_word_embeddings=tied,
    )  # fmt: skip
    lines = ["train GPUs tokens  parameters  gradients  AdamW  activations   peak"]
    for rank, gpus, tokens in product((16, None), (1, 8, 64), (32_768, 131_072)):
        found = tuning_bytes(config, tokens, gpus=gpus, rank=rank, fused_loss=True)
        parts = found.parameters, found.gradients, found.states, found.activations, found.peak
        sizes = [f"{part / 2**30:{width}.1f}" for part, width in zip(parts, (11, 11, 7, 13, 7), strict=True)]
        lines.append(f"{'LoRA' if rank else 'full'} {gpus:>2} {tokens // 1024:>4}k {''.join(sizes)}")
    return "\n".join(lines)
