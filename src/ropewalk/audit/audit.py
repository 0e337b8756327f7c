"""The rope of each layer type of a model as numbers, and as rows of text, without running the model."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ropewalk.atomic_io import finite
from ropewalk.audit.findings import Finding, blocks
from ropewalk.audit.traps import query_scale
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.errors import check_kind
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import Layers
from ropewalk.rope.values import MOST_TOKENS, check_whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The numbers of one rope: lengths in tokens, frequencies in radians per token.

    - `rope_parameters`, `theta`: empty and None if the config's frequencies do not follow from a theta (nanochat).
    - `window`: the window of its layers in tokens; None for all tokens. `local`: that of some of them, and their
      numbers. `layers`: all their numbers, of `num_layers`; empty if the config does not state the type of each.
    - `scaling`, `scaling_is_trained`, `scaled_length`, `original_length`: of `RopeConfig`; None without a scaling.
      `trained_source`: the source of these facts.
    - `query_scale`: slope and length of a scale of queries by position (`Module.query_scale`). `digest`:
      `RopeConfig.fingerprint` of its layers, at the target if frequencies depend on the length.
    - `inv_freq`: at `target` if frequencies depend on the length. `pairs_never_turning`: rotating pairs with a
      wavelength, as the model was trained, above the trained length or the window, whichever is less.
    """

    layer_type: str | None
    rope_parameters: dict[str, Any]
    theta: float | None
    head_dim: int
    rotary_dim: int
    pairs: int
    trained_length: int | None
    target: int
    inv_freq: tuple[float, ...]
    attention_factor: float
    pairs_never_turning: int | None
    scaling: str | None
    scaling_is_trained: bool | None
    scaled_length: int | None
    original_length: int | None
    trained_source: str
    window: int | None
    local: tuple[int, tuple[int, ...]] | None
    interleaved: bool
    layers: tuple[int, ...]
    num_layers: int
    query_scale: tuple[float, int] | None
    digest: str


def audit(
    config: RopeConfig,
    *,
    trained_length: int | None = None,
    target: int | None = None,
    layer_type: str | None = None,
    layers: Layers | None = None,
    query_scale: tuple[float, int] | None = None,
) -> Audit:
    """Return the numbers of one rope for text, at whose tokens all axes have the same position.

    `trained_length` defaults to the config's, `target` to four times of it, or 32,768, and `layers` to layers that
    attend to all tokens. Raises `RopeError` if a length is not positive.

    >>> result = audit(RopeConfig(128, interleaved=False, theta=5e5, max_position_embeddings=8192))
    >>> result.pairs, result.pairs_never_turning
    (64, 29)
    """
    check_kind("audit", RopeConfig, "Build one: RopeConfig.from_hf(config).", config=config)
    check_whole("audit", trained_length=trained_length, target=target)
    trained = trained_length if trained_length is not None else config.trained_length
    wanted = target if target is not None else min(4 * (trained or 8192), MOST_TOKENS)
    known = np.abs(config.as_trained().columns_at(trained or wanted))
    layers = layers or Layers()
    shown = min(filter(None, (trained, layers.window)), default=None)
    return Audit(
        layer_type=layer_type,
        rope_parameters={} if config.inv_freq is not None else config.to_hf(),
        theta=None if config.inv_freq is not None else config.ladders[0].theta,
        head_dim=config.head_dim,
        rotary_dim=2 * config.pairs,
        pairs=config.pairs,
        trained_length=trained,
        scaling=None if config.scaling is None or config.unscaled() == config else config.scaling.rope_type,
        scaling_is_trained=config.scaling_is_trained,
        scaled_length=config.scaled_length,
        original_length=config.original_length,
        trained_source="" if config.trained is None else config.trained.source,
        window=layers.window,
        local=layers.local,
        interleaved=config.interleaved,
        layers=layers.numbers,
        num_layers=layers.count,
        query_scale=query_scale,
        digest=config.fingerprint(layers.numbers, seq_len=wanted),
        target=wanted,
        inv_freq=tuple(map(abs, config.columns_at(wanted))),
        attention_factor=config.attention_factor_at(wanted),
        pairs_never_turning=None if shown is None else int(np.sum((known > 0) & (known * shown < 2 * math.pi))),
    )


