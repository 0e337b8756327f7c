"""ONNX Runtime GenAI 0.18.0: a YaRN block without betas divides by zero; Llama's class drops YaRN and linear.

onnxruntime_genai/models/builders/base.py:673 takes 0 for a missing beta (transformers: 32 and 1), and llama.py:15 only
handles llama3.
"""

from types import SimpleNamespace

from onnxruntime_genai.models.builders.base import Model
from onnxruntime_genai.models.builders.llama import LlamaModel

block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
for kind in (Model, LlamaModel):
    model = SimpleNamespace(rope_attrs={}, make_mscale=lambda *_, **__: 1.0)
    kind.make_rope_init(model, SimpleNamespace(rope_parameters=block))
    print(f"{kind.__name__}: {model.rope_attrs.get('rescale_inv_freq')}; expected factor 4, betas 32 and 1")
