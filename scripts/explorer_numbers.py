"""Write src/ropewalk/figures/numbers: numbers of the explorer that do not depend on the model that it opens.

    python scripts/explorer_numbers.py [NAME ...]

Names: presets (a minute), encodings, heads, pairings (with SmolLM2 if ROPEWALK_SMOLLM2 is set: two minutes).
Defaults to all.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.atomic_io import finite, write_whole
from ropewalk.figures.explorer import preset_entries
from ropewalk.figures.material import (
    TITLES,
    attention_inputs,
    opened,
    rotary_model,
    shown_name,
    windows,
)
from ropewalk.models.decoder import Decoder
from ropewalk.models.encoding import Encoding, Places, Sizes
from ropewalk.models.encodings import ENCODINGS
from ropewalk.models.generation import generate
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.pairing import convert_pairing
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.statistics import mean_and_interval

FOLDER = Path(__file__).resolve().parents[1] / "src" / "ropewalk" / "figures" / "numbers"
LONGEST = 524_288  # tokens of the longest target of a table: `abf`, which searches, takes ten seconds


def preset_of(name: str) -> list[dict[str, Any]]:
    """Return the ropes of one packaged config or of the built-in model."""
    return preset_entries(opened(name), TITLES.get(name, "tiny, the built-in model"), name, LONGEST)


BIAS_TOKENS = 32
SIZES = Sizes(hidden_size=64, num_attention_heads=4, head_dim=16)
"""A small model. Learned encodings are shown untrained (seed 0)."""


def encoding_entries() -> list[dict[str, Any]]:
    """Return RoPE and each registered encoding, with its score of equal tokens `[heads][query][key]` up to the query.

    Equal heads are one.
    """
    rope = {"name": "rope", "title": "RoPE, theta 10,000", "line": "", "learned": 0, "heads": _rows(_rope_surface())}
    return [rope, *map(_registered, ENCODINGS)]


def _registered(name: str) -> dict[str, Any]:
    config = ENCODINGS[name]()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = config.build(SIZES).eval()
        surface = _surface(module)
    return {
        "name": name, "title": type(config).__name__, "line": (type(config).__doc__ or "").strip().partition("\n")[0],
        "learned": sum(parameter.numel() for parameter in module.parameters()), "heads": _rows(surface),
    }  # fmt: skip


def _surface(module: Encoding) -> Tensor:
    """Return the scores of equal tokens, scaled by 1/sqrt(head_dim), less those without the encoding."""
    heads, dim = SIZES.num_attention_heads, SIZES.head_dim
    ids = torch.arange(BIAS_TOKENS)
    if module.in_embeddings:
        added = module.embedded(torch.zeros(1, BIAS_TOKENS, SIZES.hidden_size), ids[None])[0]
        return (added @ added.T / SIZES.hidden_size**0.5)[None]
    alike = torch.ones(1, BIAS_TOKENS, heads, dim)
    q, k = module.encoded(alike, alike, ids)
    q, bias = module.biased(q, Places(ids, ids))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / dim**0.5
    return (scores if bias is None else scores + bias).reshape(heads, BIAS_TOKENS, BIAS_TOKENS) - dim**0.5


def _rope_surface() -> Tensor:
    rope = RopeConfig(SIZES.head_dim, interleaved=False)
    alike = torch.ones(1, BIAS_TOKENS, 1, SIZES.head_dim)
    rotated = RotaryEmbedding(rope).rotate(alike, position_ids=torch.arange(BIAS_TOKENS))[0, :, 0]
    return (rotated @ rotated.T / SIZES.head_dim**0.5 - SIZES.head_dim**0.5)[None]


def _rows(surface: Tensor) -> list[list[list[float]]]:
    if all(torch.equal(surface[0], other) for other in surface[1:]):
        surface = surface[:1]
    return [[_rounded(row[: query + 1], 3) for query, row in enumerate(head)] for head in surface]


def _rounded(values: Any, digits: int = 6) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


HEAD_TEXTS, HEAD_TOKENS = 16, 256


def head_entries() -> dict[str, Any]:
    """Return `re`, `im` and `rest` of each head: its mean score at distance D is rest + sum(re cos(D f) - im sin(D f)).

    The mean is over every query and key, each query moved `distance` tokens after each key: with q and k as complex
    numbers, Re(mean(q) conj(mean(k)) exp(i D f)) / sqrt(head_dim).
    """
    model = rotary_model("tiny")
    rope = next(rope for rope in model.config.ropes if rope is not None)
    assert not rope.interleaved
    assert 2 * rope.pairs == rope.head_dim
    heads = []
    for layer, (attention, x) in enumerate(attention_inputs(model, windows(model, HEAD_TEXTS, HEAD_TOKENS))):
        assert attention.rope == rope
        with torch.inference_mode():
            means = [project(x).double().mean((0, 1)) for project in (attention.q_proj, attention.k_proj)]
        q, k = (torch.complex(*mean.view(-1, 2, rope.pairs).unbind(1)) for mean in means)
        products = q * k.conj().repeat_interleave(len(q) // len(k), 0) / rope.head_dim**0.5
        for head, product in enumerate(products):
            re, im = _rounded(product.real), _rounded(product.imag)
            heads.append({"layer": layer, "head": head, "re": re, "im": im, "rest": 0.0})
    return {
        "model": "tiny",
        "text": f"{HEAD_TEXTS} windows of {HEAD_TOKENS} tokens of Moby-Dick",
        "trainedLength": rope.trained_length,
        "invFreq": list(rope.columns_at()),
        "heads": heads,
    }


PAIRING_TEXTS, PAIRING_TOKENS, NEW_TOKENS = 8, 256, 32
PROMPT = "The whale rose slowly out of the dark water, and the old captain"
NAMES = {"tiny": "tiny (in the package)", "SmolLM2-135M-Instruct.Q4_1": "SmolLM2 135M Instruct"}


def pairing_entry(name: str, texts: int = PAIRING_TEXTS, tokens: int = PAIRING_TOKENS) -> dict[str, Any]:
    """Return losses and generated text of a model with either pairing, and with weights reordered for the other one.

    A loss is (mean, low, high) in nats per token; the interval is that of the paired difference over windows to the
    model's own pairing, centred at the mean. "uniform" is ln(vocab_size).
    """
    model = rotary_model(name)
    ids, prompt, own = windows(model, texts, tokens), model.tokenizer.encode(PROMPT), list[float]()
    wrong = model.with_positions(
        rope=tuple(rope and replace(rope, interleaved=not rope.interleaved) for rope in model.config.ropes)
    )
    rope = next(rope for rope in model.config.ropes if rope is not None)
    head = {"model_type": "llama", "head_dim": rope.head_dim}
    converted = Decoder(wrong.config).eval()
    to = "half" if rope.interleaved else "interleaved"
    converted.load_state_dict(convert_pairing(model.state_dict(), to=to, config=head))
    cases = []
    for case, one in (("its own pairing", model), ("the wrong pairing", wrong), ("converted", converted)):
        means = [_loss(one, row) for row in ids]
        own = own or means
        mean, _ = mean_and_interval(means)
        apart, interval = mean_and_interval([each - base for each, base in zip(means, own, strict=True)])
        low, high = interval or (apart, apart)
        text = model.tokenizer.decode(generate(one, [prompt], max_new_tokens=NEW_TOKENS)[0])
        cases.append({"name": case, "loss": (mean, mean + low - apart, mean + high - apart), "continuation": text})
    return {
        "model": NAMES.get(shown_name(name), shown_name(name)),
        "interleaved": rope.interleaved,
        "uniform": math.log(model.config.vocab_size),
        "prompt": PROMPT,
        "cases": cases,
        "note": f"{texts} windows of {tokens} tokens of Moby-Dick",
    }


@torch.inference_mode()
def _loss(model: Decoder, ids: Tensor) -> float:
    """Return the mean loss of tokens `[tokens]`, all but the first, in nats."""
    return float(torch.nn.functional.cross_entropy(model(ids[None])[0, :-1].float(), ids[1:]))


MADE: dict[str, Callable[[], Any]] = {
    "presets": lambda: [entry for name in (*TITLES, "tiny") for entry in preset_of(name)],
    "encodings": encoding_entries,
    "heads": head_entries,
    "pairings": lambda: [pairing_entry(name) for name in ("tiny", os.environ.get("ROPEWALK_SMOLLM2")) if name],
}


def as_text(found: Any) -> str:
    """Return JSON with one line for each entry of a list, for readable diffs."""
    if not isinstance(found, list):
        return json.dumps(finite(found), separators=(",", ":"), allow_nan=False) + "\n"
    entries = (as_text(entry).rstrip("\n") if isinstance(entry, dict) else json.dumps(entry) for entry in found)
    return "[\n" + ",\n".join(entries) + "\n]\n"


if __name__ == "__main__":
    for name in sys.argv[1:] or MADE:
        write_whole(FOLDER / f"{name}.json", as_text(MADE[name]()))
        print(FOLDER / f"{name}.json")
