"""The check of a live model: its rotary modules compared with its config in float64, without a forward of the model."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attachment import attachment_of, probe
from ropewalk.attachment.rotary import TablesForward, fresh
from ropewalk.audit.causes import cause_of, cause_of_factor, fault_where, grown_length, largest_error
from ropewalk.audit.faults import FACTOR, WIDTH, Hypothesis
from ropewalk.audit.findings import SEVERITIES, Finding, Severity
from ropewalk.errors import RopeError, describe
from ropewalk.families import family_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.hugging_face import text_part
from ropewalk.rope.model_ropes import ModelRopes

_UNDESCRIBED = ("MusicFlamingoRotaryEmbedding",)  # its angles are products of two times, not of positions
_EXACT = 5e-6  # relative: float32 powers and divisions
_GROW = ("_set_cos_sin_cache", "_update_cos_sin_cache", "build_rope_cache")  # methods that lengthen a table
_TRAINERS = ("cache", "freqs_cis", "rope_cache")  # tables as long as the sequences of a training
_EMPTY = "as after to_empty(), or after loading a checkpoint without this buffer into a model on the meta device"
_REBUILD = "Build the rotary module again from the config."
_FILL = "After to_empty(), build the rotary module again, or load with from_pretrained."
Problem = tuple[str, Finding]
"""The tensor of a module, or its call, and what is wrong with it: a finding whose message does not say where."""


def check(model: nn.Module, config: Any = None, *, strict: bool = False) -> tuple[Finding, ...]:
    """Compare a live model's rotary modules with its config, without a forward of the model.

    The function calls each rotary module with a few positions and compares its buffers (`inv_freq`, `cos_cached`,
    `cos_sin_cache`, `freqs_cis`, ...) at a few rows, in float64. It uses no weights, so a model of any size takes
    seconds. The model does not change.

    **Arguments:**
    - `model`: a transformers model, one of torchtitan or torchtune, or any module with such buffers.
    - `config`: the expected config: a `RopeConfig`, a transformers config or the dict of a config.json.
      Defaults to the model's own config.
    - `strict`: raise `RopeError` if there is a finding of severity "error".

    **Returns:** findings, errors first; empty if everything agrees. Unchecked modules are reported as notes.
    **Raises:** `RopeError` if the model has no config and `config` is None, and with `strict` if there are errors.

    >>> module = nn.Module()
    >>> module.register_buffer("inv_freq", 10_000.0 ** (-torch.arange(0, 8, 2) / 8))
    >>> print(check(module, RopeConfig(8, interleaved=False, theta=500_000.0))[0].message)
    inv_freq: pair 3 has 0.001, expected 5.3183e-05 (largest relative difference 17.8): theta 10000 in place of 500000
    """
    expected = _Expected(model, config)
    problems: dict[Problem, list[str]] = {}
    seen = False
    with torch.device("cpu"), torch.no_grad():  # engines build models under another default device
        for name, module in model.named_modules():
            looked_up = expected.looked_up_in(name)
            if probe.is_rotary(module) or probe.tables_of(module, looked_up):
                seen = True
                for problem in examine(module, expected.ropes_of(name, module), looked_up):
                    problems.setdefault(problem, []).append(name)
    found = [_placed(*problem, names) for problem, names in problems.items()] if seen else [_nothing(expected)]
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    errors = [finding for finding in found if finding.severity == "error"]
    if strict and errors:
        raise RopeError(
            "check: the rotary modules of this model differ from its config.",
            facts={f"{place}. {finding.code}": finding.message for place, finding in enumerate(errors, start=1)},
            cure=errors[0].cure,
        )
    return tuple(found)


def _placed(what: str, finding: Finding, names: Sequence[str]) -> Finding:
    """Return one finding for all modules with a problem, with its place."""
    name, label = names[0], finding.layer_type
    where = f"{name}.{what}" if name and what.replace("_", "").isalnum() else f"{what} of {name}" if name else what
    where += f", {label} layers" if label and label not in what else ""
    where += f" (and {len(names) - 1} more modules)" if len(names) > 1 else ""
    return dataclasses.replace(finding, message=f"{where}: {finding.message}")


def _nothing(expected: _Expected) -> Finding:
    """Return the finding about a model without rotary modules; a note if its config has no rope."""
    described = expected.ropes_of("", nn.Module())
    reason = f"; {described}" if isinstance(described, str) else ""
    return Finding(
        code="no-rotary-module",
        severity="note" if reason else "warning",
        message=f"no module has inverse frequencies or tables of cos and sin, so nothing was checked{reason}",
        cure="Pass the model with the rotary modules.",
    )


class _Expected:
    """The expected ropes of a model's modules."""

    def __init__(self, model: nn.Module, config: Any) -> None:
        configs = (getattr(module, "config", None) for module in model.modules())  # a wrapper has none of its own
        own = next((each for each in configs if _model_type(each)), None)
        self.whole = own if config is None else config
        if self.whole is None:
            raise RopeError(
                "check: the model has no config, so there is nothing to compare with.",
                facts={"model": type(model).__name__},
                cure="Pass config=: a RopeConfig, a transformers config or the dict of a config.json.",
            )
        self.text = _text_of(self.whole)
        self.own_text = getattr(_text_of(own), "model_type", None)
        self.attachment = attachment_of(model) if config is None else None
        family = family_named(_model_type(self.text))
        self.looked_up = (family and family.module.looked_up) or ""

    def looked_up_in(self, name: str) -> str | None:
        """Return the name of the module's tensor with sines and cosines if its family has one there."""
        *path, tensor = self.looked_up.split(".")
        return tensor if tensor and name.split(".")[-len(path) :][: len(path)] == path else None

    def ropes_of(self, name: str, module: nn.Module) -> ModelRopes | str:
        """Return the ropes of a module, or the reason why they are unknown."""
        if isinstance(self.whole, RopeConfig):
            return ModelRopes((self.whole,), (None,), (None,))
        if self.attachment is not None and _is_attached(module):
            return dataclasses.replace(self.attachment.own, ropes=self.attachment.positions.ropes)
        config = self._config_of(name, module)
        if config is None:
            return "the module has no config, and the model's config has several parts"
        try:
            family = family_named(_model_type(config))
            learned = family and family.module.learned
            return ModelRopes.from_hf(config, alpha=probe.tensors_of(module).get(learned) if learned else None)
        except RopeError as error:
            return f"ropewalk does not support the rope of its config: {error.rule}"

    def _config_of(self, name: str, module: nn.Module) -> Any:
        """Return the expected config of a module; None if it is unknown which part of the whole this is."""
        own, parts = getattr(module, "config", None), list(_parts(self.whole))
        model_type = getattr(own, "model_type", None)
        if not model_type:
            unknown = len(parts) > 1 and any(word in name for word in ("vis", "audio", "tower"))
            return None if unknown else self.text
        same = [part for part in parts if _model_type(part) == model_type]
        if any(part is own for part in same) or len(same) > 1:
            return own
        return same[0] if same else self.text if model_type == self.own_text else own


