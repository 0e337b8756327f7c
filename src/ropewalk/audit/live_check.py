"""The check of a live model: its rotary modules compared with its config, without a forward of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attachment import attachment_of
from ropewalk.attachment.probe import frequencies_of, is_rotary, table_rows, tables_of, takes_positions, tensors_of
from ropewalk.attachment.tables import TablesForward
from ropewalk.audit.causes import largest_error
from ropewalk.audit.findings import SEVERITIES, Finding
from ropewalk.audit.problems import Comparison, Problem, compare_stated_pairing, farthest
from ropewalk.errors import RopeError
from ropewalk.families import family_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.hugging_face import text_part
from ropewalk.rope.model_ropes import ModelRopes

_UNDESCRIBED = ("MusicFlamingoRotaryEmbedding",)  # its angles are products of two times, not of positions


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
    ropes = _Configs(model, config)
    problems: dict[Problem, list[str]] = {}
    seen = False
    with torch.device("cpu"), torch.no_grad():  # engines build models under another default device
        for name, module in model.named_modules():
            looked_up = ropes.looked_up_in(name)
            if is_rotary(module) or tables_of(module, looked_up):
                seen = True
                for problem in examine(module, ropes.of(name, module), looked_up):
                    problems.setdefault(problem, []).append(name)
    found = [_finding(problem, names) for problem, names in problems.items()] if seen else [_nothing(ropes)]
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    errors = [finding for finding in found if finding.severity == "error"]
    if strict and errors:
        raise RopeError(
            "check: the rotary modules of this model differ from its config.",
            facts={f"{place}. {finding.code}": finding.message for place, finding in enumerate(errors, start=1)},
            cure=errors[0].cure,
        )
    return tuple(found)


def _finding(problem: Problem, names: Sequence[str]) -> Finding:
    """Return one finding for all modules with a problem."""
    name, what = names[0], problem.what
    where = f"{name}.{what}" if name and what.replace("_", "").isalnum() else f"{what} of {name}" if name else what
    of_type = f", {problem.layer_type} layers" if problem.layer_type and problem.layer_type not in what else ""
    more = f" (and {len(names) - 1} more modules)" if len(names) > 1 else ""
    return Finding(
        code=problem.code, severity=problem.severity, message=f"{where}{of_type}{more}: {problem.text}",
        cure=problem.cure, layer_type=problem.layer_type,
    )  # fmt: skip


def _nothing(ropes: _Configs) -> Finding:
    """Return the finding about a model without rotary modules; a note if its config has no rope."""
    described = ropes.of("", nn.Module())
    reason = f"; {described}" if isinstance(described, str) else ""
    return Finding(
        code="no-rotary-module",
        severity="note" if reason else "warning",
        message=f"no module has inverse frequencies or tables of cos and sin, so nothing was checked{reason}",
        cure="Pass the model with the rotary modules.",
    )


class _Configs:
    """The expected ropes of a model's modules."""

    def __init__(self, model: nn.Module, config: Any) -> None:
        self.rope = config if isinstance(config, RopeConfig) else None
        self.whole = _config_of(model) if config is None else config
        if self.whole is None:
            raise RopeError(
                "check: the model has no config, so there is nothing to compare with.",
                facts={"model": type(model).__name__},
                cure="Pass config=: a RopeConfig, a transformers config or the dict of a config.json.",
            )
        self.parts = [] if self.rope else list(_parts(self.whole))
        self.text = self.whole if self.rope else _text_part(self.whole)
        own = _text_part(_config_of(model))
        self.own_text = getattr(own, "model_type", None)
        self.attachment = attachment_of(model) if config is None else None
        family = None if self.rope else family_named(_model_type(self.text))
        self.looked_up = None if family is None else family.module.looked_up

    def looked_up_in(self, name: str) -> str | None:
        """Return the name of the module's tensor with sines and cosines if its family has one there."""
        *path, tensor = (self.looked_up or "").split(".")
        return tensor if tensor and name.split(".")[-len(path) :][: len(path)] == path else None

    def of(self, name: str, module: nn.Module) -> ModelRopes | str:
        """Return the ropes of a module, or the reason why they are unknown."""
        if self.rope is not None:
            return ModelRopes((self.rope,), (None,), (None,))
        if self.attachment is not None and _is_attached(module):
            return dataclasses.replace(self.attachment.own, ropes=self.attachment.positions.ropes)
        source = self._source(name, module)
        if source is None:
            return "the module has no config, and the model's config has several parts"
        try:
            family = family_named(_model_type(source))
            learned = family and family.module.learned
            return ModelRopes.from_hf(source, alpha=tensors_of(module).get(learned) if learned else None)
        except RopeError as error:
            return f"ropewalk does not support the rope of its config: {error.rule}"

    def _source(self, name: str, module: nn.Module) -> Any:
        """Return the config of a module; None if it is unknown which part of the model's config this is."""
        own = getattr(module, "config", None)
        model_type = getattr(own, "model_type", None)
        if not model_type:
            if len(self.parts) > 1 and any(word in name for word in ("vis", "audio", "tower")):
                return None
            return self.text
        same = [part for part in self.parts if _model_type(part) == model_type]
        if any(part is own for part in same) or len(same) > 1:
            return own
        return same[0] if same else self.text if model_type == self.own_text else own


