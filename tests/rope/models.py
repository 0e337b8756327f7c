"""transformers' own rotation of a config: each model's rotary module and its apply function, behind one call."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ropewalk as rw

CONFIGS = Path(__file__).parent.parent / "fixtures" / "configs"
# Rotary modules whose annotation names the composite config, or that borrow another family's modeling file.
_BORROWED = {
    **dict.fromkeys(("iquestcoder", "internlm3", "exaone"), "llama"),
    "sarvam_moe": "glm4_moe",
    "sarvam_mla": "deepseek_v3",
}
_CLASSES = {"qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextRotaryEmbedding"}


def fixture(name: str) -> dict[str, Any]:
    """The published configuration of that name, without the note on its source."""
    fields: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    del fields["_source"]
    return fields


def fixture_names() -> list[str]:
    """Every configuration in tests/fixtures/configs."""
    return sorted(path.stem for path in CONFIGS.glob("*.json"))


def transformers_config(fields: dict[str, Any]) -> Any:
    """The transformers config of a config.json: its text part."""
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.set_verbosity_error()  # its warnings are log records; what they are about is not under test here
    fields = copy.deepcopy(fields)
    return AutoConfig.for_model(fields.pop("model_type"), **fields).get_text_config()


def modeling(config: Any) -> Any:
    """The modeling file that belongs to a transformers config."""
    family = type(config).__module__.rpartition(".configuration_")[2]
    name = type(config).__module__.replace("configuration_", "modeling_")
    name = name.replace(family, _BORROWED.get(family, family))
    return importlib.import_module(name)


def rotary_class(config: Any) -> Any:
    """The rotary module class that takes this config; a LookupError where it cannot be told."""
    classes = {
        name: cls for name, cls in vars(modeling(config)).items() if "RotaryEmbedding" in name and inspect.isclass(cls)
    }
    if config.model_type in _CLASSES:
        return classes[_CLASSES[config.model_type]]

    def takes(cls: Any) -> bool:
        annotation = inspect.signature(cls.__init__).parameters["config"].annotation
        return getattr(annotation, "__name__", str(annotation)) == type(config).__name__

    exact = [cls for cls in classes.values() if takes(cls)]
    others = [cls for name, cls in classes.items() if not any(part in name for part in ("Vision", "Audio", "DiT"))]
    found = exact or others
    if len(found) != 1:
        raise LookupError(f"{config.model_type}: {sorted(classes)}")
    return found[0]


class Model:
    """transformers' rotation of one config and layer type."""

    def __init__(self, config: Any, layer_type: str | None = None, cls: Any = None, interleave: bool = True) -> None:
        self.config, self.interleave = config, interleave and getattr(config, "rope_interleave", True)
        self.file = modeling(config) if cls is None else importlib.import_module(cls.__module__)
        self.sinusoids = config.model_type in ("gptj", "codegen")
        self.module = None if self.sinusoids else (cls or rotary_class(config))(config)
        self.layer_type = layer_type if hasattr(self.module, f"{layer_type}_inv_freq") else None

    @property
    def layer_types(self) -> list[str | None]:
        """The layer types that have their own frequencies, or [None]."""
        names = [name for name, _ in self.module.named_buffers()] if self.module is not None else []
        ends = "_inv_freq"
        own = [n.removesuffix(ends) for n in names if n.endswith(ends) and not n.endswith("original_inv_freq")]
        return list(own) or [None]

    def frequencies(self, seq_len: int = 1) -> tuple[Tensor, float]:
        """inv_freq (float64) and the attention factor, after a fresh module's forward over `seq_len` tokens."""
        if self.module is None:
            dim = self.config.rotary_dim
            return 1.0 / (10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)), 1.0
        self.module = type(self.module)(self.config)  # dynamic NTK keeps the state of earlier forwards
        self.cos_sin(torch.tensor([[seq_len - 1]]))
        prefix = f"{self.layer_type}_" if self.layer_type else ""
        scale = getattr(self.module, f"{prefix}attention_scaling", None)
        scale = scale if scale is not None else self.module.attention_scaling
        return getattr(self.module, f"{prefix}inv_freq").double().clone(), float(scale)

    def cos_sin(self, position_ids: Tensor) -> Any:
        """What the module's forward returns, in float32."""
        assert self.module is not None
        extra = {"layer_type": self.layer_type} if self.layer_type else {}
        return self.module(torch.zeros(1), position_ids, **extra)

    def rotate(self, q: Tensor, position_ids: Tensor) -> Tensor:
        """`q` [batch, heads, seq, head_dim] turned by the model's own apply function, in the order of its input.

        Multi-head latent attention de-interleaves the features of q and of k (which changes no score); that is undone.
        """
        if self.sinusoids:
            return self._rotate_sinusoids(q, position_ids)
        tables = self.cos_sin(position_ids)
        if isinstance(tables, Tensor):  # complex
            bshd = self.config.model_type == "llama4_text"
            x = q.transpose(1, 2) if bshd else q
            turned = self.file.apply_rotary_emb(x, x, tables)[0]
            return turned.transpose(1, 2) if bshd else turned
        cos, sin = tables
        if hasattr(self.file, "apply_rotary_pos_emb_interleave") and self.interleave:
            halves = self.file.apply_rotary_pos_emb_interleave(q, q, cos, sin)[0]
            return torch.stack(halves.chunk(2, dim=-1), dim=-1).flatten(-2)
        apply = self.file.apply_rotary_pos_emb
        single = "k" not in inspect.signature(apply).parameters

        def call(x: Tensor) -> Tensor:
            return apply(x, cos, sin) if single else apply(x, x, cos, sin)[0]

        try:
            return call(q)
        except RuntimeError:  # the attention class cuts the head itself: its leading features turn
            width = cos.shape[-1]
            return torch.cat([call(q[..., :width]), q[..., width:]], dim=-1)

    def _rotate_sinusoids(self, q: Tensor, position_ids: Tensor) -> Tensor:
        """GPT-J and CodeGen: a table of sines and cosines, applied to the first rotary_dim features."""
        dim = self.config.rotary_dim
        table = self.file.create_sinusoidal_positions(int(position_ids.max()) + 1, dim)
        sin, cos = table[position_ids].chunk(2, dim=-1)
        x = q.transpose(1, 2)
        turned = self.file.apply_rotary_pos_emb(x[..., :dim], sin, cos)
        return torch.cat([turned, x[..., dim:]], dim=-1).transpose(1, 2)


def lengths(config: rw.RopeConfig) -> tuple[int, ...]:
    """Sequence lengths at which a length-dependent rule is compared: both sides of its switch, and beyond."""
    if not config.needs_seq_len:
        return (1,)
    trained, longest = config.original_length or 0, config.max_position_embeddings or 0
    return (100, trained, trained + 1, longest, 2 * longest, 3 * longest + 7)


def check_frequencies(config: rw.RopeConfig, model: Model) -> None:
    """Compare frequencies, their number and the attention factor with the class's own at each length."""
    for seq_len in lengths(config):
        expected, factor = model.frequencies(seq_len)
        actual = rw.inverse_frequencies(config, seq_len if config.needs_seq_len else None)
        torch.testing.assert_close(actual.inv_freq.sum(0), expected, rtol=1e-6, atol=0)
        assert math.isclose(actual.attention_factor, factor, rel_tol=1e-6)
