"""The lint of a Hugging Face config: asks every trap about every rope block, and gathers the findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ropewalk.audit import traps, traps_of_frequencies
from ropewalk.audit.findings import SEVERITIES, Finding, blocks
from ropewalk.audit.layers import Layers
from ropewalk.rope.config import RopeConfig

TRAPS = (*traps.TRAPS, *traps_of_frequencies.TRAPS)


def lint(
    config: Mapping[str, Any],
    *,
    ropes: Mapping[str | None, RopeConfig] | None = None,
    layers: Mapping[str | None, Layers] | None = None,
    target: int = 32_768,
) -> list[Finding]:
    """Look for the known traps in a Hugging Face config, most severe first.

    **Arguments:**
    - `config`: the raw dict of a config.json; a nested `text_config` is followed.
    - `ropes`: the RopeConfig of each layer type (None for a config with one rope), where it is known: traps
      about frequencies need it. `layers`: what the layers of each see; default everything, by the rotation alone.
    - `target`: the length wanted, in tokens.

    >>> found = lint({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 10000.0})
    >>> [finding.code for finding in found]
    ['old-spelling']
    """
    known, around = ropes or {}, layers or {}
    findings: list[Finding] = []
    for block in blocks(config):
        label = block.layer_type if block.layer_type in known else None
        if label not in known and not block.nested:  # one block, several ropes: the full layers' reach furthest
            label = "full_attention" if "full_attention" in known else next(iter(known), None)
        ready = dataclasses.replace(block, rope=known.get(label), layers=around.get(label, Layers()), target=target)
        findings += [found for trap in TRAPS if (found := trap(ready)) is not None]
    unique = list(dict.fromkeys(findings))
    return sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity))
