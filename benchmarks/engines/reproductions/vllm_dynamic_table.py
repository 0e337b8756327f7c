"""vLLM 0.32.0: dynamic NTK's table ends at the original length, and prompts up to `factor` times that are accepted.

dynamic_ntk_scaling_rope.py:67 counts `max_position_embeddings` rows. On a CPU the rows beyond it are
read from other memory, and log-probabilities are NaN.
"""

import os

os.environ.update(VLLM_TARGET_DEVICE="cpu", VLLM_LOGGING_LEVEL="ERROR")
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

block = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
with set_current_vllm_config(VllmConfig()):
    rope = get_rope(64, 128, rope_parameters=block, dtype=torch.float32)
print(f"rows of cos and sin: {len(rope.cos_sin_cache)}; expected 512, the context that vLLM derives")
