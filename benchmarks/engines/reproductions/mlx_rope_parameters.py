"""mlx-lm 0.32.2: `rope_parameters`, where transformers 5 writes theta and the scaling, is dropped.

mlx_lm/models/llama.py:30 and :32 have fields for `rope_theta` and `rope_scaling` only; qwen3.py:34 reads the block.
"""

from mlx_lm.models import llama, qwen3

block = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0}
sizes = {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 1, "head_dim": 64,
         "rms_norm_eps": 1e-6, "vocab_size": 8, "num_key_value_heads": 1, "max_position_embeddings": 512,
         "tie_word_embeddings": True}  # fmt: skip
for kind in (llama, qwen3):
    config = kind.ModelArgs.from_dict({"model_type": kind.__name__, "rope_parameters": block, **sizes})
    rope = kind.Attention(config).rope
    print(f"{kind.__name__}: theta {rope.base:g}, scale {rope.scale:g}; expected 500000, 0.25")
