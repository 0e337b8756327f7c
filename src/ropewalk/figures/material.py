"""Inputs of several figures: frequencies, published configs, windows of text, queries and keys of a trained model."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.attention.attention import Attention
from ropewalk.audit.sources import Source, read_source
from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load_decoder
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import inverse_frequencies

Array = npt.NDArray[np.float64]
BEGINNING = 30_000  # characters of Moby-Dick before the first window: the etymology and extracts
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
    array: Array = inverse_frequencies(config, seq_len).inv_freq.sum(0).numpy()
    return array


def plain(head_dim: int, theta: float, trained_length: int | None = None) -> RopeConfig:
    """Return half-split RoPE of the whole head, without scaling."""
    return RopeConfig(head_dim, interleaved=False, theta=theta, max_position_embeddings=trained_length)


def packaged(*parts: str) -> Path:
    """Return the path of a file of `figures/data`."""
    path = resources.files("ropewalk.figures").joinpath("data", *parts)
    assert isinstance(path, Path)
    return path


def packaged_configs() -> tuple[str, ...]:
    """Return the names of the packaged published configs."""
    return tuple(sorted(path.stem for path in packaged("configs").glob("*.json")))


def published(name: str) -> Source:
    """Return a config by its packaged name ("llama_2_7b") or path; raise `RopeError` if it cannot be read."""
    if name in packaged_configs():
        return read_source(packaged("configs", f"{name}.json"))
    try:
        return read_source(name)
    except RopeError as error:
        raise RopeError(
            "figure: this is neither a packaged config nor a readable path.",
            facts={"config": name, "error": error.rule},
            cure=f"Give one of {', '.join(packaged_configs())}, or the path of a config.json, a folder or a .gguf.",
        ) from error


def rotary_model(source: str) -> Decoder:
    """Load a trained model with a rope in every layer and a tokenizer, in float32; raise `RopeError` for others."""
    model = load_decoder(source, dtype=torch.float32)
    ropes = model.config.ropes
    if model.tokenizer is None or any(rope is None or rope.num_axes > 1 for rope in ropes):
        raise RopeError(
            "figure: this needs a model with a tokenizer and one-dimensional RoPE in every layer.",
            facts={"model": source, "tokenizer": model.tokenizer, "layers without rope": ropes.count(None)},
            cure='Choose another, for example "tiny".',
        )
    return model


def windows(model: Decoder, count: int, tokens: int) -> Tensor:
    """Return windows spread evenly over the packaged Moby-Dick, int64 `[count, tokens]`."""
    assert model.tokenizer is not None
    text = read_text(None)[1][BEGINNING:]
    starts = [round(index * len(text) / count) for index in range(count)]
    rows = [model.tokenizer.encode(text[start : start + 12 * tokens])[:tokens] for start in starts]
    if min(map(len, rows)) < tokens:
        raise RopeError(
            "figure: the packaged text is too short for a window of this length.",
            facts={"tokens": tokens, "windows": count},
            cure="Ask for fewer tokens or windows.",
        )
    return torch.tensor(rows)


class LayerInput(NamedTuple):
    """One layer's attention and its input, hidden states `[batch, seq, hidden]`."""

    attention: Attention
    hidden: Tensor


def attention_inputs(model: Decoder, input_ids: Tensor, position_ids: Tensor | None = None) -> list[LayerInput]:
    """Return the input of each layer's attention in one forward over `input_ids` `[batch, seq]`."""
    inputs: list[LayerInput] = []

    def note(module: Any, arguments: tuple[Any, ...]) -> None:
        inputs.append(LayerInput(module, arguments[0].detach()))

    hooks = [layer.self_attn.register_forward_pre_hook(note) for layer in model.layers]  # type: ignore[union-attr]
    try:
        with torch.inference_mode():
            model.hidden_states(input_ids, position_ids=position_ids)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


def queries_and_keys(layer: LayerInput) -> tuple[Tensor, Tensor]:
    """Return queries and keys before rotation, both `[batch, heads, seq, head_dim]`, key heads repeated."""
    attention, x = layer
    batch, seq, _ = x.shape
    with torch.inference_mode():
        q = attention.q_proj(x).view(batch, seq, attention.num_attention_heads, attention.head_dim)
        k = attention.k_proj(x).view(batch, seq, attention.num_key_value_heads, attention.head_dim)
        if attention.q_norm is not None and attention.k_norm is not None:
            q, k = attention.q_norm(q), attention.k_norm(k)
    return q.transpose(1, 2), k.transpose(1, 2).repeat_interleave(q.shape[2] // k.shape[2], 1)
