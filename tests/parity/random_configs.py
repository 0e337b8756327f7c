"""Random configs against transformers' live rotary module: the raw JSON, the config object and the saved folder."""

from __future__ import annotations

import contextlib
import copy
import re
from collections import Counter
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import ropewalk as rw
from ropewalk.families import FAMILIES
from ropewalk.rope.model_ropes import ModelRopes
from tests.parity.check import distance, off, reason
from tests.parity.classes import Part, all_parts, config_classes, default_config
from tests.parity.draw import configs
from tests.parity.own import frequencies, is_special, sample
from tests.rope.models import Model

CLOSE, TURNED = 4e-6, 2e-5  # relative, of float32 frequencies; absolute, of turned queries of unit variance


CHANGED: dict[str, dict[str, str]] = {  # what older releases compute otherwise: not drawn there
    "5.17": {
        "pe_audio_encoder": "it ignores a `rope_theta` outside the block, and its default in a block without one",
        "step3p5_vision": "it turns by the row first; in 5.23 by the column",
        "minimax_m3_vl_vision": "it turns by row and column; in 5.23 by frame, row and column",
    }
}


class Differs(AssertionError):
    """Our reading turns otherwise than transformers' module."""


class NotBuilt(Exception):
    """transformers itself does not make a rotary module of this config."""


@cache
def drawn_families() -> dict[str, Part]:
    """The families with a rotary class in the installed transformers, and that class; of composites the text part."""
    parts = {part.config: part for part in reversed(all_parts()) if "Attention" not in part.name}
    classes = config_classes()
    named = {name: classes[name].__name__ for name in FAMILIES if name in classes}
    found = {name: parts[cls] for name, cls in named.items() if cls in parts and f"{name}_text" not in FAMILIES}
    return {name: part for name, part in found.items() if _has_defaults(classes[name]) and name not in changed()}


@cache
def changed() -> dict[str, str]:
    """The families that the installed transformers computes otherwise than the newest, and how."""
    return CHANGED.get(version("transformers").rpartition(".")[0], {})


def _has_defaults(cls: Any) -> bool:
    """Whether a config class can be made with its defaults; some need packages that are not there."""
    try:
        default_config(cls)
    except ImportError:
        return False
    return True


def compare(name: str, fields: dict[str, Any]) -> Counter[str]:
    """How each side of a config is read: "file: equal" or "file: refused: why"; raises `Differs` at a difference."""
    part, cls = drawn_families()[name], config_classes()[name]
    found: Counter[str] = Counter()
    config = _built(cls.from_dict, copy.deepcopy(fields))
    rotary = _live(part, config)
    with TemporaryDirectory() as folder:
        sides: dict[str, tuple[Any, Any, Any]] = {"file": (fields, config, rotary), "object": (config, config, rotary)}
        config.save_pretrained(folder)
        saved = _built(cls.from_pretrained, folder)
        sides["folder"] = (Path(folder), saved, _live(part, saved))
        for side, (source, theirs, live) in sides.items():
            found[f"{side}: {_side(part, source, theirs, live)}"] += 1
    return found


def _built(make: Any, source: Any) -> Any:
    try:
        return make(source)
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {str(error).strip()[:100]}") from error


def _live(part: Part, config: Any) -> list[str | None]:
    """The layer types of the class's own module, [None] for one; raises `NotBuilt` if it cannot be made or run."""
    if is_special(part):
        _built(part.cls, config)
        return [None]
    return list(_built(lambda made: Model(made, None, part.cls).layer_types, config))


def _side(part: Part, source: Any, config: Any, own: list[str | None]) -> str:
    """How we read one side: "equal", "no rotation", or "refused" with the reason; raises `Differs`."""
    try:
        ropes = ModelRopes.from_hf(source).by_type
        turning = [label for label, rope in ropes.items() if rope is not None]
        if not turning:
            return "no rotation"
        labels = [label for label in own if label is not None] or turning
        read = {label: rw.RopeConfig.from_hf(source, layer_type=label) for label in labels}
    except rw.RopeError as error:
        return f"refused: {reason(error)}"
    except Exception as error:
        raise Differs(f"crash: {type(error).__name__}: {error}") from error
    for label, rope in read.items():
        _same(part, _of_layers(config, label), label if label in own else None, rope)
    return "equal"


def _of_layers(config: Any, label: str | None) -> Any:
    """The config that the model builds the rotary module of these layers from: Granite has one for each theta."""
    if not config.model_type.startswith("granite") or not hasattr(config, "layer_rope_theta"):
        return config
    own = copy.deepcopy(config)
    thetas = zip(config.layer_types, config.layer_rope_theta, strict=True)
    theta = next(theta for of, theta in thetas if theta and label in (None, of))
    own.rope_parameters = {**config.rope_parameters, "rope_theta": theta}
    return own


def _same(part: Part, config: Any, layer_type: str | None, rope: rw.RopeConfig) -> None:
    """Raise `Differs` unless frequencies, attention factor and turned queries are the module's own."""
    trained = rope.original_length or rope.max_position_embeddings or 0
    for seq_len in (20, trained, trained + 1, 3 * trained + 7) if rope.needs_seq_len else (20,):
        own = _built(lambda config, n=seq_len: frequencies(part, config, layer_type, n), config)
        errors = (0.0, 0.0) if own is None else off(own, rope, seq_len)
        if not all(error <= CLOSE for error in errors):  # nor is NaN
            raise Differs(f"{layer_type}: frequencies are off by {errors[0]:.1e}, the factor by {errors[1]:.1e}")
    error = distance(_built(lambda config: sample(part, config, layer_type, rope), config), rope)
    if not error <= TURNED:
        raise Differs(f"{layer_type}: turned queries differ by {error:.1e}")


def run(name: str, number: int, count: int) -> dict[str, Any]:
    """The row of one family: the configs drawn from this seed, how their sides are read, and the first difference.

    Nothing is counted after a difference; hypothesis then shrinks it to a minimal config.
    """
    row: dict[str, Any] = {"family": name, "drawn": 0, "not built": 0, "sides": Counter()}

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(configs(name))
    def check(fields: dict[str, Any]) -> None:
        counts = "differs" not in row
        row["drawn"] += counts
        torch.manual_seed(0)
        try:
            found = compare(name, fields)
        except NotBuilt:
            row["not built"] += counts
        except Differs as error:
            row["differs"] = {"config": fields, "difference": str(error)}
            raise
        else:
            if counts:
                row["sides"].update(found)

    with contextlib.suppress(Differs):
        check()
    return {**row, "sides": dict(row["sides"])}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of a run over its families, and why sides were refused."""
    sides: Counter[str] = Counter()
    reasons: dict[str, dict[str, int]] = {}
    for row in rows:
        for key, count in row["sides"].items():
            side, how, *why = key.split(": ", maxsplit=2)
            sides[f"{side}: {how}"] += count
            if why:
                words = re.sub(r"\b[\d.]+\b", "N", why[0].replace(row["family"], "...")).rstrip(".")
                families = reasons.setdefault(words, {})
                families[row["family"]] = families.get(row["family"], 0) + count
    return {
        "families": len(rows),
        "changed": changed(),
        "drawn": sum(row["drawn"] for row in rows),
        "not built": sum(row["not built"] for row in rows),
        "sides": dict(sorted(sides.items())),
        "differs": [{"family": row["family"], **row["differs"]} for row in rows if "differs" in row],
        "refused": [
            {"reason": words, "sides": sum(families.values()), "families": sorted(families)}
            for words, families in sorted(reasons.items(), key=lambda item: -sum(item[1].values()))
        ],
    }
