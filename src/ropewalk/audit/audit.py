"""What a rotary configuration says about its reach, without running the model; as numbers and in words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ropewalk.audit.findings import Layers
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import REACH_SEARCHED, inverse_frequencies, reach


def why_no_bound(config: RopeConfig, inv_freq: npt.NDArray[np.float64], layers: Layers) -> str | None:
    """Why the sum of cosines bounds nothing for these layers, in words; None where its assumptions hold."""
    if 2 * config.pairs < config.head_dim:
        return f"only {2 * config.pairs} of {config.head_dim} features of a head turn"
    if not inv_freq.all():
        return "some pairs stand still"
    if layers.beside is not None:
        return layers.beside
    if layers.window is not None:
        return f"the layers see no further than {layers.window:,} tokens"
    return None


def why_not_shown(
    config: RopeConfig, inv_freq: npt.NDArray[np.float64], layers: Layers, reach: int | None, trained: int | None
) -> str | None:
    """`why_no_bound`, or that the model was trained beyond it."""
    reason = why_no_bound(config, inv_freq, layers)
    if reason is None and reach is not None and trained is not None and reach <= trained:
        return f"the model was trained to {trained:,} tokens, beyond it"
    return reason


Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The numbers of one rope: lengths and wavelengths in tokens, frequencies in radians per token.

    - `rope_parameters`, `theta`: empty and None where the config's frequencies are no ladder (nanochat).
    - `window`: tokens that its layers see at most; None: all.
    - `scaling`: the rule of its length scaling; `scaling_is_trained`: whether the model was trained with it (None: that
      is open, or there is none); `scaled_length`, `original_length`: what it was trained to with it and without;
      `trained_source`: where that is said.
    - `reach_assumed`: whether the assumptions of `reach` hold; else `reach_reason` says why not, and it means nothing.
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
    inv_freq_unscaled: tuple[float, ...]
    attention_factor: float
    wavelengths: tuple[float | None, ...]
    wavelengths_unscaled: tuple[float | None, ...]
    pairs_never_turning: int | None
    reach: int | None
    reach_unscaled: int | None
    reach_searched: int
    float32_cos_error: float
    scaling: str | None = None  # this and what follows: not in documents of the first version
    scaling_is_trained: bool | None = None
    scaled_length: int | None = None
    original_length: int | None = None
    trained_source: str = ""
    window: int | None = None
    reach_assumed: bool = False
    reach_reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The audit as JSON holds it: numbers finite or null."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(self).items()
        }


def audit(
    config: RopeConfig,
    *,
    trained_length: int | None = None,
    target: int | None = None,
    layer_type: str | None = None,
    layers: Layers | None = None,
) -> Audit:
    """Say how far one rotary configuration reaches, from its frequencies alone.

    **Arguments:**
    - `config`: the rope; for several axes, text is assumed (all axes at the same position).
    - `trained_length`: tokens seen in training; default `config.trained_length`.
    - `target`: the length wanted, in tokens; default four times the trained length, or 32,768.
    - `layer_type`: a name to carry along, for models with several ropes.
    - `layers`: what the layers of this rope see; default everything, by the rotation alone.

    **Returns:** an `Audit`. `pairs_never_turning` counts pairs whose wavelength, as the model was trained, exceeds the
    trained length, or the window of the layers where that is less. `reach` is the first distance m >= 1 at which
    sum_i cos(m theta_i) < 0: a heuristic (Men et al. 2024, "Base of RoPE Bounds Context Length", arXiv:2405.14591),
    None when there is none up to `reach_searched`; see `reach_assumed`. `float32_cos_error` is max |cos of the float32
    product - cos| near the target. Where the frequencies depend on the length, they are those of `target`.
    **Raises:** `RopeError` if a length is not positive.

    >>> found = audit(RopeConfig(128, interleaved=False, theta=5e5, max_position_embeddings=8192))
    >>> found.pairs, found.pairs_never_turning, found.reach
    (64, 29, 18438)
    """
    trained = trained_length if trained_length is not None else config.trained_length
    wanted = target if target is not None else 4 * (trained or 8192)
    for name, value in (("trained_length", trained), ("target", wanted)):
        if value is not None and value < 1:
            raise RopeError(f"audit: `{name}` must be positive.", facts={name: value}, cure="Give it in tokens.")
    scaled, factor = text_frequencies(config, wanted)
    unscaled, _ = text_frequencies(config.unscaled(), wanted)
    known, _ = text_frequencies(config.as_trained(), trained or wanted)
    limit = max(wanted, REACH_SEARCHED)
    seen, around = reach(scaled, limit), layers or Layers()
    shown = min(filter(None, (trained, around.window)), default=None)
    reason = why_not_shown(config, scaled, around, seen, trained)
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
        window=around.window,
        target=wanted,
        inv_freq=tuple(scaled.tolist()),
        inv_freq_unscaled=tuple(unscaled.tolist()),
        attention_factor=factor,
        wavelengths=wavelengths(scaled),
        wavelengths_unscaled=wavelengths(unscaled),
        pairs_never_turning=None if shown is None else int(np.sum(known * shown < 2 * math.pi)),
        reach=seen,
        reach_unscaled=reach(unscaled, limit),
        reach_assumed=reason is None,
        reach_reason=reason,
        reach_searched=limit,
        float32_cos_error=float32_cos_error(scaled, wanted),
    )


def text_frequencies(config: RopeConfig, seq_len: int) -> tuple[Array, float]:
    """Radians per text token of each pair, either way (all axes advance together), and the attention factor."""
    found = inverse_frequencies(config, seq_len=seq_len if config.needs_seq_len else None)
    array: Array = found.inv_freq.double().sum(0).abs().numpy()
    return array, float(found.attention_factor)


def wavelengths(inv_freq: Array) -> tuple[float | None, ...]:
    """Tokens per full turn of each pair; None for a pair that does not turn."""
    return tuple(2 * math.pi / float(f) if f != 0 else None for f in inv_freq)


def float32_cos_error(inv_freq: Array, target: int) -> float:
    """Max |cos(float32 theta * float32 position) - cos(theta position)| over positions up to `target`.

    The last 8,192 positions and 8,192 spread evenly: the error grows with the position. theta is rounded once, so this
    is the least that float32 costs: transformers forms it by float32 powers, which add up to as much again.
    """
    last = np.arange(max(0, target - 8192), target)
    spread = np.linspace(0, target - 1, num=min(target, 8192)).astype(np.int64)
    positions = np.union1d(last, spread)
    exact = np.cos(np.outer(positions.astype(np.float64), inv_freq))
    usual = np.outer(positions.astype(np.float32), inv_freq.astype(np.float32))
    return float(np.abs(np.cos(usual.astype(np.float64)) - exact).max())


def audit_sentences(found: Audit) -> list[str]:
    """The audit in words, one fact each."""
    layers = f" of {found.layer_type} layers" if found.layer_type else ""
    theta = "frequencies of its own" if found.theta is None else f"theta {found.theta:,.0f}"
    shape = f"{found.pairs} pairs of {found.head_dim} features, {theta}"
    lines = [f"Rope{layers}: {shape}{_scaling(found)}."]
    trained, turns = _trained(found), f"{found.pairs_never_turning} of {found.pairs} pairs never complete a turn within"
    source = f" Source: {found.trained_source}." if found.trained_source else ""
    if found.window is not None and (found.trained_length is None or found.window < found.trained_length):
        lines.append(f"{trained}.{source}")
        lines.append(f"Its layers see {found.window:,} tokens at most: {turns} them.")
    elif found.trained_length is None:
        lines.append(f"{trained}.")
    elif found.scaling is not None and found.scaling_is_trained is None:
        lines.append(f"{trained}. {turns} {found.trained_length:,} tokens.{source}")
    else:
        lines.append(f"{trained}: {turns} it.{source}")
    if found.reach_assumed:
        lines.append(_reach(found))
    lines.append(
        f"float32 angles at {found.target:,} tokens put cos off by up to {found.float32_cos_error:.1e}; "
        "ropewalk's tables by 6e-08."
    )
    if found.attention_factor != 1:
        lines.append(f"Attention factor {found.attention_factor:.4f}: logits are multiplied by its square.")
    return lines


def _scaling(found: Audit) -> str:
    """The length scaling, and its factor where it has one."""
    factor = found.rope_parameters.get("factor")
    if found.scaling is None:
        return ""
    return f", {found.scaling} scaling" + (f" by {factor:g}" if isinstance(factor, int | float) else "")


def _trained(found: Audit) -> str:
    """To which length, and with which frequencies, the model was trained."""
    rule, length, original = found.scaling, found.trained_length, found.original_length
    if length is None:
        return "The config does not say the trained length; pass --trained-length"
    if rule is None:
        return f"Trained length {length:,}"
    if found.scaling_is_trained:
        before = f" ({original:,} before it)" if original is not None and original < length else ""
        return f"Trained length {length:,}, with its {rule} scaling{before}"
    stated = found.scaled_length
    longer = stated is not None and original is not None and stated > original
    if found.scaling_is_trained is False:
        to = f" to {stated:,} tokens" if longer else ""
        return f"Trained length {length:,}, the {rule} scaling{to} being an option for inference"
    if longer:
        return (
            f"Trained length {original:,} if the {rule} scaling is an option for inference, {stated:,} if it was there "
            "in training: `ropewalk doctor` measures which"
        )
    return (
        f"Trained length {length:,}; whether the {rule} scaling was there in training is not known: `ropewalk doctor` "
        "measures it"
    )


def _reach(found: Audit) -> str:
    """The base bound, named as what it is."""
    reach = f"{found.reach:,} tokens" if found.reach is not None else f"more than {found.reach_searched:,} tokens"
    at = f", at the frequencies of {found.target:,} tokens" if found.scaling in ("dynamic", "longrope") else ""
    return (
        f"Reach by a heuristic (Men et al. 2024): {reach}, where the sum of cos(m theta) first turns negative{at}. "
        "Only a measurement shows what the model reaches."
    )
