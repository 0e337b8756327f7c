"""SGLang 0.5.23: a scaling in the config of Qwen3-Next raises AttributeError.

sglang/srt/configs/qwen3_next.py:221, where the class of transformers validates the block before the attributes are set.
"""

from sglang.srt.configs.qwen3_next import Qwen3NextConfig

block = {"rope_type": "yarn", "rope_theta": 1e7, "factor": 4.0, "original_max_position_embeddings": 262144}
try:
    Qwen3NextConfig(max_position_embeddings=1048576, rope_parameters=block)
except AttributeError as error:
    print(f"{error}; expected a config with YaRN 4")
