"""Comparisons of one rotary module's frequencies, tables and calls with those of its rope, in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ropewalk.attachment.probe import NEAR, Arrangement, TableRows, called_rows, takes_positions
from ropewalk.attachment.rotary import fresh
from ropewalk.audit.causes import cause_of, cause_of_factor, fault_where, grown_length, largest_error
from ropewalk.audit.findings import Severity
from ropewalk.errors import describe
from ropewalk.methods.faults import FACTOR, WIDTH, Hypothesis
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.model_ropes import ModelRopes

_EXACT = 5e-6  # relative: float32 powers and divisions
_GROW = ("_set_cos_sin_cache", "_update_cos_sin_cache", "build_rope_cache")  # methods that lengthen a table
_TRAINERS = ("cache", "freqs_cis", "rope_cache")  # tables as long as the sequences of a training
_EMPTY = "as after to_empty(), or after loading a checkpoint without this buffer into a model on the meta device"
_REBUILD = "Build the rotary module again from the config."
_FILL = "After to_empty(), build the rotary module again, or load with from_pretrained."


@dataclass(frozen=True)
class Problem:
    """A finding about one module, before equal findings are merged.

    `what`: the tensor of the module, or its call.
    """

    code: str
    what: str
    text: str
    cure: str = _REBUILD
    layer_type: str | None = None
    severity: Severity = "error"


def compare_frequencies(
    name: str, tensor: Tensor, rope: RopeConfig, ropes: ModelRopes, label: str | None
) -> Iterator[Problem]:
    """Yield problems of a module's inverse frequencies; `ropes`: all ropes of the model."""
    if not tensor.is_floating_point():
        text = f"has dtype {describe(tensor.dtype)}, expected float32"
        yield Problem("dtype", name, text, layer_type=label)
        return
    if not bool(tensor.isfinite().all()) or not bool(tensor.any()):
        number = int((~tensor.isfinite()).sum())
        what = f"{number} of {tensor.numel()} numbers are NaN or infinite" if number else "every number is 0"
        yield Problem("uninitialised", name, f"{what}, {_EMPTY}", _FILL, label)
        return
    found = tensor.detach().flatten().double().abs().cpu()  # a rope may rotate backwards
    values, columns = found.tolist(), [abs(x) for x in columns_of(rope, 1)]
    short = tensor.dtype.itemsize < 4
    tolerance = torch.finfo(tensor.dtype).eps if short else _EXACT
    sets = sorted(set(values)), sorted(set(columns))
    as_set = rope.num_axes > 1 and (len(values) != len(columns) or largest_error(*sets) <= tolerance)
    if as_set:  # towers keep the frequencies of one axis, others those of all axes in another order
        values, columns = sets
    if len(values) != len(columns):
        yield _width(name, len(values), rope, ropes, label)
        return
    error = largest_error(values, columns)
    if short:
        at = farthest(rope)[-1] - 1
        yield Problem(
            "dtype", name,
            f"has dtype {describe(tensor.dtype)}, expected float32: the largest relative error of a frequency is "
            f"{error:.2g}, so at position {at:,} a pair rotates as if it were {error * at:,.0f} tokens away",
            "Keep the rotary module in float32: load with from_pretrained(dtype=...), without model.to(dtype).", label,
        )  # fmt: skip
    if error <= tolerance:
        return
    pair = _worst(values, columns)
    text = f"pair {pair} has {values[pair]:.5g}, expected {columns[pair]:.5g} (largest relative difference {error:.3g})"
    length = None if as_set else grown_length(values, rope, tolerance)
    if length is not None:
        text += f": this is the state after a sequence of {length:,} tokens"
        cure = "Run a short sequence to reset them: until then, sequences of all lengths use these frequencies."
        yield Problem("stale-state", name, text, cure, label, "warning")
        return
    cause = None if as_set else cause_of(values, rope, ropes, max(tolerance, 1e-5))
    ascends = not as_set and any(b > 1.001 * a for a, b in itertools.pairwise(values))
    if cause is None and (max(values) > 2 * math.pi or ascends):
        yield Problem("uninitialised", name, f"{text}: these are not frequencies, {_EMPTY}", _FILL, label)
    else:
        yield _caused("frequencies", name, text, cause, label)


def _worst(values: Sequence[float], columns: Sequence[float]) -> int:
    """Return the pair with the largest relative difference."""
    return max(range(len(values)), key=lambda i: abs(values[i] - columns[i]) / (abs(columns[i]) or 1.0))


def _width(what: str, pairs: int, rope: RopeConfig, ropes: ModelRopes, label: str | None) -> Problem:
    cause = fault_where(lambda wrong: wrong.pairs == pairs, rope, ropes)
    text = f"has numbers for {2 * pairs} rotated features, expected {2 * rope.pairs} of {rope.head_dim}"
    return _caused("width", what, text, cause, label, WIDTH)


