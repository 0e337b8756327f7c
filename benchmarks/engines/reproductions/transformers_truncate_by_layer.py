"""transformers 5.23.0: `truncate` is dropped from a YaRN block that is one of several, as of Gemma 3; vLLM applies it.

transformers/modeling_rope_utils.py:475: `config.rope_parameters.get("truncate", True)` looks beside the blocks.
"""

from transformers import Gemma3TextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

block = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}
other = {"rope_type": "default", "rope_theta": 1e4}
found = []
for truncate in (True, False):
    blocks = {"full_attention": {**block, "truncate": truncate}, "sliding_attention": other}
    config = Gemma3TextConfig(head_dim=64, max_position_embeddings=512, rope_parameters=blocks)
    found.append(ROPE_INIT_FUNCTIONS["yarn"](config, "cpu", layer_type="full_attention")[0])
print(f"truncate changes nothing: {found[0].equal(found[1])}; expected False")
