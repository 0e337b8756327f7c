"""The reach and training of a rotary configuration, as numbers and sentences, without running the model."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ropewalk.errors import check_kind
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import REACH_SEARCHED, inverse_frequencies, reach
from ropewalk.rope.model_ropes import Layers
from ropewalk.rope.values import MOST_TOKENS, check_whole

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The numbers of one rope: lengths and wavelengths in tokens, frequencies in radians per token.

    - `rope_parameters`, `theta`: empty and None if the config's frequencies do not follow from a theta (nanochat).
    - `window`: the window of its layers in tokens; None for all tokens. `layers`: their numbers, of `num_layers`;
      empty if the config does not state the type of each.
    - `interleaved`: pairs are (0, 1), (2, 3), ...; if False, (i, i + rotary_dim/2).
    - `scaling`: the rule of its length scaling. `scaling_is_trained`: whether the model was trained with it (None:
      unknown, or no scaling). `scaled_length`, `original_length`: the trained length with and without it.
      `trained_source`: the source of these facts.
    - `reach_assumed`: whether the assumptions of `reach` hold. If not, `reach_reason` states why.
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
    interleaved: bool | None = None
    layers: tuple[int, ...] = ()
    num_layers: int = 0
    reach_assumed: bool = False
    reach_reason: str | None = None


def audit(
    config: RopeConfig,
    *,
    trained_length: int | None = None,
    target: int | None = None,
    layer_type: str | None = None,
    layers: Layers | None = None,
) -> Audit:
    """Return the numbers of one rotary configuration, such as its reach, from its frequencies.

    **Arguments:**
    - `config`: the rope; all axes have the same position, as for text.
    - `trained_length`: tokens seen in training; defaults to `config.trained_length`.
    - `target`: the required length in tokens; defaults to four times the trained length, or 32,768.
    - `layer_type`: a name in the result, for models with several ropes.
    - `layers`: the layers with this rope; by default, they attend to all tokens and distinguish them only by rotation.

    **Returns:** an `Audit`. `pairs_never_turning` counts rotating pairs with a wavelength, as the model was trained,
    above the trained length or the window of the layers, whichever is less. `reach` is the first distance m >= 1 with
    sum_i cos(m theta_i) < 0: a heuristic (Men et al. 2024, "Base of RoPE Bounds Context Length", arXiv:2405.14591),
    None if there is none up to `reach_searched`; see `reach_assumed`. `float32_cos_error` is max |cos of the float32
    product - cos| near the target. Frequencies that depend on the length are those at `target`.
    **Raises:** `RopeError` if a length is not positive.

    >>> result = audit(RopeConfig(128, interleaved=False, theta=5e5, max_position_embeddings=8192))
    >>> result.pairs, result.pairs_never_turning, result.reach
    (64, 29, 18438)
    """
    check_kind("audit", RopeConfig, "Build one: RopeConfig.from_hf(config).", config=config)
    check_whole("audit", trained_length=trained_length, target=target)
    trained = trained_length if trained_length is not None else config.trained_length
    wanted = target if target is not None else min(4 * (trained or 8192), MOST_TOKENS)
    scaled, factor = text_frequencies(config, wanted)
    unscaled, _ = text_frequencies(config.unscaled(), wanted)
    known, _ = text_frequencies(config.as_trained(), trained or wanted)
    limit = min(max(wanted, REACH_SEARCHED), 16 * REACH_SEARCHED)
    distance, layers = reach(scaled, limit), layers or Layers()
    shown = min(filter(None, (trained, layers.window)), default=None)
    reason = why_no_bound(config, scaled, layers)
    if reason is None and distance is not None and trained is not None and distance <= trained:
        reason = f"the model was trained to {trained:,} tokens, beyond it"
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
        interleaved=config.interleaved,
        layers=layers.numbers,
        num_layers=layers.count,
        target=wanted,
        inv_freq=tuple(scaled.tolist()),
        inv_freq_unscaled=tuple(unscaled.tolist()),
        attention_factor=factor,
        wavelengths=wavelengths(scaled),
        wavelengths_unscaled=wavelengths(unscaled),
        pairs_never_turning=None if shown is None else int(np.sum((known > 0) & (known * shown < 2 * math.pi))),
        reach=distance,
        reach_unscaled=reach(unscaled, limit),
        reach_assumed=reason is None,
        reach_reason=reason,
        reach_searched=limit,
        float32_cos_error=float32_cos_error(scaled, wanted),
    )


def why_no_bound(config: RopeConfig, inv_freq: Array, layers: Layers) -> str | None:
    """Return the reason why the sum of cosines is not a bound for these layers; None if its assumptions hold."""
    if 2 * config.pairs < config.head_dim:
        return f"only {2 * config.pairs} of {config.head_dim} features of a head rotate"
    if not inv_freq.all():
        return "some pairs do not rotate"
    if layers.other_signal is not None:
        return layers.other_signal
    if layers.window is not None:
        return f"the layers attend to at most {layers.window:,} tokens"
    return None


def text_frequencies(config: RopeConfig, seq_len: int) -> tuple[Array, float]:
    """Return the absolute radians per text token of each pair (all axes advance together), and the attention factor."""
    frequencies = inverse_frequencies(config, seq_len=seq_len if config.needs_seq_len else None)
    array: Array = frequencies.inv_freq.double().sum(0).abs().numpy()
    return array, float(frequencies.attention_factor)


def wavelengths(inv_freq: Array) -> tuple[float | None, ...]:
    """Return the tokens per full rotation of each pair; None for a pair that does not rotate."""
    return tuple(2 * math.pi / float(f) if f != 0 else None for f in inv_freq)


def float32_cos_error(inv_freq: Array, target: int) -> float:
    """Return max |cos(float32 theta * float32 position) - cos(theta position)| over positions up to `target`.

    The positions are the last 8,192, where the error is largest, and 8,192 evenly spaced ones. theta is rounded once,
    so this is a lower bound: transformers computes theta with float32 powers, which can double the error.
    """
    last = np.arange(max(0, target - 8192), target)
    spread = np.linspace(0, target - 1, num=min(target, 8192)).astype(np.int64)
    positions = np.union1d(last, spread)
    exact = np.cos(np.outer(positions.astype(np.float64), inv_freq))
    usual = np.outer(positions.astype(np.float32), inv_freq.astype(np.float32))
    return float(np.abs(np.cos(usual.astype(np.float64)) - exact).max())


def audit_sentences(found: Audit) -> list[str]:
    """Return the audit as sentences, one fact each."""
    layers = f" of {found.layer_type} layers" if found.layer_type else ""
    theta = "its own frequencies" if found.theta is None else f"theta {found.theta:,.0f}"
    rotating = sum(1 for wavelength in found.wavelengths if wavelength is not None)
    pairs = f"{found.pairs}" if rotating == found.pairs else f"{rotating} of {found.pairs}"
    lines = [f"Rope{layers}: {pairs} pairs of {found.head_dim} features, {theta}{_scaling(found)}."]
    lines += [] if found.interleaved is None else [_layers(found)]
    trained, turns = _trained(found), f"{found.pairs_never_turning} of {rotating} pairs never complete a turn within"
    source = f" Source: {found.trained_source}." if found.trained_source else ""
    if found.window is not None and (found.trained_length is None or found.window < found.trained_length):
        lines.append(f"{trained}.{source}")
        lines.append(f"Its layers attend to at most {found.window:,} tokens: {turns} them.")
    elif found.trained_length is None:
        lines.append(f"{trained}.")
    elif found.scaling is not None and found.scaling_is_trained is None:
        lines.append(f"{trained}. {turns} {found.trained_length:,} tokens.{source}")
    else:
        lines.append(f"{trained}: {turns} it.{source}")
    if found.reach_assumed:
        lines.append(_reach(found))
    lines.append(
        f"With float32 angles, cos at {found.target:,} tokens has an error of up to {found.float32_cos_error:.1e}; "
        "in ropewalk's tables it is 6e-08."
    )
    if found.attention_factor != 1:
        lines.append(f"Attention factor {found.attention_factor:.4f}: logits are multiplied by its square.")
    return lines


def _layers(found: Audit) -> str:
    """Return the pairing, and the numbers of the layers if they are known, as a sentence."""
    pairing = "(2i, 2i + 1)" if found.interleaved else f"(i, i + {found.pairs})"
    runs = [list(run) for _, run in itertools.groupby(enumerate(found.layers), lambda pair: pair[1] - pair[0])]
    ranges = ", ".join(f"{run[0][1]}" if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}" for run in runs)
    share = f"{len(found.layers)} of {found.num_layers} layers: {ranges}"
    share = f"all {found.num_layers} layers" if len(found.layers) == found.num_layers else share
    return f"Pairs features {pairing}{f', in {share}' if found.layers else ''}."


def _scaling(found: Audit) -> str:
    """Return the length scaling, with its factor if it has one."""
    factor = found.rope_parameters.get("factor")
    if found.scaling is None:
        return ""
    return f", {found.scaling} scaling" + (f" by {factor:g}" if isinstance(factor, int | float) else "")


def _trained(found: Audit) -> str:
    """Return the trained length and the training status of the scaling, as a sentence."""
    rule, length, original = found.scaling, found.trained_length, found.original_length
    if length is None:
        return "The config does not state the trained length; pass --trained-length"
    if rule is None:
        return f"Trained length {length:,}"
    if found.scaling_is_trained:
        before = f" ({original:,} before it)" if original is not None and original < length else ""
        return f"Trained length {length:,}, with its {rule} scaling{before}"
    stated = found.scaled_length
    longer = stated is not None and original is not None and stated > original
    if found.scaling_is_trained is False:
        to = f" to {stated:,} tokens" if longer else ""
        return f"Trained length {length:,}, without the {rule} scaling{to}, an option for inference"
    if longer:
        return (
            f"Trained length {original:,} if the {rule} scaling is an option for inference, {stated:,} if the model "
            "was trained with it: `ropewalk doctor` measures which"
        )
    return (
        f"Trained length {length:,}; it is unknown whether the model was trained with the {rule} scaling: "
        "`ropewalk doctor` measures it"
    )


def _reach(found: Audit) -> str:
    """Return the base bound, described as a heuristic, as a sentence."""
    length = f"{found.reach:,} tokens" if found.reach is not None else f"more than {found.reach_searched:,} tokens"
    at = f", at the frequencies of {found.target:,} tokens" if found.scaling in ("dynamic", "longrope") else ""
    return (
        f"Reach by a heuristic (Men et al. 2024): {length}, where the sum of cos(m theta) first becomes negative{at}. "
        "Only a measurement shows the model's actual reach."
    )