def _caused(
    code: str, what: str, text: str, cause: Hypothesis | None, label: str | None, cure: str = _REBUILD
) -> Problem:
    """Return a problem with its cause and the cure of this, if it is known."""
    text, cure = (f"{text}: {cause.words}", cause.cure) if cause else (text, cure)
    return Problem(code, what, text, cure, label)


def compare_factor(
    what: str, found: float, rope: RopeConfig, ropes: ModelRopes, label: str | None, seq_len: int = 1, eps: float = 0.0
) -> Iterator[Problem]:
    """Yield the difference of an attention factor; `eps`: the rounding of 16-bit numbers."""
    expected = attention_factor_of(rope, seq_len)
    if abs(found - expected) > (1e-5 + eps) * expected:
        text = f"has attention factor {found:.6g}, expected {expected:.6g}"
        cause = cause_of_factor(found, rope, ropes, 1e-4 + 10 * eps)
        yield _caused("attention-factor", what, text, cause, label, FACTOR)


def farthest(rope: RopeConfig) -> list[int]:
    """Return the trained length and the config's longest, in tokens."""
    return sorted({length for length in (rope.trained_length, rope.max_position_embeddings) if length}) or [8192]


def compare_table(
    module: nn.Module, rows: TableRows, rope: RopeConfig, ropes: ModelRopes, known: Set[str]
) -> Iterator[Problem]:
    """Yield problems of a module's table: its length, dtype, order of features and numbers.

    `known`: the codes of problems of the module's frequencies, which are not reported again.
    """
    longest, count = rope.max_position_embeddings, rows.count or 0
    of_short_texts = rows.seq_len is not None and rows.seq_len == rope.original_length  # one of two tables
    if longest and count < longest and not of_short_texts:
        text = f"has rows for {count:,} positions, expected {longest:,}"
        severity: Severity = "warning" if rows.name in _TRAINERS else "error"
        if any(hasattr(module, name) for name in _GROW):
            severity, text = "note", f"{text}; the module extends it for longer sequences"
        yield Problem("short-table", rows.name, text, "Build the table for max_position_embeddings.", None, severity)
    if rows.dtype.itemsize < 4 and rows.cos.shape[-1] == rope.pairs and bool(rows.cos.isfinite().all()):
        text = f"has dtype {describe(rows.dtype)}: cos and sin have a rounding error of up to {rows.eps / 2:.1e}"
        cure = "Keep the table in float32, and round after the rotation."
        yield Problem("dtype", rows.name, text, cure, None, "warning")
    lengths: list[int] = [1]
    if rope.needs_seq_len:
        known_ones = [rows.seq_len] if rows.seq_len else [1, count, longest, rope.scaled_length]
        lengths = list(dict.fromkeys(n for n in known_ones if n))
    tries = {length: list(compare_rows(rows, rope, ropes, length, None, known)) for length in lengths}
    length, best = min(tries.items(), key=lambda item: len(item[1]))
    yield from best
    if "uninitialised" in {*known, *(one.code for one in best)}:
        return
    if rope.needs_seq_len and rows.seq_len is None and not best:
        text = f"has the frequencies of a sequence of {length:,} tokens at every length"
        cure = "Use frequencies that follow the length: at other lengths this module differs from transformers."
        yield Problem("one-length", rows.name, text, cure, None, "note")
    expected = f"features (i, i + {rope.pairs})"
    if rows.arrangement.order == "repeated" and not rope.interleaved:
        text = f"repeats each number for neighbouring features (0, 1), (2, 3), ...; expected {expected}"
        yield Problem("pairing", rows.name, text, "Repeat the numbers as torch.cat((x, x), dim=-1).")
    if rows.arrangement.order == "doubled" and rope.interleaved and rope.pairs > 1 and not takes_positions(module):
        text = f"is doubled for {expected}; expected neighbouring features (0, 1), (2, 3), ..."
        cure = "Keep it only if the module reorders queries and keys first, as DeepSeek's does."
        yield Problem("pairing", rows.name, text, cure, None, "warning")


