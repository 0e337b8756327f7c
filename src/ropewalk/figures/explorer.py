"""The explorer: one HTML page of interactive pictures, and its numbers in the form of web/src/data.ts."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
import webbrowser
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.atomic_io import write_whole
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES
from ropewalk.figures.explorer_model import packed_model
from ropewalk.figures.inline import css_look, embedded
from ropewalk.figures.material import (
    TITLES,
    as_complex,
    attention_inputs,
    converted,
    losses,
    packaged_configs,
    published,
    queries_and_keys,
    rotary_model,
    shown_name,
    windows,
    wrongly_paired,
)
from ropewalk.layers.encoding import Encoding, Places, Sizes
from ropewalk.layers.encodings import ENCODINGS, resolve
from ropewalk.layers.generation import generate
from ropewalk.methods import METHODS
from ropewalk.methods.ropes import Reach
from ropewalk.methods.table import Method
from ropewalk.rope.config import RopeConfig, ropes_of_layer_types
from ropewalk.rope.extensions import Extension
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.version import __version__

BIAS_TOKENS = 32
SIZES = Sizes(hidden_size=64, num_attention_heads=4, head_dim=16)
"""A small model. Learned encodings are shown untrained (seed 0)."""


def encoding_entries() -> list[dict[str, Any]]:
    """Return RoPE and each registered encoding, with its score of equal tokens `[heads][query][key]`."""
    return [_bias_entry("rope", "RoPE, theta 10,000", None, _rope_surface()), *map(_registered, ENCODINGS)]


def _registered(name: str) -> dict[str, Any]:
    config = ENCODINGS[name]()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = config.build(SIZES).eval()
        surface = _surface(module)
    learned = sum(parameter.numel() for parameter in module.parameters())
    line = (type(config).__doc__ or "").strip().partition("\n")[0]
    return _bias_entry(name, type(config).__name__, line, surface, learned)


def _surface(module: Encoding) -> Tensor:
    """Return the scores of equal tokens, scaled by 1/sqrt(head_dim), less those without the encoding."""
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


def _rope_surface() -> Tensor:
    rope = resolve("rope", SIZES.head_dim)
    assert isinstance(rope, RopeConfig)
    alike = torch.ones(1, BIAS_TOKENS, 1, SIZES.head_dim)
    rotated = RotaryEmbedding(rope).rotate(alike, position_ids=torch.arange(BIAS_TOKENS))[0, :, 0]
    scores: Tensor = rotated @ rotated.T / SIZES.head_dim**0.5 - SIZES.head_dim**0.5
    return scores[None]


def _bias_entry(name: str, title: str, line: str | None, surface: Tensor, learned: int = 0) -> dict[str, Any]:
    """Return one encoding's entry, with keys up to the query; equal heads are one."""
    if all(torch.equal(surface[0], other) for other in surface[1:]):
        surface = surface[:1]
    rows = [
        [[float(f"{value:.3g}") for value in row[: query + 1].tolist()] for query, row in enumerate(head)]
        for head in surface
    ]
    return {"name": name, "title": title, "line": line or "", "learned": learned, "heads": rows}


COMMON = {"hidden_size": 4096, "num_attention_heads": 32}
"""A head of 128 features, for families without a default head_dim."""


def family_entries() -> list[dict[str, Any]]:
    """Return theta and pairs of each family's rope before any scaling, in alphabetical order.

    Ropes of several axes, and families that require more than a head_dim, are left out. `assumed`: the head_dim is
    that of `COMMON`.

    >>> next(entry for entry in family_entries() if entry["name"] == "gpt_oss")["theta"]
    150000.0
    """
    entries = []
    for name in sorted(FAMILIES):
        assumed = False
        ropes = _ropes({"model_type": name})
        if ropes is None:
            assumed, ropes = True, _ropes({"model_type": name, **COMMON})
        for label, rope in (ropes or {}).items():
            if rope is not None and rope.num_axes == 1 and isinstance(rope.theta, float) and rope.inv_freq is None:
                title = name if label is None else f"{name}, {label.replace('_', ' ')}"
                entries.append(
                    {
                        "name": title,
                        "theta": rope.theta,
                        "pairs": rope.pairs,
                        "interleaved": rope.interleaved,
                        "assumed": assumed,
                    }
                )
    return entries


