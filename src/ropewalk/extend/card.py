"""The record of an extension (extend.json) and its model card (README.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ropewalk.atomic_io import finite
from ropewalk.diagnosis.document import Diagnosis, how_measured, standing_rows
from ropewalk.extend.diagnoses import APPLIED
from ropewalk.report.formatting import shareable
from ropewalk.serving.engines import READERS_OF_CONFIGS, RULES_CHECKED, caveats_of

TITLES = {APPLIED: "Measured by the doctor"}


def record(
    *,
    model: str,
    method: str,
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    diagnoses: Mapping[str, Diagnosis] | None = None,
    unscaled_tokens: int = 0,
) -> dict[str, Any]:
    """Return the extension and the doctor's documents as JSON: losses in nats per token, lengths in tokens.

    `diagnoses`: by `TITLES`.
    """
    measured = {name: shareable(found.to_json()) for name, found in (diagnoses or {}).items()}
    document: dict[str, Any] = finite(
        {
            "model": model,
            "method": method,
            "unscaled_tokens": unscaled_tokens,
            "config": dict(config),
            "diagnoses": measured,
            "environment": dict(environment),
        }
    )
    return document


def card(
    record: Mapping[str, Any],
    diagnoses: Mapping[str, Diagnosis] | None = None,
    *,
    figure: str | None = None,
    numbers: str | None = None,
) -> str:
    """Return the model card in Markdown, from a `record` and its diagnoses.

    - `figure`, `numbers`: the names of a picture and of the record in the same folder.
    """
    config = record["config"].get("text_config") or record["config"]
    block = config.get("rope_parameters")
    name, method = plain_text(record["model"]), plain_text(record["method"])
    first = record.get("unscaled_tokens")
    method += f" (the first {first:,} tokens unscaled)" if first else ""
    where = "written to config.json" if block else "in ropewalk's own form"
    work = f"{method}, {where}"
    rope: list[str] = []
    if block is not None:
        keys = {"rope_parameters": block, "max_position_embeddings": config["max_position_embeddings"]}
        rope = ["```json", json.dumps(keys, indent=2), "```", ""]
    lines = [
        "---",
        f"library_name: {'transformers' if block else 'ropewalk'}",
        "pipeline_tag: text-generation",
        "tags: [ropewalk, long-context]",
        "---",
        "",
        f"# {name}, extended",
        "",
        f"Made from {name} by `ropewalk extend`: {work}. Its licence is that of {name}.",
        "",
        *rope,
        *_measured(diagnoses or {}, figure),
        "## Programs that load it",
        "",
        *_readers(block),
        "",
        f"All settings and every number are in {numbers}."
        if numbers
        else "Nothing was measured. To measure it, run `ropewalk doctor`.",
    ]
    return "\n".join(lines) + "\n"


def _readers(block: Mapping[str, Any] | None) -> list[str]:
    """Return one line for each program that loads the folder."""
    if block is None:
        return ["Only `ropewalk.load` opens this folder: no config of transformers can express the method."]
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


def _measured(diagnoses: Mapping[str, Diagnosis], figure: str | None) -> list[str]:
    """Return the doctor's verdict and table of each diagnosis, and how it measured."""
    lines: list[str] = []
    for name, found in diagnoses.items():
        heads, rows = standing_rows(found)
        lines += [f"## {TITLES[name]}", "", f"**{plain_text(found.verdict.headline)}** "
                  + plain_text(" ".join((*found.verdict.reasons, *found.left_out))), ""]  # fmt: skip
        lines += ["| | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
        lines += ["| " + " | ".join((plain_text(label), *row)) + " |" for label, row in rows.items()] + [""]
    if diagnoses:
        lines += [plain_text(how_measured([*diagnoses.values()][-1].measurement)), ""]
    return [*lines, *([f"![Loss by position]({figure})", ""] if figure else [])]
