"""SGLang 0.5.23: `attention_factor` of a YaRN block is dropped.

sglang/srt/layers/rotary_embedding/factory.py:319, the keys that `get_rope` passes to YaRNScalingRotaryEmbedding.
"""

import torch
from sglang.srt.layers.rotary_embedding import get_rope

block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.3}
rope = get_rope(64, 64, 512, 10000, True, block, torch.float32)
print(f"cosine of position 0: {rope.cos_sin_cache[0, 0].item():.4f}; expected 1.3")
