"""The built-in model for the explorer: weights, tokenizer, and every method's tables, packed into one string."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.texts import read_text
from ropewalk.methods import METHODS, Method, Reach
from ropewalk.methods.ropes import trained_length_of
from ropewalk.models.decoder import Decoder
from ropewalk.rope.extensions import Extension
from ropewalk.rope.frequencies import inverse_frequencies

MODEL = "tiny"
LONGEST = 1024
TARGETS = (512, LONGEST)
_TWICE = (
    "anchor lantern pigeon velvet thunder orchard copper saddle whisper bishop garden ribbon hammer winter parrot "
    "candle barrel feather mirror island"
)


@cache
def packed_model() -> str:
    """Return the built-in model for the page, as base64 of a zlib stream.

    The stream contains the length of a header (uint32, little-endian), the header as JSON (`model_header`), then all
    weights in bfloat16: first every high byte, then every low byte, which compresses better.

    >>> len(packed_model()) < 7_000_000
    True
    """
    model: Decoder = load(MODEL, dtype=torch.bfloat16)
    header = json.dumps(model_header(model), separators=(",", ":"), ensure_ascii=False).encode()
    bits = [weight.contiguous().view(torch.int16).flatten() for weight in model.state_dict().values()]
    stored = torch.cat(bits).view(torch.uint8)
    planes = torch.cat([stored[1::2], stored[0::2]]).numpy().tobytes()
    raw = struct.pack("<I", len(header)) + header + planes
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def model_header(model: Decoder) -> dict[str, Any]:
    """Return the model's description: sizes, names of weights, tokenizer, methods, sample texts."""
    config, trained = model.config, trained_length_of(model.config.positions)
    assert trained is not None
    methods = [method for method in METHODS.values() if not method.keeps_own]
    return {
        "name": MODEL,
        "config": {
            "vocabSize": config.vocab_size,
            "hiddenSize": config.hidden_size,
            "intermediateSize": config.intermediate_size,
            "layers": config.num_hidden_layers,
            "heads": config.num_attention_heads,
            "headDim": config.head_dim,
            "eps": config.norm_eps,
            "trainedLength": trained,
            "longest": LONGEST,
            "parameters": model.num_parameters(),
        },
        "tensors": [[name, list(weight.shape)] for name, weight in model.state_dict().items()],
        "tokenizer": _tokenizer(model),
        "targets": list(TARGETS),
        "methods": {
            str(target): [_method(model, method, Reach(trained, target)) for method in methods] for target in TARGETS
        },
        "samples": _samples(model),
    }


def _tokenizer(model: Decoder) -> dict[str, Any]:
    """Return tokens in the order of their ids, each merge as the ids of its two parts, and the special tokens."""
    assert model.tokenizer is not None
    content = json.loads(model.tokenizer.tokenizer.to_str())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    steps = content["pre_tokenizer"]["pretokenizers"]
    known = [step["type"] for step in steps] == ["Digits", "ByteLevel"] and content["normalizer"] is None
    assert known, "web/src/model/tokenizer.ts splits text at digits and then as GPT-2 does"
    return {
        "tokens": sorted(vocabulary, key=vocabulary.__getitem__),
        "merges": [vocabulary[part] for pair in content["model"]["merges"] for part in pair],
        "special": {token["content"]: token["id"] for token in content["added_tokens"]},
    }


def _method(model: Decoder, method: Method, reach: Reach) -> dict[str, Any]:
    """Return the tables of a method: what each index is turned into, as queries and as keys of each region."""
    positions = method.positions(model.config.positions, reach)
    rope, extension = positions.ropes[0], positions.extensions[0]
    one = len(set(positions.ropes)) == 1 == len(set(positions.extensions))
    assert one, "web/src/model/setting.ts has one rope and one extension for all layers"
    frequencies = None if rope is None else inverse_frequencies(rope, reach.target)
    index = torch.arange(LONGEST)
    return {
        "name": method.name,
        "changes": method.changes,
        "color": method.look.color,
        "crops": method.crops,
        "forgets": method.crops,
        "frequencies": None if frequencies is None else frequencies.inv_freq[0].tolist(),
        "attentionFactor": 1.0 if frequencies is None else frequencies.attention_factor,
        "regions": None if extension is None or not extension.remaps else _regions(extension, index),
        "logitScale": None if extension is None else _logit_scale(extension, index),
    }


def _regions(extension: Extension, index: Tensor) -> list[dict[str, Any]]:
    """Return an extension's rules at every index: positions of queries and keys, and the keys of the region."""
    return [
        {
            "query": _numbers(region.query(index)),
            "key": None if region.key is None else _numbers(region.key(index)),
            "low": _numbers(region.low(index)),
            "high": _numbers(region.high(index)),
        }
        for region in extension.regions()
    ]


def _logit_scale(extension: Extension, index: Tensor) -> list[float] | None:
    """Return the factor of each query's logits; None if all are 1."""
    scale = extension.logit_scale(index)
    numbers = [scale] * len(index) if isinstance(scale, float) else _numbers(scale)
    return None if all(number == 1 for number in numbers) else numbers


def _numbers(values: Tensor) -> list[float]:
    return [float(value) if value % 1 else int(value) for value in values.tolist()]


def _samples(model: Decoder) -> list[dict[str, str]]:
    """Return sample texts with their names."""
    assert model.tokenizer is not None
    novel = read_text(None)[1]
    begin = novel.index("Call me Ishmael.")
    loomings = model.tokenizer.encode(novel[begin : begin + 8 * LONGEST])
    openings = {count: model.tokenizer.decode(loomings[:count]) for count in (60, 250, 256, 900)}
    words = _TWICE.split()
    texts = {
        "Moby-Dick, 60 tokens": openings[60],
        "A list, repeated": f"{_TWICE}. {' '.join(words[:12])}",
        "The list again, 256 tokens later": f"{_TWICE}.\n{openings[256]}\n{' '.join(words[:8])}",
        "Moby-Dick, 250 tokens": openings[250],
        "Moby-Dick, 900 tokens": openings[900],
    }
    return [{"name": name, "text": text} for name, text in texts.items()]
