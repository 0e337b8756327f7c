"""Inputs of figures and of the explorer: ropes, published configs, windows of text, a trained model's attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.models.attention import Attention
from ropewalk.models.decoder import Decoder
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes

Array = npt.NDArray[np.float64]
BEGINNING = 30_000  # characters of Moby-Dick before the first window: the etymology and extracts
CONFIGS = Path(__file__).parent / "data" / "configs"
"""The packaged configs, files named by the keys of `TITLES`."""
TITLES = {
    "gemma_3_1b": "Gemma 3 1B",
    "llama_2_7b": "Llama 2 7B",
    "llama_3_1_8b": "Llama 3.1 8B",
    "phi_3_5_mini": "Phi-3.5 mini",
    "qwen2_5_7b_yarn": "Qwen2.5 7B",
    "smollm2_135m": "SmolLM2 135M",
}


def frequencies(config: RopeConfig, seq_len: int | None = None) -> Array:
    """Return the radians per token of each pair, float64 `[pairs]`, with all axes advancing together."""
    return np.array(config.columns_at(seq_len))


def opened(config: Any) -> Checkpoint:
    """Return the ropes of a config, with a name for pictures.

    `config`: a `RopeConfig`, the name of a packaged config ("llama_2_7b"), the path of a config.json, a folder or a
    .gguf, the content of a config.json, or a transformers config.
    """
    if isinstance(config, RopeConfig):
        return Checkpoint(name=described(config), config={}, ropes=ModelRopes((config,), (None,), (None,)))
    if isinstance(config, str) and config in TITLES:
        return dataclasses.replace(Checkpoint.open(CONFIGS / f"{config}.json"), name=TITLES[config])
    if isinstance(config, str | PathLike):
        try:
            return Checkpoint.open(config)
        except RopeError as error:
            raise RopeError(
                "figures: this is neither a packaged config nor a readable path.",
                facts={"config": str(config), "error": error.rule},
                cure=f"Give one of {', '.join(TITLES)}, or the path of a config.json, a folder or a .gguf.",
            ) from error
    ropes = ModelRopes.from_hf(config)
    content = config if isinstance(config, Mapping) else config.to_dict()
    return Checkpoint(name=str(content.get("model_type", "config")), config=content, ropes=ropes)


def main_rope(config: Any) -> RopeConfig:
    """Return the rope of a `Checkpoint` or of `opened(config)`, that of full attention if there are several."""
    ropes = (config if isinstance(config, Checkpoint) else opened(config)).ropes.rotating
    return ropes.get("full_attention") or next(iter(ropes.values()))


def described(rope: RopeConfig) -> str:
    """Return a rope's sizes for a note.

    >>> described(RopeConfig(64, interleaved=False))
    'head_dim 64, theta 10,000'
    """
    scaling = "" if rope.scaling is None else f", {rope.scaling.rope_type}"
    return f"head_dim {rope.head_dim}, theta {theta_of(rope)}{scaling}"


def theta_of(rope: RopeConfig) -> str:
    """Return the base as text."""
    return f"{rope.theta:,.10g}"


def rotary_model(source: str | Decoder) -> Decoder:
    """Return a model with a tokenizer and a rope in every layer, loaded in float32; raise `RopeError` for others."""
    model = source if isinstance(source, Decoder) else load(source, dtype=torch.float32)
    ropes = model.config.ropes if isinstance(model, Decoder) else (None,)
    if model.tokenizer is None or any(rope is None or rope.num_axes > 1 for rope in ropes):
        raise RopeError(
            "figures: this needs a model with a tokenizer and one-dimensional RoPE in every layer.",
            facts={"model": shown_name(source), "tokenizer": model.tokenizer, "without rope": ropes.count(None)},
            cure='Choose another, for example "tiny".',
        )
    return model


def shown_name(model: str | Decoder) -> str:
    """Return a model's name for the picture: the last part of a path, without .gguf."""
    return "the model" if isinstance(model, Decoder) else Path(model).name.removesuffix(".gguf")


def windows(model: Decoder, count: int, tokens: int, text: str | None = None) -> Tensor:
    """Return windows spread evenly over the text, by default the packaged Moby-Dick, int64 `[count, tokens]`."""
    assert model.tokenizer is not None
    text = read_text(None)[1][BEGINNING:] if text is None else text
    starts = [round(index * len(text) / count) for index in range(count)]
    rows = [model.tokenizer.encode(text[start : start + 12 * tokens])[:tokens] for start in starts]
    if min(map(len, rows)) < tokens:
        raise RopeError(
            "figures: the text is too short for windows of this length.",
            facts={"characters": len(text), "tokens": tokens, "windows": count},
            cure="Ask for fewer tokens or windows.",
        )
    return torch.tensor(rows)


def attention_inputs(
    model: Decoder, input_ids: Tensor, position_ids: Tensor | None = None
) -> list[tuple[Attention, Tensor]]:
    """Return each layer's attention and its input `[batch, seq, hidden]` in one forward over `input_ids`."""
    inputs: list[tuple[Attention, Tensor]] = []

    def note(module: Any, arguments: tuple[Any, ...]) -> None:
        inputs.append((module, arguments[0].detach()))

    hooks = [layer.self_attn.register_forward_pre_hook(note) for layer in model.layers]  # type: ignore[union-attr]
    try:
        with torch.inference_mode():
            model.hidden_states(input_ids, position_ids=position_ids)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs
