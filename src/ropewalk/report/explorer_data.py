"""The numbers that the explorer shows, in the form that web/src/data.ts describes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from ropewalk.attention.extensions import Extension
from ropewalk.audit.sources import Source
from ropewalk.encodings import ENCODINGS, Encoding, Places, Sizes, resolve
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES
from ropewalk.figures.material import (
    TITLES,
    attention_inputs,
    packaged_configs,
    published,
    queries_and_keys,
    rotary_model,
    windows,
)
from ropewalk.figures.model_numbers import SMOLLM2, as_complex, converted, losses, shown_name
from ropewalk.methods import METHODS
from ropewalk.methods.method import Method
from ropewalk.methods.ropes import Reach
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import generate
from ropewalk.report.interactive import css_look, record_entry
from ropewalk.report.record import short_name
from ropewalk.rope.config import RopeConfig, ropes_of_layer_types
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.version import __version__

BIAS_TOKENS = 32
SIZES = Sizes(hidden_size=64, num_attention_heads=4, head_dim=16)
"""A small model's: enough to show a shape. Learned encodings stand as they are drawn before training (seed 0)."""


def encoding_entries() -> list[dict[str, Any]]:
    """RoPE and each registered rival, with its score of equal tokens `[heads][query][key]`, keys up to the query."""
    return [_bias_entry("rope", "RoPE, theta 10,000", None, _of_rope()), *map(_of_rival, ENCODINGS)]


def _of_rival(name: str) -> dict[str, Any]:
    config = ENCODINGS[name]()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = config.build(SIZES).eval()
        surface = _surface(module)
    learned = sum(parameter.numel() for parameter in module.parameters())
    line = (type(config).__doc__ or "").strip().partition("\n")[0]
    return _bias_entry(name, type(config).__name__, line, surface, learned)


def _surface(module: Encoding) -> Tensor:
    """Scores after 1/sqrt(head_dim) of tokens that are all alike, less what they would be without the encoding."""
    heads, dim = SIZES.num_attention_heads, SIZES.head_dim
    ids = torch.arange(BIAS_TOKENS)
    if module.in_embeddings:
        added = module.embedded(torch.zeros(1, BIAS_TOKENS, SIZES.hidden_size), ids[None])[0]
        similar: Tensor = added @ added.T / SIZES.hidden_size**0.5
        return similar[None]
    alike = torch.ones(1, BIAS_TOKENS, heads, dim)
    q, k = module.turned(alike, alike, ids)
    q, bias = module.biased(q, Places(ids, ids))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / dim**0.5
    surface: Tensor = (scores if bias is None else scores + bias).reshape(heads, BIAS_TOKENS, BIAS_TOKENS) - dim**0.5
    return surface


def _of_rope() -> Tensor:
    rope = resolve("rope", SIZES.head_dim)
    assert isinstance(rope, RopeConfig)
    alike = torch.ones(1, BIAS_TOKENS, 1, SIZES.head_dim)
    turned = RotaryEmbedding(rope).rotate(alike, position_ids=torch.arange(BIAS_TOKENS))[0, :, 0]
    scores: Tensor = turned @ turned.T / SIZES.head_dim**0.5 - SIZES.head_dim**0.5
    return scores[None]


def _bias_entry(name: str, title: str, line: str | None, surface: Tensor, learned: int = 0) -> dict[str, Any]:
    """Heads that are all alike are one."""
    if all(torch.equal(surface[0], other) for other in surface[1:]):
        surface = surface[:1]
    seen = torch.ones(BIAS_TOKENS, BIAS_TOKENS).tril().bool()
    rows = [
        [[float(f"{value:.3g}") for value in row[kept].tolist()] for row, kept in zip(head, seen, strict=True)]
        for head in surface
    ]
    return {"name": name, "title": title, "line": line or "", "learned": learned, "heads": rows}


COMMON = {"hidden_size": 4096, "num_attention_heads": 32}
"""A head of 128 features, for the families whose class has no head_dim of its own."""


