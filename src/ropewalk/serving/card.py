"""The model card of an extension (README.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ropewalk.serving.engines import READERS_OF_CONFIGS, RULES_CHECKED, caveats_of


def card(model: str, method: str, config: Mapping[str, Any]) -> str:
    """Return the model card of an extension in Markdown, from the names of model and method and the written config."""
    config = config.get("text_config") or config
    block, name = config["rope_parameters"], plain_text(model)
    keys = {"rope_parameters": block, "max_position_embeddings": config["max_position_embeddings"]}
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [ropewalk, long-context]",
        "---",
        "",
        f"# {name}, extended",
        "",
        f"Made from {name} by `ropewalk extend`: {plain_text(method)}, written to config.json. "
        f"Its licence is that of {name}.",
        "",
        "```json",
        json.dumps(keys, indent=2),
        "```",
        "",
        "## Programs that load it",
        "",
        *_readers(block),
        "",
        "Nothing was measured. To measure it, run `ropewalk doctor`.",
    ]
    return "\n".join(lines) + "\n"


def _readers(block: Mapping[str, Any]) -> list[str]:
    """Return one line for each program that loads the folder."""
    if "rope_type" not in block:  # a block for each layer type
        return ["- transformers 5 applies `rope_parameters`. Other programs were not tested with several blocks."]
    rule = block["rope_type"]
    lines = [
        "- transformers 5 applies `rope_parameters`, version 4 `rope_scaling` and `rope_theta`; the folder has both."
    ]
    if rule not in RULES_CHECKED:
        return lines
    for engine, title in READERS_OF_CONFIGS.items():
        notes = [one.text for one in caveats_of(engine, block, rule, scaled=rule != "default") if one.of_the_block]
        lines.append(f"- {title}: {' '.join(notes) or 'the same frequencies and temperature.'}")
    return [*lines, "", "The statements about vLLM and llama.cpp are from their sources, not from a run."]


def plain_text(text: str) -> str:
    r"""Escape a name for one line of Markdown.

    >>> print(plain_text("a*b\n# <c>"))
    a\*b \# \<c\>
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(str(text).split()))
