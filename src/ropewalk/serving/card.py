"""The model card of an extension (README.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ropewalk.serving.engines import READERS_OF_CONFIGS, Case, applied


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
        *_readers(config),
        "",
        "Nothing was measured. To measure it, run `ropewalk doctor`.",
    ]
    return "\n".join(lines) + "\n"


def _readers(config: Mapping[str, Any]) -> list[str]:
    """Return one line for each program that loads the folder, by the rule of `serve-config`."""
    case = Case(block=config["rope_parameters"], model_type=str(config.get("model_type", "")), converted=True)
    former = "version 4 does not" if case.several else "version 4 `rope_scaling` and `rope_theta`; the folder has both"
    lines = [f"- transformers 5 applies `rope_parameters`, {former}."]
    for engine, title in READERS_OF_CONFIGS.items():
        found = applied(engine, case)
        notes = [one.text for one in found.caveats if one.effect == "differs" and one.before is None]
        lost = f"not applied: {found.reason}." if found.state == "lost" else ""
        lines.append(f"- {title}: {lost or ' '.join(notes) or 'the same frequencies and temperature.'}")
    return [*lines, "", "The statements about other programs are from their sources, not from a run."]


def plain_text(text: str) -> str:
    r"""Escape a name for one line of Markdown.

    >>> print(plain_text("a*b\n# <c>"))
    a\*b \# \<c\>
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(str(text).split()))
