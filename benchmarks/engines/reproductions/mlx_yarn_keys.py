"""mlx-lm 0.32.2: `attention_factor` and `truncate` of a YaRN block are dropped.

`initialize_rope` passes five keys to YarnRoPE; mlx_lm/models/rope_utils.py:151 always rounds the bounds.
"""

import mlx.core as mx
from mlx_lm.models.rope_utils import initialize_rope

block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
usual = initialize_rope(64, 10000.0, False, block, 512)
other = initialize_rope(64, 10000.0, False, {**block, "attention_factor": 1.3, "truncate": False}, 512)
print(f"attention factor {other.mscale:.4f}; expected 1.3")
print(f"bounds rounded all the same: {mx.array_equal(usual._freqs, other._freqs).item()}; expected False")