def family_entries() -> list[dict[str, Any]]:
    """Theta and pairs of each family's rope before any scaling, in alphabetical order.

    Ropes of several axes, and families whose class asks for more than a head_dim, are left out. `assumed`: the head_dim
    is ours, for want of one.

    >>> next(entry for entry in family_entries() if entry["name"] == "gpt_oss")["theta"]
    150000.0
    """
    found = []
    for name in sorted(FAMILIES):
        assumed = False
        ropes = _ropes({"model_type": name})
        if ropes is None:
            assumed, ropes = True, _ropes({"model_type": name, **COMMON})
        for label, rope in (ropes or {}).items():
            if rope is not None and rope.num_axes == 1 and isinstance(rope.theta, float) and rope.inv_freq is None:
                title = name if label is None else f"{name}, {label.replace('_', ' ')}"
                found.append(
                    {
                        "name": title,
                        "theta": rope.theta,
                        "pairs": rope.pairs,
                        "interleaved": rope.interleaved,
                        "assumed": assumed,
                    }
                )
    return found


def _ropes(config: dict[str, Any]) -> dict[str | None, RopeConfig | None] | None:
    try:
        return ropes_of_layer_types(config)
    except RopeError:
        return None


HEAD_TEXTS, HEAD_TOKENS = 16, 256


def head_entries(source: str = "tiny") -> dict[str, Any]:
    """Each head's mean score at distance D is sum_pairs re cos(D f) - im sin(D f), and `rest`.

    As `ropewalk.figures.model_numbers.head_scores`: over every query and key of the text, each query put D tokens
    after each key. Scaled by 1/sqrt(head_dim).
    """
    model = rotary_model(source)
    rope = next(rope for rope in model.config.ropes if rope is not None)
    found = []
    for layer, seen in enumerate(attention_inputs(model, windows(model, HEAD_TEXTS, HEAD_TOKENS))):
        assert seen.attention.rope == rope
        q, k = (x.double().mean((0, 2)) for x in queries_and_keys(seen))
        for head, (one_q, one_k) in enumerate(zip(q, k, strict=True)):
            pairs_q, rest_q = as_complex(one_q, rope)
            pairs_k, rest_k = as_complex(one_k, rope)
            product = pairs_q * pairs_k.conj() / rope.head_dim**0.5
            found.append(
                {
                    "layer": layer,
                    "head": head,
                    "re": _head_numbers(product.real),
                    "im": _head_numbers(product.imag),
                    "rest": float(f"{float(rest_q @ rest_k) / rope.head_dim**0.5:.6g}"),
                }
            )
    return {
        "model": source,
        "text": f"{HEAD_TEXTS} windows of {HEAD_TOKENS} tokens of Moby Dick",
        "trainedLength": rope.trained_length,
        "invFreq": list(columns_of(rope)),
        "heads": found,
    }


def _head_numbers(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


FACTORS = (2, 4, 8, 16, 32)
"""The factors at which tables of methods are written; a method that the page cannot compute shows these."""

BUILT_IN = "tiny"
LONGEST = 524_288  # tokens of the longest target of a table: `abf` searches, and takes ten seconds there
LONGEST_OPENED = 131_072  # the same for a model that a command opens: one or two seconds each


def published_presets() -> list[dict[str, Any]]:
    """The ropes of the configs that ship with the gallery, and the built-in model's; takes a minute."""
    return [entry for name in (*packaged_configs(), BUILT_IN) for entry in preset_of(name)]


def preset_of(name: str) -> list[dict[str, Any]]:
    """The ropes of one of them."""
    return preset_entries(published(name), TITLES.get(name, "tiny, the built-in model"), name, LONGEST)


def preset_entries(source: Source, title: str, name: str, longest: int = LONGEST_OPENED) -> list[dict[str, Any]]:
    """One entry for each rope of a model; several are told apart by their layer type.

    Tables of methods are made for targets up to `longest` tokens, and for twice the trained length.
    """
    several = len(source.ropes) > 1
    return [
        _preset_entry(
            rope,
            f"{title}, {str(label).replace('_', ' ')}" if several else title,
            f"{name}.{label}" if several else name,
            longest,
        )
        for label, rope in source.ropes.items()
        if rope.num_axes == 1
    ]


def _preset_entry(rope: RopeConfig, title: str, name: str, longest: int) -> dict[str, Any]:
    trained = rope.as_trained()
    length = rope.trained_length
    theta = rope.theta if isinstance(rope.theta, float) else None
    return {
        "id": name,
        "title": title,
        "headDim": rope.head_dim,
        "interleaved": rope.interleaved,
        "theta": theta,
        "maxLength": rope.max_position_embeddings,
        "trainedLength": length,
        "plain": _numbers(columns_of(dataclasses.replace(rope, scaling=None), length)),
        "invFreq": _numbers(columns_of(trained, length)),
        "rule": rule_of(rope),
        "methods": {} if length is None else _methods(rope, length, longest),
    }


def _methods(rope: RopeConfig, length: int, longest: int) -> dict[str, list[dict[str, Any]]]:
    """Each method of frequencies that applies to this rope, at each factor."""
    found = {}
    factors = [factor for factor in FACTORS if factor == FACTORS[0] or factor * length <= longest]
    for name, method in METHODS.items():
        if method.scaling is not None and rope.can_be_extended:
            found[name] = [
                entry for factor in factors if (entry := _table(method, rope, Reach(length, factor * length)))
            ]
    return {name: tables for name, tables in found.items() if tables}


def _table(method: Method, rope: RopeConfig, reach: Reach) -> dict[str, Any] | None:
    """By what the method multiplies each pair's frequency at the target; None where it does not apply."""
    try:
        extended = method.rope(rope, reach)
        after, before = columns_of(extended, reach.target), columns_of(rope.as_trained(), reach.target)
    except RopeError:
        return None
    return {
        "factor": reach.factor,
        "ratio": _numbers([new / old if old else 1.0 for new, old in zip(after, before, strict=True)]),
        "attentionFactor": round(attention_factor_of(extended, reach.target), 6),
        "rule": rule_of(extended),
    }


def rule_of(rope: RopeConfig) -> dict[str, Any] | None:
    """A rope's rule under its short name, with its numbers; None for plain RoPE, and for a rule on top of another."""
    rule = rope.scaling
    if rule is None or rule.trained_part is not None:
        return None
    fields = {key: value for key, value in rule.to_dict().items() if key != "rule" and value is not None}
    return {"rope_type": rule.rope_type, **fields}


def _numbers(values: Any) -> list[float]:
    """Seven significant digits: what a picture can show, in half the space."""
    return [float(f"{value:.7g}") for value in values]


SAMPLED_AT = 4096  # trained tokens at which relative positions are sampled
SAMPLES = 193


def method_entries() -> list[dict[str, Any]]:
    """One entry for each method, in the order of tables."""
    return [_method_entry(method) for method in METHODS.values()]


def _method_entry(method: Method) -> dict[str, Any]:
    kind = "attention" if method.in_attention else "frequencies" if method.scaling is not None else "other"
    return {
        "name": method.name,
        "changes": method.changes,
        "costs": method.costs,
        "config": method.config_note,
        "source": method.source,
        **css_look(method.look),
        "kind": kind,
        "needsTuning": method.needs_tuning,
        "forgets": method.forgets,
        "positions": _positions(method),
    }


def _positions(method: Method) -> list[dict[str, Any]]:
    """The relative position at which the last query meets each key, at each factor; [] where none is changed."""
    found = []
    for factor in FACTORS:
        reach = Reach(SAMPLED_AT, factor * SAMPLED_AT)
        extension = None if method.extension is None else method.extension(reach)
        if extension is not None and extension.remaps:
            found.append({"factor": factor, "at": relative_positions(extension, reach)})
    return found


def relative_positions(extension: Extension, reach: Reach) -> list[tuple[float, float | None]]:
    """Pairs of (distance, relative position) in trained lengths for the last query; None where a key is not seen.

    >>> from ropewalk.attention.extensions import StreamingLLM
    >>> relative_positions(StreamingLLM(window=4, sinks=0), Reach(4, 16))[-1]
    (3.75, None)
    """
    last = torch.tensor(reach.target - 1)
    count = min(SAMPLES, reach.target)
    distances = torch.linspace(0, reach.target - 1, count, dtype=torch.float64).round().long()
    keys = last - distances
    at = torch.full((count,), torch.nan, dtype=torch.float64)
    for region in extension.regions():
        inside = (keys >= region.low(last)) & (keys < region.high(last))
        relative = region.query(last) - (torch.zeros_like(keys) if region.key is None else region.key(keys))
        at = torch.where(inside, relative.double(), at)
    pairs = zip(distances.tolist(), at.tolist(), strict=True)
    return [(round(d / reach.trained, 5), None if p != p else round(p / reach.trained, 5)) for d, p in pairs]


PAIRING_TEXTS, PAIRING_TOKENS, NEW_TOKENS = 8, 256, 32
PROMPT = "The whale rose slowly out of the dark water, and the old captain"
NAMES = {"tiny": "tiny (in the package)", "SmolLM2-135M-Instruct.Q4_1": "SmolLM2 135M Instruct"}


def pairing_entries() -> list[dict[str, Any]]:
    """The built-in model, and the SmolLM2 that the environment names, as `ropewalk figure pairing` measures them."""
    smollm2 = os.environ.get(SMOLLM2)
    return [_pairing_entry(name) for name in ("tiny", *([smollm2] if smollm2 else []))]


def _pairing_entry(name: str) -> dict[str, Any]:
    model = rotary_model(name)
    measured = losses(model, PAIRING_TEXTS, PAIRING_TOKENS)
    wrong = model.with_positions(
        rope=tuple(
            None if rope is None else dataclasses.replace(rope, interleaved=not rope.interleaved)
            for rope in model.config.ropes
        )
    )
    assert model.tokenizer is not None
    ids, decode = model.tokenizer.encode(PROMPT), model.tokenizer.decode
    cases = dict(zip(measured["bars"], (model, wrong, converted(wrong)), strict=True))
    return {
        "model": NAMES.get(shown_name(name), shown_name(name)),
        "interleaved": next(rope.interleaved for rope in model.config.ropes if rope is not None),
        "uniform": measured["uniform"],
        "prompt": PROMPT,
        "cases": [
            {"name": case, "loss": measured["bars"][case], "continuation": decode(continued(one, ids))}
            for case, one in cases.items()
        ],
        "note": f"{PAIRING_TEXTS} windows of {PAIRING_TOKENS} tokens of Moby Dick",
    }


def continued(model: Decoder, ids: list[int]) -> list[int]:
    """The likeliest next tokens after the prompt."""
    return generate(model, [ids], max_new_tokens=NEW_TOKENS)[0]


def explorer_data(
    source: Source | None = None, record: Mapping[str, Any] | None = None, *, site: str | None = None
) -> dict[str, Any]:
    """Everything that the page reads, as what JSON can hold.

    **Arguments:**
    - `source`: a model whose ropes stand first among the presets, as `read_source` returns it.
    - `record`: a document of the doctor that stands first among the records.
    - `site`: the folder of the documentation's pages relative to the page; None where there is none.

    >>> sorted(explorer_data())[:2]
    ['encodings', 'families']
    """
    own = [] if source is None else preset_entries(source, f"{source.name} (opened)", "opened")
    records = [] if record is None else [{"title": f"{short_name(record)} (opened)", **record_entry(record)}]
    return {
        "version": __version__,
        "site": site,
        "presets": [*own, *numbers("presets")],
        "families": family_entries(),
        "methods": method_entries(),
        "encodings": encoding_entries(),
        "heads": numbers("heads"),
        "pairings": numbers("pairings"),
        "records": [*records, *numbers("records")],
        "opened": {"preset": own[0]["id"] if own else None, "record": 0 if records else None},
    }


def numbers(name: str) -> Any:
    """What stands in one file of the folder `numbers`."""
    return json.loads(resources.files("ropewalk.report").joinpath("numbers", f"{name}.json").read_text("utf-8"))