def _model_type(config: Any) -> str:
    value = config.get("model_type") if isinstance(config, Mapping) else getattr(config, "model_type", None)
    return str(value or "")


def _text_of(config: Any) -> Any:
    if isinstance(config, Mapping):
        return text_part(config)
    part = getattr(config, "get_text_config", None)
    return part(decoder=True) if callable(part) else config


def _parts(config: Any) -> Iterator[Any]:
    """Yield a config and those inside it that have a model_type."""
    yield config
    values = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    for value in values.values():
        if value is not config and _model_type(value):
            yield from _parts(value)


# --- one module


def examine(module: nn.Module, ropes: ModelRopes | str, looked_up: str | None = None) -> list[Problem]:
    """Return the problems of a module.

    `ropes`: of the model, or the reason why they are unknown. `looked_up`: see `tables_of`.
    """
    kind, tensors = type(module).__name__, probe.tensors_of(module)
    if any(tensor.is_meta for tensor in tensors.values()):
        text = "its buffers are on the meta device; not checked"
        return [_problem("meta", kind, text, "Check the model after its weights are loaded.", "note")]
    if isinstance(ropes, str) or kind in _UNDESCRIBED:
        return [_not_checked(kind, ropes if isinstance(ropes, str) else "its angles match no position")]
    found, labelled = list[Problem](), dict[str | None, _Comparison]()
    frequencies = [] if _is_attached(module) else [*probe.frequencies_of(module)]
    for name, label, tensor in frequencies:
        rope = _nearest(ropes.of_label(label), tensor)
        if rope is not None:
            one, before = _Comparison(module, ropes, rope, label), labelled.get(label)
            one.known |= before.known if before else set()
            labelled[label] = one
            factor = getattr(module, f"{label}_attention_scaling" if label else "attention_scaling", None)
            problems = [*one.frequencies(name, tensor), *one.factor("attention_scaling", factor)]
            one.known |= {finding.code for _, finding in problems}
            found += problems
    candidates = [_Comparison(module, ropes, rope) for rope in ropes.of_label(None)]
    if None in labelled:
        candidates = [labelled[None]]
    tables = probe.tables_of(module, looked_up) if candidates else {}
    for name, parts in tables.items():
        tries = [list(one.tables(name, parts)) for one in candidates]
        fewest = min(tries, key=len)
        found += fewest
    called = [*labelled.values()] if frequencies else candidates[:1]
    called = called if probe.takes_positions(module) else []
    for one in called:
        differing = one.call(sines_first=looked_up in tensors)
        reason = "its forward does not support the positions of this rope, or fails"
        found += [_not_checked(kind, reason)] if differing is None else differing
    for one in candidates[:1]:
        found += one.stated_pairing()
        if not (labelled or tables or called or found):
            found.append(_not_checked(kind, "it has no frequencies or tables, and its forward has no position ids"))
    return list(dict.fromkeys(found))