def _ropes(config: dict[str, Any]) -> dict[str | None, RopeConfig | None] | None:
    try:
        return ropes_of_layer_types(config)
    except RopeError:
        return None


HEAD_TEXTS, HEAD_TOKENS = 16, 256


def head_entries(source: str = "tiny") -> dict[str, Any]:
    """Return `re`, `im` and `rest` of each head: its mean score at distance D is rest + sum(re cos(D f) - im sin(D f)).

    The scores are those of `ropewalk.figures.scores.head_scores`.
    """
    model = rotary_model(source)
    rope = next(rope for rope in model.config.ropes if rope is not None)
    heads = []
    for layer, given in enumerate(attention_inputs(model, windows(model, HEAD_TEXTS, HEAD_TOKENS))):
        assert given.attention.rope == rope
        q, k = (x.double().mean((0, 2)) for x in queries_and_keys(given))
        for head, (one_q, one_k) in enumerate(zip(q, k, strict=True)):
            pairs_q, rest_q = as_complex(one_q, rope)
            pairs_k, rest_k = as_complex(one_k, rope)
            product = pairs_q * pairs_k.conj() / rope.head_dim**0.5
            heads.append(
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
        "text": f"{HEAD_TEXTS} windows of {HEAD_TOKENS} tokens of Moby-Dick",
        "trainedLength": rope.trained_length,
        "invFreq": list(columns_of(rope)),
        "heads": heads,
    }