def compare_call(
    module: nn.Module, label: str | None, rope: RopeConfig, ropes: ModelRopes, known: Set[str], sines_first: bool
) -> list[Problem] | None:
    """Return problems of a rotary module's cos and sin, near and far; None if it cannot be called.

    `known`: the codes of problems of its frequencies, which are not reported again. `sines_first`: its table is one of
    sines, then cosines, in which order its forward returns them (GPT-J from transformers 5.24 on).
    """
    original = rope.original_length
    near = tuple(place for place in NEAR if not original or place < original)
    far = (0, 1, *(length - 1 for length in (min(78, *farthest(rope)), *farthest(rope))))
    if rope.needs_seq_len:
        length = original or 8192
        far = (0, 1, length // 2, length + length // 3)
    # only a short sequence resets the state of a longer one
    for places in (near,) if "stale-state" in known else (near, far):
        tries = [
            list(compare_rows(rows, rope, ropes, rows.seq_len or 1, label, known))
            + (list(_call_pairing(module, rows, rope, label, sines_first)) if places is near else [])
            for rows in called_rows(module, label, rope, places)
        ]
        if not tries:
            return None
        best = min(tries, key=len)
        if best:
            return best
    return []


def _call_pairing(
    module: nn.Module, rows: TableRows, rope: RopeConfig, label: str | None, sines_first: bool
) -> Iterator[Problem]:
    """Yield the problem if the order of cos and sin differs from that of the module's class."""
    expected = _arrangement_of_class(module, label, rope) or rows.arrangement._replace(sines_first=sines_first)
    if rows.arrangement != expected:
        text = f"the numbers of each pair are {rows.arrangement}, expected {expected} as in {type(module).__name__}"
        yield Problem("pairing", rows.name, text, "Keep the order expected by the model's rotation function.", label)


def _arrangement_of_class(module: nn.Module, label: str | None, rope: RopeConfig) -> Arrangement | None:
    """Return the order of the tables of a new module of this class; None if it cannot be built or called."""
    try:
        made = fresh(module)
    except Exception:  # its class takes other arguments
        return None
    tables = list(called_rows(made, label, rope, (0, 1, 2)))
    fitting = (rows for rows in tables if rows.cos.shape[-1] == rope.pairs)  # not of a wrong layout of positions
    return next((rows.arrangement for rows in (*fitting, *tables)), None)


def compare_rows(
    rows: TableRows, rope: RopeConfig, ropes: ModelRopes, seq_len: int, label: str | None, known: Set[str]
) -> Iterator[Problem]:
    """Yield problems of rows of cos and sin, for the frequencies of a sequence length."""
    if "uninitialised" in known:
        return
    sizes = torch.hypot(rows.cos, rows.sin)
    factor = float(sizes.median())
    if not bool(sizes.isfinite().all()):
        yield Problem("uninitialised", rows.name, f"has NaN or infinite numbers, {_EMPTY}", _FILL, label)
        return
    if factor == 0 or float((sizes - factor).abs().max()) > (1e-3 + 4 * rows.eps) * factor:
        least, most = float(sizes.min() ** 2), float(sizes.max() ** 2)
        text = f"cos^2 + sin^2 is between {least:.3g} and {most:.3g}, expected one value, {_EMPTY}"
        yield Problem("uninitialised", rows.name, text, _FILL, label)
        return
    wrong = bool(known & {"frequencies", "width", "dtype"})
    if rows.cos.shape[-1] != rope.pairs:
        yield from () if wrong else [_width(rows.name, rows.cos.shape[-1], rope, ropes, label)]
        return
    if "attention-factor" not in known:
        yield from compare_factor(rows.name, factor, rope, ropes, label, seq_len, rows.eps)
    differences, allowed, _ = rows.differences(rope, seq_len, factor)
    if wrong or bool((differences <= allowed).all()):
        return
    at = int((differences - allowed).amax(-1).argmax())
    text = f"differs by up to {float(differences[at].max()):.3g} at position {rows.positions[at].tolist()}"
    one = next((i for i, place in enumerate(rows.positions.tolist()) if place in (1, [1] * rope.num_axes)), None)
    cause = None
    if one is not None:
        found = torch.atan2(rows.sin[one], rows.cos[one]).abs().tolist()
        columns = [abs(x) for x in columns_of(rope, seq_len)]
        cause, pair = cause_of(found, rope, ropes, max(1e-5, rows.eps)), _worst(found, columns)
        text += f"; pair {pair} rotates by {found[pair]:.5g} rad per token, expected {columns[pair]:.5g}"
    yield _caused("tables", rows.name, text, cause, label)


def compare_stated_pairing(module: nn.Module, rope: RopeConfig) -> Iterator[Problem]:
    """Yield the problem if a module states a wrong pairing: vLLM's `is_neox_style`, flash-attention's `interleaved`."""
    for name, half_split in (("is_neox_style", True), ("interleaved", False)):
        stated, expected = getattr(module, name, None), rope.interleaved != half_split
        if isinstance(stated, bool) and stated != expected:
            cure = "Pair features (0, 1), (2, 3), ... if the rope is interleaved, else (i, i + rotary_dim / 2)."
            yield Problem("pairing", name, f"is {stated}, expected {expected}", cure)
