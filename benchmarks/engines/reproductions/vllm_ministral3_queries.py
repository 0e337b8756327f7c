"""vLLM 0.32.0: Ministral 3's queries beyond the original length are not scaled by their position.

models/mistral.py:106 takes `llama_4_scaling` of the config, which only a params.json has; a Hugging Face config has
`llama_4_scaling_beta` in its rope block. Log-probabilities differ by up to 2 nats from the original length on.
"""

from transformers import Ministral3Config

config = Ministral3Config()
beta = config.rope_parameters["llama_4_scaling_beta"]
print(f"vLLM takes {getattr(config, 'llama_4_scaling', None)}; expected beta {beta}")