def _head_numbers(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


FACTORS = (2, 4, 8, 16, 32)
"""Factors of the tables of methods, which the page shows for a method that it cannot compute."""

BUILT_IN = "tiny"
LONGEST = 524_288  # tokens of the longest target of a table: `abf`, which searches, takes ten seconds
LONGEST_OPENED = 131_072  # of a model that a command opens: one or two seconds


def published_presets() -> list[dict[str, Any]]:
    """Return the ropes of the packaged configs and of the built-in model; takes a minute."""
    return [entry for name in (*packaged_configs(), BUILT_IN) for entry in preset_of(name)]


def preset_of(name: str) -> list[dict[str, Any]]:
    """Return the ropes of one packaged config or of the built-in model."""
    return preset_entries(published(name), TITLES.get(name, "tiny, the built-in model"), name, LONGEST)


def preset_entries(source: Checkpoint, title: str, name: str, longest: int = LONGEST_OPENED) -> list[dict[str, Any]]:
    """Return an entry for each rope of a model, named by layer type if there are several.

    Tables of methods have targets up to `longest` tokens, and twice the trained length in any case.
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
    """Return tables, by factor, of each method of frequencies that applies to this rope."""
    by_method = {}
    factors = [factor for factor in FACTORS if factor == FACTORS[0] or factor * length <= longest]
    for name, method in METHODS.items():
        if method.scaling is not None and rope.can_be_extended:
            by_method[name] = [
                entry for factor in factors if (entry := _table(method, rope, Reach(length, factor * length)))
            ]
    return {name: tables for name, tables in by_method.items() if tables}


def _table(method: Method, rope: RopeConfig, reach: Reach) -> dict[str, Any] | None:
    """Return by how much the method multiplies each pair's frequency at the target; None if it does not apply."""
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
    """Return the name and numbers of a rope's rule; None for plain RoPE and for a rule on top of another."""
    rule = rope.scaling
    if rule is None or rule.trained_part is not None:
        return None
    fields = {key: value for key, value in rule.to_dict().items() if key != "rule" and value is not None}
    return {"rope_type": rule.rope_type, **fields}


def _numbers(values: Any) -> list[float]:
    """Return the values with seven significant digits, which suffice for a picture."""
    return [float(f"{value:.7g}") for value in values]


SAMPLED_AT = 4096  # trained tokens at which relative positions are sampled
SAMPLES = 193


def method_entries() -> list[dict[str, Any]]:
    """Return an entry for each method, in the order of tables."""
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
    """Return the last query's relative position of each key, at each factor; [] if the method changes none."""
    tables = []
    for factor in FACTORS:
        reach = Reach(SAMPLED_AT, factor * SAMPLED_AT)
        extension = None if method.extension is None else method.extension(reach)
        if extension is not None and extension.remaps:
            tables.append({"factor": factor, "at": relative_positions(extension, reach)})
    return tables


def relative_positions(extension: Extension, reach: Reach) -> list[tuple[float, float | None]]:
    """Return (distance, relative position) in trained lengths for the last query; None for a key outside its view.

    >>> from ropewalk.rope.extensions import ReRoPE
    >>> relative_positions(ReRoPE(window=4), Reach(4, 16))[-1]
    (3.75, 1.0)
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
    """Return losses and generated text with either pairing, of the built-in model and that of $ROPEWALK_SMOLLM2."""
    smollm2 = os.environ.get("ROPEWALK_SMOLLM2")
    return [_pairing_entry(name) for name in ("tiny", *([smollm2] if smollm2 else []))]


def _pairing_entry(name: str) -> dict[str, Any]:
    model = rotary_model(name)
    measured = losses(model, PAIRING_TEXTS, PAIRING_TOKENS)
    wrong = wrongly_paired(model)
    assert model.tokenizer is not None
    ids, decode = model.tokenizer.encode(PROMPT), model.tokenizer.decode
    cases = dict(zip(measured["bars"], (model, wrong, converted(wrong)), strict=True))
    return {
        "model": NAMES.get(shown_name(name), shown_name(name)),
        "interleaved": next(rope.interleaved for rope in model.config.ropes if rope is not None),
        "uniform": measured["uniform"],
        "prompt": PROMPT,
        "cases": [
            {
                "name": case,
                "loss": measured["bars"][case],
                "continuation": decode(generate(one, [ids], max_new_tokens=NEW_TOKENS)[0]),
            }
            for case, one in cases.items()
        ],
        "note": f"{PAIRING_TEXTS} windows of {PAIRING_TOKENS} tokens of Moby-Dick",
    }


def explorer_data(source: Checkpoint | None = None, *, site: str | None = None) -> dict[str, Any]:
    """Return everything that the page reads, as JSON values.

    **Arguments:**
    - `source`: a model; its ropes are the first presets.
    - `site`: the folder of the documentation's pages relative to the page; None if there is none.

    >>> sorted(explorer_data())[:2]
    ['encodings', 'families']
    """
    own = [] if source is None else preset_entries(source, f"{source.name} (opened)", "opened")
    return {
        "version": __version__,
        "site": site,
        "presets": [*own, *numbers("presets")],
        "families": family_entries(),
        "methods": method_entries(),
        "encodings": encoding_entries(),
        "heads": numbers("heads"),
        "pairings": numbers("pairings"),
        "opened": {"preset": own[0]["id"] if own else None},
    }


def numbers(name: str) -> Any:
    """Return the content of one file of the folder `numbers`."""
    return json.loads(resources.files("ropewalk.figures").joinpath("numbers", f"{name}.json").read_text("utf-8"))


_MARKS = re.compile(r"@@(DATA|MODEL)@@")


def explorer_page(data: Mapping[str, Any], model: str = "") -> str:
    """Return the page as one text, which requests no other file.

    **Arguments:**
    - `data`: the result of `explorer_data`. NaN and infinities become null.
    - `model`: the result of `packed_model`, which the picture of the built-in model decodes on demand.

    >>> "@@DATA@@" in explorer_page({})
    False
    """
    parts = {"DATA": embedded(data), "MODEL": model}
    return _MARKS.sub(lambda mark: parts[mark[1]], built_page())


def built_page() -> str:
    """Return the page of `make web`, without numbers."""
    return resources.files("ropewalk.figures").joinpath("explorer.html").read_text(encoding="utf-8")


def page_of(source: str | None = None) -> str:
    """Return the page, with the ropes of a model first; raise `RopeError` if it cannot be read."""
    return explorer_page(explorer_data(None if source is None else Checkpoint.open(source)), packed_model())


def show(page: str) -> str:
    """Write the page into a new temporary folder, open it in a browser, and return the line to print.

    The file is not deleted: the browser may read it after this process ends.
    """
    path = Path(tempfile.mkdtemp(prefix="ropewalk-")) / "explorer.html"
    write_whole(path, page)
    opened = webbrowser.open(path.as_uri())
    return str(path) if opened else f"No browser could be opened. The page is here: {path}"
