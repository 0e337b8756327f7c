"""Comparisons of one rotary module's frequencies, tables and calls with those of its rope, in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ropewalk.attachment.probe import NEAR, TableRows, called_rows, takes_positions
from ropewalk.attachment.rotary import fresh
from ropewalk.audit.causes import cause_of, cause_of_factor, fault_where, grown_length, largest_error
from ropewalk.audit.faults import FACTOR, WIDTH, Hypothesis
from ropewalk.audit.findings import Severity
from ropewalk.errors import describe
from ropewalk.rope.config import RopeConfig
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


@dataclass(frozen=True)
class Comparison:
    """Comparisons of one rotary module's numbers with those of a rope.

    `ropes`: of the whole model. `label`: the layer type of the numbers. `known`: the codes of problems of the module's
    frequencies, which are not reported again.
    """

    module: nn.Module
    rope: RopeConfig
    ropes: ModelRopes
    label: str | None = None
    known: Set[str] = frozenset()

    def _problem(self, code: str, what: str, text: str, cure: str = _REBUILD, severity: Severity = "error") -> Problem:
        return Problem(code, what, text, cure, self.label, severity)

    def _caused(self, code: str, what: str, text: str, cause: Hypothesis | None, cure: str = _REBUILD) -> Problem:
        """Return a problem with its cause and the cure of this, if it is known."""
        text, cure = (f"{text}: {cause.words}", cause.cure) if cause else (text, cure)
        return self._problem(code, what, text, cure)

    def _width(self, what: str, pairs: int) -> Problem:
        cause = fault_where(lambda wrong: wrong.pairs == pairs, self.rope, self.ropes)
        text = f"has numbers for {2 * pairs} rotated features, expected {2 * self.rope.pairs} of {self.rope.head_dim}"
        return self._caused("width", what, text, cause, WIDTH)

    def frequencies(self, name: str, tensor: Tensor) -> Iterator[Problem]:
        """Yield problems of a module's inverse frequencies."""
        rope = self.rope
        if not tensor.is_floating_point():
            yield self._problem("dtype", name, f"has dtype {describe(tensor.dtype)}, expected float32")
            return
        if not bool(tensor.isfinite().all()) or not bool(tensor.any()):
            number = int((~tensor.isfinite()).sum())
            what = f"{number} of {tensor.numel()} numbers are NaN or infinite" if number else "every number is 0"
            yield self._problem("uninitialised", name, f"{what}, {_EMPTY}", _FILL)
            return
        found = tensor.detach().flatten().double().abs().cpu()  # a rope may rotate backwards
        values, columns = found.tolist(), [abs(x) for x in rope.columns_at(1)]
        short = tensor.dtype.itemsize < 4
        tolerance = torch.finfo(tensor.dtype).eps if short else _EXACT
        sets = sorted(set(values)), sorted(set(columns))
        as_set = rope.num_axes > 1 and (len(values) != len(columns) or largest_error(*sets) <= tolerance)
        if as_set:  # towers keep the frequencies of one axis, others those of all axes in another order
            values, columns = sets
        if len(values) != len(columns):
            yield self._width(name, len(values))
            return
        error = largest_error(values, columns)
        if short:
            at = farthest(rope)[-1] - 1
            text = (
                f"has dtype {describe(tensor.dtype)}, expected float32: the largest relative error of a frequency is "
                f"{error:.2g}, so at position {at:,} a pair rotates as if it were {error * at:,.0f} tokens away"
            )
            cure = "Keep the rotary module in float32: load with from_pretrained(dtype=...), without model.to(dtype)."
            yield self._problem("dtype", name, text, cure)
        if error <= tolerance:
            return
        pair = _worst(values, columns)
        text = f"pair {pair} has {values[pair]:.5g}, expected {columns[pair]:.5g} (largest relative difference "
        text += f"{error:.3g})"
        length = None if as_set else grown_length(values, rope, tolerance)
        if length is not None:
            text += f": this is the state after a sequence of {length:,} tokens"
            cure = "Run a short sequence to reset them: until then, sequences of all lengths use these frequencies."
            yield self._problem("stale-state", name, text, cure, "warning")
            return
        cause = None if as_set else cause_of(values, rope, self.ropes, max(tolerance, 1e-5))
        ascends = not as_set and any(b > 1.001 * a for a, b in itertools.pairwise(values))
        if cause is None and (max(values) > 2 * math.pi or ascends):
            yield self._problem("uninitialised", name, f"{text}: these are not frequencies, {_EMPTY}", _FILL)
        else:
            yield self._caused("frequencies", name, text, cause)

    def factor(self, what: str, found: float, seq_len: int = 1, eps: float = 0.0) -> Iterator[Problem]:
        """Yield the difference of an attention factor; `eps`: the rounding of 16-bit numbers."""
        expected = self.rope.attention_factor_at(seq_len)
        if abs(found - expected) > (1e-5 + eps) * expected:
            text = f"has attention factor {found:.6g}, expected {expected:.6g}"
            cause = cause_of_factor(found, self.rope, self.ropes, 1e-4 + 10 * eps)
            yield self._caused("attention-factor", what, text, cause, FACTOR)

    def table(self, rows: TableRows) -> Iterator[Problem]:
        """Yield problems of a module's table: its length, dtype, order of features and numbers."""
        rope, name, order = self.rope, rows.name, rows.arrangement.order
        longest, count = rope.max_position_embeddings, rows.count or 0
        of_short_texts = rows.seq_len is not None and rows.seq_len == rope.original_length  # one of two tables
        if longest and count < longest and not of_short_texts:
            text = f"has rows for {count:,} positions, expected {longest:,}"
            severity: Severity = "warning" if name in _TRAINERS else "error"
            if any(hasattr(self.module, method) for method in _GROW):
                severity, text = "note", f"{text}; the module extends it for longer sequences"
            yield self._problem("short-table", name, text, "Build the table for max_position_embeddings.", severity)
        if rows.dtype.itemsize < 4 and rows.cos.shape[-1] == rope.pairs and bool(rows.cos.isfinite().all()):
            text = f"has dtype {describe(rows.dtype)}: cos and sin have a rounding error of up to {rows.eps / 2:.1e}"
            yield self._problem(
                "dtype", name, text, "Keep the table in float32, and round after the rotation.", "warning"
            )
        lengths: list[int] = [1]
        if rope.needs_seq_len:
            known_ones = [rows.seq_len] if rows.seq_len else [1, count, longest, rope.scaled_length]
            lengths = list(dict.fromkeys(n for n in known_ones if n))
        tries = {length: list(self._rows(rows, length)) for length in lengths}
        length, best = min(tries.items(), key=lambda item: len(item[1]))
        yield from best
        if "uninitialised" in {*self.known, *(one.code for one in best)}:
            return
        if rope.needs_seq_len and rows.seq_len is None and not best:
            text = f"has the frequencies of a sequence of {length:,} tokens at every length"
            cure = "Use frequencies that follow the length: at other lengths this module differs from transformers."
            yield self._problem("one-length", name, text, cure, "note")
        expected = f"features (i, i + {rope.pairs})"
        if order == "repeated" and not rope.interleaved:
            text = f"repeats each number for neighbouring features (0, 1), (2, 3), ...; expected {expected}"
            yield self._problem("pairing", name, text, "Repeat the numbers as torch.cat((x, x), dim=-1).")
        if order == "doubled" and rope.interleaved and rope.pairs > 1 and not takes_positions(self.module):
            text = f"is doubled for {expected}; expected neighbouring features (0, 1), (2, 3), ..."
            cure = "Keep it only if the module reorders queries and keys first, as DeepSeek's does."
            yield self._problem("pairing", name, text, cure, "warning")

    def call(self, sines_first: bool) -> list[Problem] | None:
        """Return problems of a rotary module's cos and sin, near and far; None if it cannot be called.

        `sines_first`: its table is one of sines, then cosines, in which order its forward returns them (GPT-J from
        transformers 5.24 on).
        """
        rope, original = self.rope, self.rope.original_length
        near = tuple(place for place in NEAR if not original or place < original)
        far = (0, 1, *(length - 1 for length in (min(78, *farthest(rope)), *farthest(rope))))
        if rope.needs_seq_len:
            length = original or 8192
            far = (0, 1, length // 2, length + length // 3)
        # only a short sequence resets the state of a longer one
        for places in (near,) if "stale-state" in self.known else (near, far):
            tries = [
                [*self._rows(rows, rows.seq_len or 1), *(self._order(rows, sines_first) if places is near else ())]
                for rows in called_rows(self.module, self.label, rope, places)
            ]
            if not tries:
                return None
            best = min(tries, key=len)
            if best:
                return best
        return []

    def _order(self, rows: TableRows, sines_first: bool) -> Iterator[Problem]:
        """Yield the problem if the order of cos and sin differs from that of a new module of this class."""
        expected, name = rows.arrangement._replace(sines_first=sines_first), type(self.module).__name__
        with suppress(Exception):  # its class takes other arguments
            tables = list(called_rows(fresh(self.module), self.label, self.rope, (0, 1, 2)))
            fitting = (
                one for one in tables if one.cos.shape[-1] == self.rope.pairs
            )  # not of a wrong layout of positions
            expected = next((one.arrangement for one in (*fitting, *tables)), expected)
        if rows.arrangement != expected:
            text = f"the numbers of each pair are {rows.arrangement}, expected {expected} as in {name}"
            yield self._problem("pairing", rows.name, text, "Keep the order expected by the model's rotation function.")

    def _rows(self, rows: TableRows, seq_len: int) -> Iterator[Problem]:
        """Yield problems of rows of cos and sin, for the frequencies of a sequence length."""
        if "uninitialised" in self.known:
            return
        rope, name, sizes = self.rope, rows.name, torch.hypot(rows.cos, rows.sin)
        factor = float(sizes.median())
        if not bool(sizes.isfinite().all()):
            yield self._problem("uninitialised", name, f"has NaN or infinite numbers, {_EMPTY}", _FILL)
            return
        if factor == 0 or float((sizes - factor).abs().max()) > (1e-3 + 4 * rows.eps) * factor:
            least, most = float(sizes.min() ** 2), float(sizes.max() ** 2)
            text = f"cos^2 + sin^2 is between {least:.3g} and {most:.3g}, expected one value, {_EMPTY}"
            yield self._problem("uninitialised", name, text, _FILL)
            return
        wrong = bool(self.known & {"frequencies", "width", "dtype"})
        if rows.cos.shape[-1] != rope.pairs:
            yield from () if wrong else [self._width(name, rows.cos.shape[-1])]
            return
        if "attention-factor" not in self.known:
            yield from self.factor(name, factor, seq_len, rows.eps)
        differences, allowed, _ = rows.differences(rope, seq_len, factor)
        if wrong or bool((differences <= allowed).all()):
            return
        at = int((differences - allowed).amax(-1).argmax())
        text = f"differs by up to {float(differences[at].max()):.3g} at position {rows.positions[at].tolist()}"
        one = next((i for i, place in enumerate(rows.positions.tolist()) if place in (1, [1] * rope.num_axes)), None)
        cause = None
        if one is not None:
            found = torch.atan2(rows.sin[one], rows.cos[one]).abs().tolist()
            columns = [abs(x) for x in rope.columns_at(seq_len)]
            cause, pair = cause_of(found, rope, self.ropes, max(1e-5, rows.eps)), _worst(found, columns)
            text += f"; pair {pair} rotates by {found[pair]:.5g} rad per token, expected {columns[pair]:.5g}"
        yield self._caused("tables", name, text, cause)


def _worst(values: Sequence[float], columns: Sequence[float]) -> int:
    """Return the pair with the largest relative difference."""
    return max(range(len(values)), key=lambda i: abs(values[i] - columns[i]) / (abs(columns[i]) or 1.0))


def farthest(rope: RopeConfig) -> list[int]:
    """Return the trained length and the config's longest, in tokens."""
    return sorted({length for length in (rope.trained_length, rope.max_position_embeddings) if length}) or [8192]


def compare_stated_pairing(module: nn.Module, rope: RopeConfig) -> Iterator[Problem]:
    """Yield the problem if a module states a wrong pairing: vLLM's `is_neox_style`, flash-attention's `interleaved`."""
    for name, half_split in (("is_neox_style", True), ("interleaved", False)):
        stated, expected = getattr(module, name, None), rope.interleaved != half_split
        if isinstance(stated, bool) and stated != expected:
            cure = "Pair features (0, 1), (2, 3), ... if the rope is interleaved, else (i, i + rotary_dim / 2)."
            yield Problem("pairing", name, f"is {stated}, expected {expected}", cure)