def _problem(
    code: str, what: str, text: str, cure: str = _REBUILD, severity: Severity = "error", label: str | None = None
) -> Problem:
    return what, Finding(code=code, severity=severity, message=text, cure=cure, layer_type=label)


def _not_checked(kind: str, reason: str) -> Problem:
    cure = "Compare its results with ropewalk.RotaryEmbedding."
    return _problem("not-checked", kind, f"not checked: {reason.rstrip('.')}", cure, "note")


def _is_attached(module: nn.Module) -> bool:
    return isinstance(vars(module).get("_old_forward", vars(module).get("forward")), TablesForward)


def _nearest(ropes: Sequence[RopeConfig], found: Tensor) -> RopeConfig | None:
    """Return the rope with the nearest frequencies."""
    if len(ropes) < 2 or not found.is_floating_point():
        return next(iter(ropes), None)
    columns = found.detach().flatten().double().tolist()
    return min(ropes, key=lambda rope: largest_error(columns, rope.columns_at(1)))


def _worst(values: Sequence[float], columns: Sequence[float]) -> int:
    """Return the pair with the largest relative difference."""
    return max(range(len(values)), key=lambda i: abs(values[i] - columns[i]) / (abs(columns[i]) or 1.0))


@dataclasses.dataclass
class _Comparison:
    """Comparisons of one rotary module's numbers with those of a rope.

    `ropes`: of the whole model. `label`: the layer type of the numbers. `known`: the codes of problems of the module's
    frequencies, which are not reported again.
    """

    module: nn.Module
    ropes: ModelRopes
    rope: RopeConfig
    label: str | None = None
    known: set[str] = dataclasses.field(default_factory=set)

    @property
    def farthest(self) -> list[int]:
        """Return the trained length and the config's longest, in tokens."""
        return sorted({n for n in (self.rope.trained_length, self.rope.max_position_embeddings) if n}) or [8192]

    def problem(
        self,
        code: str,
        what: str,
        text: str,
        cure: str = _REBUILD,
        severity: Severity = "error",
        cause: Hypothesis | None = None,
    ) -> Problem:
        """Return a problem, with its cause and the cure of this if it is known."""
        text, cure = (text, cure) if cause is None else (f"{text}: {cause.words}", cause.cure)
        return _problem(code, what, text, cure, severity, self.label)

    def width(self, what: str, pairs: int) -> Problem:
        """Return the problem of another number of rotated features."""
        cause = fault_where(lambda wrong: wrong.pairs == pairs, self.rope, self.ropes)
        text = f"has numbers for {2 * pairs} rotated features, expected {2 * self.rope.pairs} of {self.rope.head_dim}"
        return self.problem("width", what, text, WIDTH, cause=cause)

    def frequencies(self, name: str, tensor: Tensor) -> Iterator[Problem]:
        """Yield problems of inverse frequencies."""
        rope = self.rope
        if not tensor.is_floating_point():
            yield self.problem("dtype", name, f"has dtype {describe(tensor.dtype)}, expected float32")
            return
        if not bool(tensor.isfinite().all()) or not bool(tensor.any()):
            number = int((~tensor.isfinite()).sum())
            what = f"{number} of {tensor.numel()} numbers are NaN or infinite" if number else "every number is 0"
            yield self.problem("uninitialised", name, f"{what}, {_EMPTY}", _FILL)
            return
        values = tensor.detach().cpu().flatten().double().abs().tolist()  # a rope may rotate backwards
        columns = [abs(x) for x in rope.columns_at(1)]
        short = tensor.dtype.itemsize < 4
        tolerance = torch.finfo(tensor.dtype).eps if short else _EXACT
        sets = sorted(set(values)), sorted(set(columns))
        as_set = rope.num_axes > 1 and (len(values) != len(columns) or largest_error(*sets) <= tolerance)
        if as_set:  # towers keep the frequencies of one axis, others those of all axes in another order
            values, columns = sets
        if len(values) != len(columns):
            yield self.width(name, len(values))
            return
        error = largest_error(values, columns)
        if short:
            at = self.farthest[-1] - 1
            text = (
                f"has dtype {describe(tensor.dtype)}, expected float32: the largest relative error of a frequency is "
                f"{error:.2g}, so at position {at:,} a pair rotates as if it were {error * at:,.0f} tokens away"
            )
            cure = "Keep the rotary module in float32: load with from_pretrained(dtype=...), without model.to(dtype)."
            yield self.problem("dtype", name, text, cure)
        if error <= tolerance:
            return
        pair = _worst(values, columns)
        text = f"pair {pair} has {values[pair]:.5g}, expected {columns[pair]:.5g} (largest relative difference "
        text += f"{error:.3g})"
        length = None if as_set else grown_length(values, rope, tolerance)
        if length is not None:
            text += f": this is the state after a sequence of {length:,} tokens"
            cure = "Run a short sequence to reset them: until then, sequences of all lengths use these frequencies."
            yield self.problem("stale-state", name, text, cure, "warning")
            return
        cause = None if as_set else cause_of(values, rope, self.ropes, max(tolerance, 1e-5))
        ascends = not as_set and any(b > 1.001 * a for a, b in itertools.pairwise(values))
        if cause is None and (max(values) > 2 * math.pi or ascends):
            yield self.problem("uninitialised", name, f"{text}: these are not frequencies, {_EMPTY}", _FILL)
        else:
            yield self.problem("frequencies", name, text, cause=cause)

    def factor(self, what: str, found: object, seq_len: int = 1, eps: float = 0.0) -> Iterator[Problem]:
        """Yield the difference of an attention factor, if it is a number; `eps`: the rounding of 16-bit numbers."""
        expected = self.rope.attention_factor_at(seq_len)
        if isinstance(found, int | float) and abs(found - expected) > (1e-5 + eps) * expected:
            text = f"has attention factor {found:.6g}, expected {expected:.6g}"
            cause = cause_of_factor(found, self.rope, self.ropes, 1e-4 + 10 * eps)
            yield self.problem("attention-factor", what, text, FACTOR, cause=cause)

    def tables(self, name: str, parts: tuple[Tensor, ...]) -> Iterator[Problem]:
        """Yield problems of a stored table."""
        for rows in probe.table_rows(name, parts, self.rope, [n - 1 for n in self.farthest]):
            yield from self._table(rows)

    def _table(self, rows: probe.TableRows) -> Iterator[Problem]:
        """Yield problems of the length, the dtype, the numbers and the order of features."""
        rope, name, order = self.rope, rows.name, rows.arrangement.order
        longest, count = rope.max_position_embeddings, rows.count or 0
        of_short_texts = rows.seq_len is not None and rows.seq_len == rope.original_length  # one of two tables
        if longest and count < longest and not of_short_texts:
            text = f"has rows for {count:,} positions, expected {longest:,}"
            severity: Severity = "warning" if name in _TRAINERS else "error"
            if any(hasattr(self.module, method) for method in _GROW):
                severity, text = "note", f"{text}; the module extends it for longer sequences"
            yield self.problem("short-table", name, text, "Build the table for max_position_embeddings.", severity)
        if rows.dtype.itemsize < 4 and rows.cos.shape[-1] == rope.pairs and bool(rows.cos.isfinite().all()):
            text = f"has dtype {describe(rows.dtype)}: cos and sin have a rounding error of up to {rows.eps / 2:.1e}"
            cure = "Keep the table in float32, and round after the rotation."
            yield self.problem("dtype", name, text, cure, "warning")
        lengths: list[int | None] = [1]
        if rope.needs_seq_len:
            lengths = [rows.seq_len] if rows.seq_len else [1, count, longest, rope.scaled_length]
        tries = {length: [*self.rows(rows, length)] for length in lengths if length}
        length, best = min(tries.items(), key=lambda item: len(item[1]))
        yield from best
        if "uninitialised" in {*self.known, *(finding.code for _, finding in best)}:
            return
        if rope.needs_seq_len and rows.seq_len is None and not best:
            text = f"has the frequencies of a sequence of {length:,} tokens at every length"
            cure = "Use frequencies that follow the length: at other lengths this module differs from transformers."
            yield self.problem("one-length", name, text, cure, "note")
        expected = f"features (i, i + {rope.pairs})"
        if order == "repeated" and not rope.interleaved:
            text = f"repeats each number for neighbouring features (0, 1), (2, 3), ...; expected {expected}"
            yield self.problem("pairing", name, text, "Repeat the numbers as torch.cat((x, x), dim=-1).")
        if order == "doubled" and rope.interleaved and rope.pairs > 1 and not probe.takes_positions(self.module):
            text = f"is doubled for {expected}; expected neighbouring features (0, 1), (2, 3), ..."
            cure = "Keep it only if the module reorders queries and keys first, as DeepSeek's does."
            yield self.problem("pairing", name, text, cure, "warning")

    def call(self, sines_first: bool) -> list[Problem] | None:
        """Return problems of the cos and sin of a call, near and far; None if the module cannot be called.

        `sines_first`: its table is one of sines, then cosines, in which order its forward returns them (GPT-J from
        transformers 5.24 on).
        """
        rope, original = self.rope, self.rope.original_length
        near = tuple(place for place in probe.NEAR if not original or place < original)
        far = (0, 1, *(length - 1 for length in (min(78, *self.farthest), *self.farthest)))
        if rope.needs_seq_len:
            length = original or 8192
            far = (0, 1, length // 2, length + length // 3)
        # only a short sequence resets the state of a longer one
        for places in (near,) if "stale-state" in self.known else (near, far):
            tries = [
                [*self.rows(rows, rows.seq_len or 1), *(self._order(rows, sines_first) if places is near else ())]
                for rows in probe.called_rows(self.module, self.label, rope, places)
            ]
            best = min(tries, key=len, default=None)
            if best is None or best:
                return best
        return []

    def _order(self, rows: probe.TableRows, sines_first: bool) -> Iterator[Problem]:
        """Yield the problem if the order of cos and sin differs from that of a new module of this class."""
        expected, name = rows.arrangement._replace(sines_first=sines_first), type(self.module).__name__
        with suppress(Exception):  # its class takes other arguments
            tables = list(probe.called_rows(fresh(self.module), self.label, self.rope, (0, 1, 2)))
            fitting = (one for one in tables if one.cos.shape[-1] == self.rope.pairs)  # not of a wrong layout
            expected = next((one.arrangement for one in (*fitting, *tables)), expected)
        if rows.arrangement != expected:
            text = f"the numbers of each pair are {rows.arrangement}, expected {expected} as in {name}"
            yield self.problem("pairing", rows.name, text, "Keep the order expected by the model's rotation function.")

    def rows(self, rows: probe.TableRows, seq_len: int) -> Iterator[Problem]:
        """Yield problems of rows of cos and sin, for the frequencies of a sequence length."""
        if "uninitialised" in self.known:
            return
        rope, name, sizes = self.rope, rows.name, torch.hypot(rows.cos, rows.sin)
        factor, text = float(sizes.median()), None
        if not bool(sizes.isfinite().all()):
            text = "has NaN or infinite numbers"
        elif factor == 0 or float((sizes - factor).abs().max()) > (1e-3 + 4 * rows.eps) * factor:
            least, most = float(sizes.min() ** 2), float(sizes.max() ** 2)
            text = f"cos^2 + sin^2 is between {least:.3g} and {most:.3g}, expected one value"
        if text is not None:
            yield self.problem("uninitialised", name, f"{text}, {_EMPTY}", _FILL)
            return
        wrong = bool(self.known & {"frequencies", "width", "dtype"})
        if rows.cos.shape[-1] != rope.pairs:
            yield from () if wrong else [self.width(name, rows.cos.shape[-1])]
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
        yield self.problem("tables", name, text, cause=cause)

    def stated_pairing(self) -> Iterator[Problem]:
        """Yield the problem of a wrong pairing that the module states: as vLLM's, or as flash-attention's."""
        for name, half_split in (("is_neox_style", True), ("interleaved", False)):
            stated, expected = getattr(self.module, name, None), self.rope.interleaved != half_split
            if isinstance(stated, bool) and stated != expected:
                cure = "Pair features (0, 1), (2, 3), ... if the rope is interleaved, else (i, i + rotary_dim / 2)."
                yield _problem("pairing", name, f"is {stated}, expected {expected}", cure)