def audits_of(model: Checkpoint, *, trained_length: int | None = None, target: int | None = None) -> list[Audit]:
    """Return the audit of each rope, that of full attention first, because it has the longest reach.

    Lengths are in tokens, as for `audit`. Those of the first audit apply to the whole model.
    """
    audits: list[Audit] = []
    scale = next(map(query_scale, blocks(model.config)), None) if model.config else None
    for label, rope in sorted(model.ropes.rotating.items(), key=lambda item: item[0] != "full_attention"):
        lengths: dict[str, Any] = {"trained_length": trained_length, "target": target}
        audits.append(audit(rope, layer_type=label, layers=model.ropes.layers_of(label), query_scale=scale, **lengths))
        trained_length, target = audits[0].trained_length, audits[0].target
    return audits


def inspection(name: str, audits: Sequence[Audit], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the audit as a JSON document; `audit` is the first rope's, `audits` contains all if there are several."""
    document = {
        "generator": "ropewalk",
        "model": name,
        "trained_length": audits[0].trained_length,
        "target": audits[0].target,
        "audit": audits[0],
        "lint": list(findings),
        **({"audits": list(audits)} if len(audits) > 1 else {}),
    }
    cleaned: dict[str, Any] = finite(document)
    return cleaned


def answer(audits: Sequence[Audit], served: str | None = None) -> dict[str, str]:
    """Return the ropes of a model as at most twelve rows, each with the name of its number in JSON.

    A row contains one value if all ropes have it, else one for each layer type. `served`: the length that engines
    serve, in words.
    """

    def each(show: Callable[[Audit], str]) -> str:
        shown = [(show(one), one.layer_type) for one in audits]
        alike = len({value for value, _ in shown}) == 1
        return shown[0][0] if alike else "; ".join(f"{value} ({label})" for value, label in shown)

    scale = audits[0].query_scale
    rows = {
        "layers": _layers(audits),
        "interleaved": each(
            lambda one: f"{one.interleaved}: pairs " + ("(2i, 2i + 1)" if one.interleaved else f"(i, i + {one.pairs})")
        ),
        "rotary_dim": each(_width),
        "theta": each(_theta),
        "scaling": each(_scaling),
        "attention_factor": each(lambda one: f"{one.attention_factor:.5g}: logits are multiplied by its square"),
        "query_scale": "" if scale is None else scale_words(scale),
        "window": each(_window),
        "trained_length": each(_trained),
        "served_length": served or "",
        "digest": each(lambda one: one.digest),
    }
    return {name: value for name, value in rows.items() if value}


def summary(found: Audit) -> str:
    """Return a rope in one line, to compare it with another model's.

    >>> summary(audit(RopeConfig(64, rotary_dim=32, interleaved=False, max_position_embeddings=512)))
    '16 pairs of 64 features, theta 10,000, trained length 512'
    """
    label, theta = f"{found.layer_type}: " if found.layer_type else "", _theta(found)
    scaling = "" if found.scaling is None else f", {_scaling(found)}"
    length = "" if found.trained_length is None else f", trained length {found.trained_length:,}"
    theta = theta if found.theta is None else f"theta {theta}"
    return f"{label}{_rotating(found)} pairs of {found.head_dim} features, {theta}{scaling}{length}"


def scale_words(scale: tuple[float, int]) -> str:
    """Return the scale of queries by position as a formula."""
    return f"1 + {scale[0]:g} ln(1 + floor(position / {scale[1]:,}))"


def _theta(found: Audit) -> str:
    return "its own frequencies" if found.theta is None else f"{found.theta:,.10g}"


def _rotating(found: Audit) -> int:
    """Return the number of pairs that rotate."""
    return found.pairs - found.inv_freq.count(0.0)


def _layers(audits: Sequence[Audit]) -> str:
    """Return the layers of each rope, and those without rotation."""
    count, several = audits[0].num_layers, len(audits) > 1
    if not count:
        return "" if several else "all"
    used = {number for one in audits for number in one.layers}
    parts = [f"{one.layer_type} {ranges(one.layers)}" if several else ranges(one.layers) for one in audits]
    still = [number for number in range(count) if number not in used]
    if not still:
        return f"all {count}{': ' + '; '.join(parts) if several else ''}"
    return f"{len(used)} of {count} rotate: {'; '.join(parts)}; without rotation: {ranges(still)}"


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ranges.

    >>> ranges([0, 1, 2, 5, 7]), ranges([3, 7, 11, 15]), ranges(())
    ('0-2, 5, 7', '3, 7, ..., 15', 'none')
    """
    runs = [list(run) for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    shown = [f"{run[0][1]}" if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}" for run in runs]
    steps = {(len(b), b[0][1] - a[0][1]) for a, b in itertools.pairwise(runs)}
    if len(runs) > 3 and steps == {(len(runs[0]), runs[1][0][1] - runs[0][0][1])}:
        shown[2:-1] = ["..."]
    return ", ".join(shown) or "none"


def _window(found: Audit) -> str:
    """Return the window of the layers, or of some of them."""
    if found.local is not None:
        window, numbers = found.local
        return f"{window:,} tokens in {'layers ' + ranges(numbers) if numbers else 'some layers'}, none in others"
    return "none" if found.window is None else f"{found.window:,} tokens"


def _width(found: Audit) -> str:
    """Return the rotated features, and how many pairs each axis has."""
    section = found.rope_parameters.get("mrope_section")
    axes = f", pairs of each axis {section}" if section else ""
    return f"{2 * _rotating(found)} of {found.head_dim} features of a head{axes}"


def _scaling(found: Audit) -> str:
    """Return the length scaling with its numbers."""
    if found.scaling is None:
        return "none"
    apart = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
    numbers = {key: value for key, value in found.rope_parameters.items() if key not in apart}
    shown = [
        f"{key} {f'{len(value)} numbers' if isinstance(value, list | tuple) else f'{value:,.10g}'}"
        for key, value in numbers.items()
        if isinstance(value, list | tuple | int | float)
    ]
    return f"{found.scaling}{': ' if shown else ''}{', '.join(shown)}"


def _trained(found: Audit) -> str:
    """Return the trained length, the training status of the scaling, and the pairs that never complete a turn."""
    status = _status(found)
    if found.pairs_never_turning is not None:
        within = "it"
        if found.window is not None and found.window < (found.trained_length or math.inf):
            within = "its window"
        elif found.scaling is not None and found.scaling_is_trained is None:
            within = f"{found.trained_length:,} tokens"
        status += f"; {found.pairs_never_turning} of {_rotating(found)} pairs never complete a turn within {within}"
    return f"{status}{f'. Source: {found.trained_source}' if found.trained_source else ''}"


def _status(found: Audit) -> str:
    """Return the trained length and the training status of the scaling."""
    rule, length, original = found.scaling, found.trained_length, found.original_length
    if length is None:
        return "not stated by the config; pass --trained-length"
    if rule is None:
        return f"{length:,}"
    if found.scaling_is_trained:
        before = f" ({original:,} before it)" if original is not None and original < length else ""
        return f"{length:,}, with its {rule} scaling{before}"
    stated = found.scaled_length
    longer = stated is not None and original is not None and stated > original
    if found.scaling_is_trained is False:
        to = f" to {stated:,} tokens" if longer else ""
        return f"{length:,}, without the {rule} scaling{to}, an option for inference"
    if longer:
        return (
            f"{original:,} if the {rule} scaling is an option for inference, {stated:,} if the model was trained with "
            "it: `ropewalk doctor` measures which"
        )
    unknown = f"it is unknown whether the model was trained with the {rule} scaling"
    return f"{length:,}; {unknown}: `ropewalk doctor` measures it"
