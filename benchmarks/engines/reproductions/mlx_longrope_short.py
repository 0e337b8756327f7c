"""mlx-lm 0.32.2: `short_factor` of a longrope block is never used, so short prompts are rotated by the long divisors.

mlx_lm/models/rope_utils.py:50, SuScaledRoPE.
"""

from mlx_lm.models.rope_utils import initialize_rope

block = {"rope_type": "longrope", "original_max_position_embeddings": 128, "short_factor": [1.0] * 32,
         "long_factor": [4.0] * 32}  # fmt: skip
rope = initialize_rope(64, 10000.0, False, block, 512)
print(f"divisor of the first pair for any prompt: {rope._freqs[0].item()}; expected 1.0 up to 128 tokens")