def _config_of(model: nn.Module) -> Any:
    """Return the config of a model or of the model inside a wrapper, such as that of data parallelism."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return next((config for config in configs if _model_type(config)), None)


def _model_type(config: Any) -> str:
    value = config.get("model_type") if isinstance(config, Mapping) else getattr(config, "model_type", None)
    return str(value or "")


def _text_part(config: Any) -> Any:
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
    kind = type(module).__name__
    if any(tensor.is_meta for tensor in tensors_of(module).values()):
        text = "its buffers are on the meta device; not checked"
        return [Problem("meta", kind, text, "Check the model after its weights are loaded.", None, "note")]
    if isinstance(ropes, str) or kind in _UNDESCRIBED:
        return [_not_checked(kind, ropes if isinstance(ropes, str) else "its angles match no position")]
    checked, problems = False, list[Problem]()
    known: dict[str | None, set[str]] = {}  # the codes of problems, by layer type
    chosen: dict[str | None, RopeConfig | None] = {}
    for name, label, tensor in () if _is_attached(module) else frequencies_of(module):
        rope = chosen[label] = _nearest(_ropes_of(label, ropes), tensor)
        codes = known.setdefault(label, set())
        if rope is not None:
            checked, comparison = True, Comparison(module, rope, ropes, label)
            found = list(comparison.frequencies(name, tensor))
            factor = getattr(module, f"{label}_attention_scaling" if label else "attention_scaling", None)
            if isinstance(factor, int | float):
                found += comparison.factor("attention_scaling", factor)
            codes |= {one.code for one in found}
            problems += found
    candidates = [*filter(None, [chosen[None]])] if None in chosen else _ropes_of(None, ropes)
    for name, parts in tables_of(module, looked_up).items() if candidates else ():
        checked = True
        tries: list[list[Problem]] = []
        for rope in candidates:
            compare = Comparison(module, rope, ropes, known=known.get(None, set())).table
            rows = table_rows(name, parts, rope, [n - 1 for n in farthest(rope)])
            tries.append([problem for one in rows for problem in compare(one)])
        fewest = min(tries, key=len)
        problems += fewest
    for label in (known or {None: set()}) if takes_positions(module) else ():
        rope = chosen.get(label, next(iter(_ropes_of(label, ropes)), None))
        if rope is None:
            continue
        called = Comparison(module, rope, ropes, label, known.get(label, set())).call(looked_up in tensors_of(module))
        if called is not None:
            checked = True
            problems += called
        else:
            problems.append(_not_checked(kind, "its forward does not support the positions of this rope, or fails"))
    problems += compare_stated_pairing(module, candidates[0]) if candidates else ()
    if candidates and not checked and not problems:
        problems.append(_not_checked(kind, "it has no frequencies or tables, and its forward has no position ids"))
    return list(dict.fromkeys(problems))


def _not_checked(kind: str, reason: str) -> Problem:
    cure = "Compare its results with ropewalk.RotaryEmbedding."
    return Problem("not-checked", kind, f"not checked: {reason.rstrip('.')}", cure, None, "note")


def _is_attached(module: nn.Module) -> bool:
    return isinstance(vars(module).get("_old_forward", vars(module).get("forward")), TablesForward)


def _ropes_of(label: str | None, ropes: ModelRopes) -> list[RopeConfig]:
    """Return the rope of a layer type; for a module without layer types every rope of the model."""
    by_type = ropes.by_type
    found = [by_type[label]] if label in by_type else by_type.values()
    return [rope for rope in dict.fromkeys(found) if rope is not None]


def _nearest(ropes: Sequence[RopeConfig], found: Tensor) -> RopeConfig | None:
    """Return the rope with the nearest frequencies."""
    if len(ropes) < 2 or not found.is_floating_point():
        return next(iter(ropes), None)
    columns = found.detach().flatten().double().tolist()
    return min(ropes, key=lambda rope: largest_error(columns, rope.columns_at(1)))
