"""The audits and the findings of a checkpoint, without its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropewalk.atomic_io import finite
from ropewalk.audit.audit import Audit, audit
from ropewalk.audit.findings import Finding, blocks
from ropewalk.audit.traps import lint, query_scale
from ropewalk.checkpoints.checkpoint import Checkpoint, family_of, has_weights
from ropewalk.rope.config import indexer_rope


def audits_of(model: Checkpoint, *, trained_length: int | None = None, target: int | None = None) -> list[Audit]:
    """Return the audit of each rope, that of full attention first, because it has the longest reach.

    Lengths are in tokens, as for `audit`. Those of the first audit apply to the whole model.
    """
    audits: list[Audit] = []
    scale = next(map(query_scale, blocks(model.config)), None) if model.config else None
    for label, rope in sorted(model.ropes.rotating.items(), key=lambda item: item[0] != "full_attention"):
        layers = model.ropes.layers_of(label)
        found = audit(rope, trained_length=trained_length, target=target, layer_type=label, layers=layers)
        audits.append(replace(found, query_scale=scale))
        trained_length, target = audits[0].trained_length, audits[0].target
    return audits


def findings_of(model: Checkpoint) -> list[Finding]:
    """Return the lint of the config; no findings without a config."""
    if not model.config:
        return []
    found = lint(model.config, ropes=model.ropes)
    if model.arch is not None:  # llama.cpp's table knows families that no config describes; a file states lengths once
        return [one for one in found if one.code not in ("unread-settings", "original-max-overridden")]
    if model.alpha is not None and not has_weights(model.path):
        fact = "each frequency has a learned factor exp(alpha) (LeRoPE), in the weights only; these numbers are "
        cure = "Pass the folder with config.json and the safetensors file with `rotary_emb.alpha` or `lerope.alpha`."
        found.append(Finding(code="learned-factors", severity="warning", message=f"{fact}without factors.", cure=cure))
    return [*found, *_indexer(model.config, model.alpha)]


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


def _indexer(config: Mapping[str, Any], alpha: Sequence[float] | None) -> tuple[Finding, ...]:
    """Return the note on the rope of sparse attention's indexer, if the model has a supported one."""
    family = family_of(config)
    if family is None or family.module.indexer is None:
        return ()
    rope, offset = indexer_rope(config, alpha=alpha)
    pairing = {True: "interleaved", False: "half-split"}
    fact = (
        f"the indexer of sparse attention rotates the {'last' if offset else 'first'} {2 * rope.pairs} of "
        f"{rope.head_dim} features, {pairing[rope.interleaved]} (its attention: {pairing[family.interleaved]}), by the "
        "same frequencies."
    )
    cure, label = "Run `ropewalk verify` to check the pairing of both in an engine.", family.module.indexer.layer_type
    return (Finding(code="indexer", severity="note", message=fact, cure=cure, layer_type=label),)
