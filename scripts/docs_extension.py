"""Tables of methods and tuning, with the sentences about them; `docs_records.py` includes them."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

Record = dict[str, Any]
DRAWN = runpy.run_path(str(Path(__file__).with_name("docs_drawn.py")))
document, table, where = (DRAWN[name] for name in ("document", "table", "where"))


def interval_cell(found: Record) -> str:
    """Return a difference in nats per token with its 95 % interval."""
    return f"{found['nats']:+.3f} [{found['ci'][0]:+.3f}, {found['ci'][1]:+.3f}]"


def of_interactions(record: Record) -> str:
    """Return what the intervals show: the positive control, the successful arms, the effect of skipping itself."""
    last = {arm: found["beyond"][-1] for arm, found in record["arms"].items()}
    reads = [arm for arm, row in last.items() if row["interaction"]["ci"][1] < 0]
    uses = [arm for arm in reads if last[arm]["tuned_minus_its_crop"]["ci"][1] < 0]
    cheap = [arm for arm in uses if record["arms"][arm]["tuned_minus_plain_within"]["ci"][1] <= 0.05]
    longest = f"{record['lengths'][-1]:,}"
    control = "No arm was tuned in whole windows of the target length, so there is no positive control."
    if "full-length" in last:
        control = (
            f"The positive control holds: tuned in whole windows of {longest} tokens, it gains from distant ones."
            if "full-length" in uses
            else "The positive control does not hold: even tuning in whole windows is not shown to make this model "
            "gain from distant tokens, so short windows cannot be judged."
        )
    compared = record["contrasts"]
    plain_text = ("no-far-answers", "trained-length-no-far-answers")
    brings = {
        "skipping itself": [arm for arm in compared if "no-skip" in arm],
        "repeated blocks": [arm for arm in compared if arm in plain_text],
        "the method": [arm for arm in compared if arm.endswith("no-method")],
        "windows of the trained length": [arm for arm in compared if arm == "trained-length"],
    }
    contrasts = []
    for what, arms in brings.items():
        rows = [(arm, compared[arm][-1]) for arm in arms]
        if rows:
            cells = "; ".join(f"`{row['of']}` less `{arm}` {interval_cell(row)}" for arm, row in rows)
            contrasts.append(f" Effect of {what}, (full - crop) of one arm less that of another: {cells}.")
    return (
        f"{control} The interval of the interaction is below zero for {_named(reads)}. Among these, whole windows have "
        f"a lower loss than fresh ones for {_named(uses)}. Among those, the loss within rises by at most 0.05 nats for "
        f"{_named(cheap)}."
        f"{''.join(contrasts)}"
    )


def _named(arms: Sequence[str]) -> str:
    return ", ".join(f"`{arm}`" for arm in arms) or "none"


TITLES = {
    "transformers": "transformers",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "ollama": "Ollama",
}
MEMORY = ("cache_bytes", "temporary_bytes")
FORGETS = "†"  # the mark of baselines in the table


def served(name: str) -> list[str]:
    """Return for each engine of TITLES whether it runs a method: yes, yes with a caveat of its own (\\*), or no."""
    from ropewalk.checkpoints.export import hub_rope
    from ropewalk.checkpoints.gguf_keys import gguf_rope
    from ropewalk.errors import RopeError
    from ropewalk.methods import METHODS, Reach
    from ropewalk.rope.config import RopeConfig
    from ropewalk.serving.engines import READS_GGUF
    from ropewalk.serving.serve import serve_config

    method, cells = METHODS[name], []
    reach = Reach(256, 1024 if method.extends else 256)
    for engine in TITLES:
        try:
            settings = serve_config("tiny", engine, method=name, target=reach.target if method.extends else None)
            if engine in READS_GGUF and method.extends:
                rope = method.rope(RopeConfig(64, interleaved=False, max_position_embeddings=256), reach)
                gguf_rope(hub_rope((rope,), name, reach), "llama", name, reach)
        except RopeError:
            cells.append("no")
            continue
        own = any(caveat.rules and len(caveat.engines) == 1 for caveat in settings.caveats)
        cells.append("yes\\*" if own else "yes")
    return cells


def pose(name: str) -> str:
    """Return gains and costs of a model tuned on windows that skip, and of the controls."""
    record = document(f"{name}.json")
    longest, guessed = record["lengths"][-1], record["arms"]["pose"]["retrieval"][-1]
    half = longest // 2
    furthest = max((row.get("distance", 0) for row in record["arms"]["pose"]["copy"]), default=None)

    def copied(found: Record) -> list[str]:
        gains = [
            row["gain"] for row in found["copy"] if (row.get("window"), row.get("distance")) == (longest, furthest)
        ]
        return [f"{gain:+.2f}" for gain in gains]

    def numbers(found: Record) -> list[str]:
        cells = [f"{row['found']} of {row['asked']}" for row in found["retrieval"]]
        far = [part for part in found["retrieval"][-1].get("by_distance", ()) if part["distances"][0] >= half]
        return cells + [f"{sum(part['found'] for part in far)} of {sum(part['asked'] for part in far)}"] * bool(far)

    rows = [
        [f"{name}, untuned", "", "", "", *copied(found), *numbers(found)] for name, found in record["untuned"].items()
    ]
    rows += [
        [arm, *(interval_cell(found["beyond"][-1][key]) for key in ("interaction", "tuned_minus_its_crop")),
         interval_cell(found["tuned_minus_plain_within"]), *copied(found), *numbers(found)]
        for arm, found in record["arms"].items()
    ]  # fmt: skip
    heads = ["", f"interaction to {longest:,}", "tuned full - its crop", "tuned - plain within",
             *([] if furthest is None else [f"copied from {furthest:,}"]),
             *(f"numbers found at {length:,}" for length in record["lengths"]),
             *([f"of those over {half:,} back"] if "by_distance" in guessed else [])]  # fmt: skip
    arms = "; ".join(f"`{arm}`: {found['what']}" for arm, found in record["arms"].items())
    chance = f"Guessing finds {guessed['chance'] * guessed['asked']:.0f} of {guessed['asked']} numbers."
    return f"{table(heads, rows)}\n\n{arms}. {chance}\n\n{of_interactions(record)}"


def tuned(name: str) -> str:
    """Return the losses of tuned models against both crops, and what the intervals show."""
    record = document(f"{name}.json")
    keys = ("untuned_minus_crop_beyond", "tuned_minus_crop_beyond", "tuned_minus_its_crop_beyond",
            "tuned_minus_plain_within")  # fmt: skip
    rows = [
        [arm, str(found["training"]["settings"]["steps"]),
         *(interval_cell(found[key]) for key in keys)]
        for arm, found in record["arms"].items()
    ]  # fmt: skip
    heads = ["arm", "updates", "untuned - crop", "tuned - crop", "tuned - its own crop",
             "tuned - plain within"]  # fmt: skip
    arms = record["arms"]
    below, alone = ([arm for arm in arms if arms[arm][key]] for key in ("below_crop", "below_its_crop"))
    cheap = [arm for arm in below if arms[arm]["cheap_within"]]
    return (
        f"{table(heads, rows)}\n\nBeyond {record['trained_length']:,} tokens the loss is shown to be below that of the "
        f"untuned model's crop for {_named(below)}, and below that of the tuned model's own crop for {_named(alone)}. "
        f"Within, the interval ends at or below +0.03 nats for {_named(cheap)} of the former."
    )


def methods() -> str:
    """Return every method: effect, tuning, form in config.json, engines, cost relative to plain, source."""
    from ropewalk.methods import METHODS

    record = document("method-costs.json")
    plain, tokens = record["methods"]["plain"], record["tokens"]
    rows = []
    for name, method in METHODS.items():
        cost = record["methods"].get(name)
        cells = ["", "", ""]
        if cost is not None:
            memory = sum(cost[kind] for kind in MEMORY) / sum(plain[kind] for kind in MEMORY)
            cells = [f"{cost['decode']['ratio']:.2f}", f"{cost['prefill']['ratio']:.2f}", f"{memory:.2f}"]
        source = f"[{method.source}](https://arxiv.org/abs/{method.source})" if method.source else ""
        title = f"[`{name}`](#{name})" + (f" {FORGETS}" if method.forgets else "")
        tuning = "yes" if method.needs_tuning else "no"
        rows.append([title, method.changes, tuning, method.config or "none", *served(name), *cells, source])
    heads = ["method", "effect", "needs tuning", "in config.json", *TITLES.values(), "decode", "prefill", "memory",
             "arXiv"]  # fmt: skip
    drawn = table(heads, rows)
    mebibytes = sum(plain[kind] for kind in MEMORY) / 2**20
    return (
        f"{drawn}\n\n{FORGETS}: a baseline that forgets distant tokens; the doctor never recommends it. \\*: with a "
        "caveat of that engine for this rule, which `ropewalk serve-config` prints. Every method also runs in Python "
        f"(`rw.attach`).\n\nCost is relative to `plain`. Decode: one token after {tokens:,}. Prefill: {tokens:,} "
        f"tokens. Both are medians of processor time ({plain['decode']['p50']:,.0f} and "
        f"{plain['prefill']['p50'] / tokens:,.0f} microseconds a token for `plain`). Memory: cache and temporary "
        f"memory of a prefill in chunks of 1,024 tokens, without weights ({mebibytes:.0f} MiB for `plain`). Layers: "
        f"{record['layers']}, float32, {where(record)}, at a load of {record['load'][0]:g}. Methods of frequencies do "
        "the same work as `plain`, so the spread of their ratios is the error of the others."
    )


def league(name: str, model: str) -> str:
    """Return loss, numbers found if measured, and time of the methods that need no tuning."""
    record = document(f"{name}.json")
    trained, target = record["protocol"]["trained_length"], record["protocol"]["target"]
    plain, asked = record["methods"][0]["seconds"], bool(record.get("retrieval"))
    rows = []
    for row in record["methods"]:
        found = [one for one in record["retrieval"] if one["method"] == row["name"]] if asked else []
        parts = [found, [one for one in found if one["depths"][1] * target < target - trained]] if asked else []
        rows.append([
            row["name"], f"{row['loss_within']:.3f}", f"{row['loss_beyond']:.3f}",
            *(f"{sum(x['found'] for x in part)} of {sum(x['asked'] for x in part)}" for part in parts),
            f"{row['seconds'] / plain:.2f}",
        ])  # fmt: skip
    windows = f"{record['protocol']['windows']} windows".replace("1 windows", "a window")
    of_numbers = ["numbers found", f"of those over {target - farthest_seen(record):,} back"] if asked else []
    heads = [f"{model}, {windows} of {target:,} tokens", f"within {trained:,}", "beyond", *of_numbers, "time"]
    most, ran = max(row["peak_rss_bytes"] for row in record["methods"]), record["environment"]
    numbers = ""
    if asked:
        texts = record["retrieval_details"]["protocol"]["samples"]
        numbers = f"Numbers named in {texts} texts of {target:,} tokens and asked for at their end. "
    return (
        f"{table(heads, rows)}\n\n{numbers}Time: of the losses, over plain's. {ran['dtype']}, {ran['threads']} "
        f"threads, at most {most / 1e9:.2f} GB. {first_sentence(record['verdict']['sentence'])}"
    )


def first_sentence(text: str) -> str:
    """Return a verdict without its advice: up to its first full stop that no digit follows."""
    return re.split(r"(?<=\.)(?!\d)", text)[0]


def farthest_seen(record: Record) -> int:
    """Return the end, in tokens, of the last part of a text that crop cannot see."""
    target, trained = record["target"], record["trained_length"]
    ends = {row["depths"][1] * target for row in record["retrieval"]}
    return round(max(end for end in ends if end < target - trained))


TABLES: dict[str, Callable[[], str]] = {
    "pose": partial(pose, "pose-tiny"), "pose-smollm2": partial(pose, "pose-smollm2-first"),
    "methods": methods, "league": partial(league, "league-first", "SmolLM2-135M"),
    "tuning": partial(tuned, "tuning-smollm2"),
    "league-gemma": partial(league, "league-gemma-first", "Gemma 3 270M"),
}  # fmt: skip
