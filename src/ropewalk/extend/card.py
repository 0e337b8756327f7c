"""Write README.md of an exported folder: what was done, what it changed, and how other programs apply the config."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.extend.engines import CONVERTER, RULES_CHECKED, caveats_of


def card(
    record: Mapping[str, Any],
    *,
    figure: str | None = None,
    numbers: str | None = None,
    results: Sequence[str] = (),
) -> str:
    """Return the model card, in Markdown, of a `measurement.record`.

    `figure` and `numbers`: the names of a picture and of the record in the same folder. `results`: sentences to show.
    """
    tuning, protocol = record["tuning"], record["protocol"]
    config = record["config"].get("text_config") or record["config"]
    block = config.get("rope_parameters")
    name, method = plain_text(record["model"]), plain_text(record["method"])
    first = record.get("unscaled_tokens")
    method += f" (the first {first:,} tokens unscaled)" if first else ""
    done = f"{method}, " + ("put into config.json" if block else "in ropewalk's own form")
    if tuning is not None:
        settings = tuning["settings"]
        done += (
            f"; then {settings['steps']:,} updates ({tuning['tokens']:,} tokens) at {settings['seq_len']:,} tokens, "
            f"training {plain_text(settings['train'])}"
        )
    lines = [
        "---",
        f"library_name: {'transformers' if block else 'ropewalk'}",
        "pipeline_tag: text-generation",
        "tags: [ropewalk, long-context]",
        "---",
        "",
        f"# {name}, extended",
        "",
        f"Made from {name} by `ropewalk extend`: {done}. Its licence is that of {name}.",
        "",
        *_config(config, block),
        *(line for sentence in results for line in (plain_text(sentence), "")),
        *_results(record, protocol, figure),
        "## How it is read",
        "",
        *_reading(block),
        "",
        f"All settings and every number are in {numbers}."
        if numbers
        else "Nothing was measured: `ropewalk doctor` does that.",
    ]
    return "\n".join(lines) + "\n"


def _config(config: Mapping[str, Any], block: Mapping[str, Any] | None) -> list[str]:
    """Return the keys of the rope, as config.json has them."""
    if block is None:
        return []
    keys = {"rope_parameters": block, "max_position_embeddings": config["max_position_embeddings"]}
    return ["```json", json.dumps(keys, indent=2), "```", ""]


def _reading(block: Mapping[str, Any] | None) -> list[str]:
    """Return one line for each reader of the block."""
    if block is None:
        return ["Only `ropewalk.load` opens this folder: no config of transformers can express the method."]
    if "rope_type" not in block:  # a block for each layer type
        return ["- transformers 5 applies `rope_parameters`. Other readers of several blocks were not tried."]
    rule = block["rope_type"]
    lines = [
        "- transformers 5 applies `rope_parameters`, version 4 `rope_scaling` and `rope_theta`; the folder has both."
    ]
    if rule not in RULES_CHECKED:
        return lines
    for engine, name in (("vllm", "vLLM"), (CONVERTER, CONVERTER)):
        notes = [one.says for one in caveats_of(engine, block, rule, scaled=rule != "default") if one.of_the_block]
        lines.append(f"- {name}: {' '.join(notes) or 'the same frequencies and temperature.'}")
    return [*lines, "", "For vLLM and llama.cpp this is from their sources, not from a run."]


def plain_text(text: str) -> str:
    r"""Escape a name so that Markdown shows it letter by letter, on one line.

    >>> print(plain_text("a*b\n# <c>"))
    a\*b \# \<c\>
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(str(text).split()))


def _results(record: Mapping[str, Any], protocol: Mapping[str, Any] | None, figure: str | None) -> Sequence[str]:
    """Return the table of losses, its protocol, and the comparison with crop."""
    if protocol is None:
        return []
    heads = [f"{start:,}-{end:,}" for start, end in record["blocks"]]
    width = -(-len(heads) // 8)
    rows = [["", *(_joined(heads[i : i + width]) for i in range(0, len(heads), width)), "within", "beyond"]]
    for variant in record["variants"]:
        losses = variant["loss_by_block"]
        means = [losses[i : i + width] for i in range(0, len(losses), width)]
        ends = [variant["loss_within"], variant["loss_beyond"]]
        cells = [f"{sum(part) / len(part):.3f}" for part in means] + ["" if x is None else f"{x:.3f}" for x in ends]
        rows.append([variant["name"], *cells])
    lines = ["## Loss by position", "", plain_text(protocol["sentence"]), ""]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(5, "|---|" + "--:|" * (len(rows[0]) - 1))
    against = record["verdict"].get("tuned_minus_crop_beyond") or record["verdict"].get("method_minus_crop_beyond")
    if against is not None:
        lines += [
            "",
            f"Beyond the trained length its loss is {against['nats']:+.3f} nats from crop's{_interval(against)}; "
            "crop forgets the oldest tokens. Below zero it is better.",
        ]
    claim = record["verdict"].get("interaction_beyond")
    own = record["verdict"].get("tuned_minus_its_crop_beyond")
    if claim is not None and own is not None:
        lines += [
            "",
            "(tuned - untuned) x (full - crop), both under the method: tuning changed the loss beyond the trained "
            f"length by {claim['nats']:+.3f} nats{_interval(claim)} more where the distant tokens are read than in "
            f"fresh windows of the trained length. {_of_interaction(claim['ci'], own['ci'])}",
        ]
    return [*lines, "", *([f"![Loss by position]({figure})", ""] if figure else [])]


def _interval(difference: Mapping[str, Any]) -> str:
    ends = difference["ci"]
    return "" if ends is None else f" (95 % interval {ends[0]:+.3f} to {ends[1]:+.3f})"


def _of_interaction(interval: Sequence[float] | None, own: Sequence[float] | None) -> str:
    """Return what (tuned - untuned) x (full - crop) shows, in a sentence; `own`: that of tuned x (full - crop)."""
    if interval is None or interval[0] <= 0 <= interval[1]:
        return "This does not show that tuning taught it to use them."
    if interval[1] < 0 and own is not None and own[1] < 0:
        return "Tuning taught it to use them."
    if interval[1] < 0:
        return "It reads them better than before, but is not shown to gain from them."
    return "Tuning helped less where they are read."


def _joined(heads: Sequence[str]) -> str:
    return heads[0] if len(heads) == 1 else f"{heads[0].split('-')[0]}-{heads[-1].split('-')[1]}"
