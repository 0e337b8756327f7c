"""mlx-lm 0.32.2: some classes build nn.RoPE from theta, and drop any scaling: gemma2.py:60, starcoder2.py:42."""

from mlx_lm.models import gemma2, starcoder2

scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
sizes = {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 1, "head_dim": 64,
         "rms_norm_eps": 1e-6, "norm_epsilon": 1e-6, "vocab_size": 8, "num_key_value_heads": 1}  # fmt: skip
for kind in (gemma2, starcoder2):
    config = kind.ModelArgs.from_dict({"model_type": "", "rope_theta": 1e4, "rope_scaling": scaling, **sizes})
    print(f"{kind.__name__}: {type(kind.Attention(config).rope).__name__}; expected YarnRoPE")
