"""The loss by position of an extension, on a held-out text: plain, crop, the method and tuned; its record and its card.

The method and the tuned model are measured twice: in whole windows, and in fresh windows of the trained length.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ropewalk.atomic_io import finite
from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.measure.losses import gather, run
from ropewalk.measure.plan import KIND, LossProtocol, Plan, fingerprint, plan, take_windows
from ropewalk.methods import Reach
from ropewalk.models.prompts import Tokenizer
from ropewalk.progress import Progress
from ropewalk.readers.reader import Reader
from ropewalk.serving.engines import READERS_OF_CONFIGS, RULES_CHECKED, caveats_of
from ropewalk.statistics import Interval, difference, over_windows


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """A text to measure on, with windows int64 `[windows, target]` by the doctor's protocol."""

    name: str
    windows: Tensor
    protocol: LossProtocol

    @classmethod
    def take(
        cls, path: Path | None, tokenizer: Tokenizer, reach: Reach, *, start_char: int = 0, **protocol: Any
    ) -> HeldOutText:
        """Cut windows from a text (None: the packaged Moby Dick), starting at `start_char`.

        `protocol`: further arguments of `LossProtocol.choose`.
        """
        name, contents = read_text(path)
        tokens = tokenizer.encode(contents[max(start_char, 0) :])
        chosen = LossProtocol.choose(
            trained_length=reach.trained,
            target=reach.target,
            text=name,
            start_char=start_char,
            tokens=len(tokens),
            **protocol,
        )
        return cls(name=name, windows=take_windows(tokens, chosen), protocol=chosen)


RUN = 32  # tokens; two novels share none, three in ten thousand of bytes at 24
LARGEST = 0.05  # the share above which a text counts as seen: less than one window of sixteen


def seen_share(windows: Tensor, texts: Iterable[Sequence[int]]) -> float:
    """Return the share of the windows' runs of 32 tokens, from 0 to 1, that occur in one of `texts`.

    **Arguments:**
    - `windows`: int64 `[windows, target]`; if windows are shorter than 32 tokens, a run is a whole window.
    - `texts`: token ids of the same tokenizer.

    >>> import torch
    >>> text = list(range(100))
    >>> seen_share(torch.arange(40)[None], [text]), seen_share(torch.arange(84, 124)[None], [text])
    (1.0, 0.0)
    """
    run = min(RUN, windows.shape[1])
    if not windows.numel():
        return 0.0
    hashes = np.concatenate([_hashes(ids.cpu().numpy(), run) for ids in windows])
    seen = np.zeros(len(hashes), dtype=bool)
    for text in texts:
        seen |= np.isin(hashes, _hashes(np.asarray(text), run))
    return float(seen.mean())


def _hashes(ids: npt.NDArray[np.integer], run: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each run of `run` consecutive tokens."""
    places = max(len(ids) - run + 1, 0)
    values = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(29)
    hashes = np.zeros(places, dtype=np.uint64)
    for index in range(run):
        hashes = hashes * np.uint64(0xD1342543DE82EF95) + values[index : index + places]
    return hashes


def refuse_seen(windows: Tensor, texts: Sequence[tuple[str, str]], tokenizer: Tokenizer, *, validation: str) -> None:
    """Raise `RopeError` if a share above 0.05 of the windows occurs in the texts (path, contents) to tune on."""
    share = seen_share(windows, (tokenizer.encode(contents) for _, contents in texts))
    if share > LARGEST:
        raise RopeError(
            "extend: the text to measure on is one of those to tune on, or shares passages with them.",
            facts={
                "text": [name for name, _ in texts],
                "validation": validation,
                f"share of its windows' {min(RUN, windows.shape[1])}-token runs seen": round(share, 4),
                "largest allowed": LARGEST,
            },
            cure="Pass --validation with another text.",
        )


PLAIN, CROP, AS_IS, TUNED = "plain", "crop", "as-is", "tuned"
TUNED_CROP = "tuned crop"  # the tuned weights in fresh windows of the trained length


def crop_of(method: str) -> str:
    """Return the name under which a method is measured in fresh windows, at its frequencies for the target.

    >>> crop_of("yarn"), crop_of("plain")
    ('yarn crop', 'crop')
    """
    return CROP if method == PLAIN else f"{method} {CROP}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One model's mean losses in nats per token: `blocks[window][block]`; of each window `within` and `beyond`."""

    name: str
    blocks: list[list[float]]
    within: list[float]
    beyond: list[float] | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with means over the windows and their 95 % intervals."""
        by_block = [over_windows(values) for values in zip(*self.blocks, strict=True)]
        return {
            "name": self.name,
            "loss_by_block": [mean for mean, _ in by_block],
            "ci_by_block": [interval for _, interval in by_block],
            "loss_within": float(np.mean(self.within)),
            "loss_beyond": None if self.beyond is None else float(np.mean(self.beyond)),
            "loss_by_window_and_block": self.blocks,
            "seconds": self.seconds,
        }


def measure(
    reader: Reader, windows: Tensor, plan: Plan, names: Mapping[str, str], folder: Path, *, progress: Progress | None
) -> list[Variant]:
    """Measure the losses of a model.

    **Arguments:**
    - `windows`: int64 `[windows, target]`, from `measure.plan.take_windows`. `plan`: the reader's positions to measure.
    - `names`: the plan's method of each result, by the result's name.
    - `folder`: for a ledger of the results by window, so that a stopped measurement resumes.

    **Returns:** one `Variant` for each entry of `names`.
    **Raises:** `RopeError` if a loss is not finite.
    """
    key = fingerprint(reader, windows, plan.protocol)
    ledger = Ledger(folder / key, kind=KIND, key=key)
    ledger.resume()
    run(reader, windows, plan, ledger, progress=progress)
    measurement = gather(plan, ledger)
    return [
        Variant(
            name=name,
            blocks=measurement.block_means(method),
            within=measurement.within(method),
            beyond=measurement.beyond(method),
            seconds=sum(window.seconds for window in measurement.results[method]),
        )
        for name, method in names.items()
    ]


def before(reader: Reader, protocol: LossProtocol, method: str) -> tuple[Plan, dict[str, str]]:
    """Plan the measurement of the checkpoint: plain, crop if the target exceeds the trained length, and the method."""
    baselines = [PLAIN, CROP] if _can_crop(protocol) else [PLAIN]
    return plan(reader, protocol, [*baselines, method]), {name: name for name in (*baselines, method)}


def untuned_crop(adapted: Reader, protocol: LossProtocol, method: str) -> tuple[Plan, dict[str, str]]:
    """Plan the measurement of the model under its method, in fresh windows."""
    names = {crop_of(method): CROP} if method != PLAIN and _can_crop(protocol) else {}
    return _plan_of_own(adapted, protocol, names), names


def after(reader: Reader, protocol: LossProtocol) -> tuple[Plan, dict[str, str]]:
    """Plan the measurement of the tuned model, in whole windows and in fresh ones."""
    names = {TUNED: AS_IS, TUNED_CROP: CROP} if _can_crop(protocol) else {TUNED: AS_IS}
    return _plan_of_own(reader, protocol, names), names


def _plan_of_own(reader: Reader, protocol: LossProtocol, names: Mapping[str, str]) -> Plan:
    """Plan a reader under its own positions; the frequencies of the target apply to fresh windows too."""
    own = reader.positions
    positions = dict.fromkeys(names.values(), own)
    return Plan(protocol=protocol, own=own, positions=positions, same_as={}, crop_seq_len=protocol.target)


def _can_crop(protocol: LossProtocol) -> bool:
    return protocol.target > protocol.trained_length > 1


def verdict(variants: Sequence[Variant], method: str) -> dict[str, Any]:
    """Return the deciding comparisons, paired by window: nats per token, with 95 % intervals (None for one window).

    - `tuned_minus_crop_beyond`: at or below zero, distant tokens cost no more loss than forgetting them.
    - `interaction_beyond`: (tuned - untuned) x (full - crop), both under the method: how much more tuning lowers the
      loss with the distant tokens than without them. What tuning learned from the text lowers both, and cancels.
    - `tuned_minus_its_crop_beyond`: below zero, the distant tokens help the tuned model.
    """
    by_name = {variant.name: variant for variant in variants}
    pairs = {
        "method_minus_crop_beyond": (method, CROP, "beyond"),
        "tuned_minus_crop_beyond": (TUNED, CROP, "beyond"),
        "tuned_minus_its_crop_beyond": (TUNED, TUNED_CROP, "beyond"),
        "method_minus_its_crop_beyond": (method, crop_of(method), "beyond"),
        "tuned_minus_method_beyond": (TUNED, method, "beyond"),
        "tuned_minus_plain_within": (TUNED, PLAIN, "within"),
        "method_minus_plain_within": (method, PLAIN, "within"),
    }
    differences: dict[str, Any] = {}
    for key, (one, other, where) in pairs.items():
        if one in by_name and other in by_name and one != other:
            values = getattr(by_name[one], where), getattr(by_name[other], where)
            if None not in values:
                mean, interval = difference(*values)
                differences[key] = {"nats": mean, "ci": interval}
    four = [by_name[name].beyond for name in (TUNED, TUNED_CROP, method, crop_of(method)) if name in by_name]
    if len(four) == 4 and None not in four:
        mean, interval = interaction(*four)  # type: ignore[arg-type]
        differences["interaction_beyond"] = {"nats": mean, "ci": interval}
    return differences


def interaction(
    tuned: Sequence[float], tuned_crop: Sequence[float], untuned: Sequence[float], untuned_crop: Sequence[float]
) -> tuple[float, Interval]:
    """Return (tuned - untuned) x (full - crop) of losses by window, nats per token, and its 95 % interval.

    >>> interaction([2.0], [2.5], [3.0], [3.25])
    (-0.25, None)
    """
    gains = [np.subtract(full, crop).tolist() for full, crop in ((tuned, tuned_crop), (untuned, untuned_crop))]
    return difference(*gains)


def record(
    *,
    model: str,
    method: str,
    protocol: LossProtocol | None,
    variants: Sequence[Variant],
    config: Mapping[str, Any],
    tuning: Mapping[str, Any] | None,
    environment: Mapping[str, Any],
    unscaled_tokens: int = 0,
) -> dict[str, Any]:
    """Return the work and its measurement as one JSON document: losses in nats per token, lengths in tokens."""
    document: dict[str, Any] = finite(
        {
            "model": model,
            "method": method,
            "unscaled_tokens": unscaled_tokens,
            "config": dict(config),
            "tuning": None if tuning is None else dict(tuning),
            "protocol": None if protocol is None else protocol.to_json(),
            "blocks": [] if protocol is None else [list(block) for block in protocol.blocks],
            "variants": [variant.to_json() for variant in variants],
            "verdict": verdict(variants, method),
            "environment": dict(environment),
        }
    )
    return document


def card(record: Mapping[str, Any], *, figure: str | None = None, numbers: str | None = None) -> str:
    """Return the model card, in Markdown, of a `record`.

    `figure` and `numbers`: the names of a picture and of the record in the same folder.
    """
    tuning, protocol = record["tuning"], record["protocol"]
    config = record["config"].get("text_config") or record["config"]
    block = config.get("rope_parameters")
    name, method = plain_text(record["model"]), plain_text(record["method"])
    first = record.get("unscaled_tokens")
    method += f" (the first {first:,} tokens unscaled)" if first else ""
    work = f"{method}, " + ("put into config.json" if block else "in ropewalk's own form")
    if tuning is not None:
        settings = tuning["settings"]
        work += (
            f"; then {settings['steps']:,} updates ({tuning['tokens']:,} tokens) at {settings['seq_len']:,} tokens, "
            f"training {plain_text(settings['train'])}"
        )
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
        *_results(record, protocol, figure),
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
    """Return one line for each program that applies the block."""
    if block is None:
        return ["Only `ropewalk.load` opens this folder: no config of transformers can express the method."]
    if "rope_type" not in block:  # a block for each layer type
        return ["- transformers 5 applies `rope_parameters`. Other programs were not tried with several blocks."]
    rule = block["rope_type"]
    lines = [
        "- transformers 5 applies `rope_parameters`, version 4 `rope_scaling` and `rope_theta`; the folder has both."
    ]
    if rule not in RULES_CHECKED:
        return lines
    for engine, title in READERS_OF_CONFIGS.items():
        notes = [one.text for one in caveats_of(engine, block, rule, scaled=rule != "default") if one.of_the_block]
        lines.append(f"- {title}: {' '.join(notes) or 'the same frequencies and temperature.'}")
    return [*lines, "", "What vLLM and llama.cpp do is from their sources, not from a run."]


def plain_text(text: str) -> str:
    r"""Escape a name for one line of Markdown.

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
            "crop forgets the oldest tokens. Below zero it is better than crop.",
        ]
    claim = record["verdict"].get("interaction_beyond")
    own = record["verdict"].get("tuned_minus_its_crop_beyond")
    if claim is not None and own is not None:
        lines += [
            "",
            "(tuned - untuned) x (full - crop), both under the method: tuning changed the loss beyond the trained "
            f"length by {claim['nats']:+.3f} nats{_interval(claim)} more with the distant tokens than in fresh windows "
            f"of the trained length. {_of_interaction(claim['ci'], own['ci'])}",
        ]
    return [*lines, "", *([f"![Loss by position]({figure})", ""] if figure else [])]


def _interval(difference: Mapping[str, Any]) -> str:
    """Return the interval of a difference in words; empty without one."""
    ends = difference["ci"]
    return "" if ends is None else f" (95 % interval {ends[0]:+.3f} to {ends[1]:+.3f})"


def _of_interaction(interval: Sequence[float] | None, own: Sequence[float] | None) -> str:
    """Return a conclusion from the intervals of (tuned - untuned) x (full - crop) and of tuned x (full - crop)."""
    if interval is None or interval[0] <= 0 <= interval[1]:
        return "This does not show that tuning taught it to use them."
    if interval[1] < 0 and own is not None and own[1] < 0:
        return "Tuning taught it to use them."
    if interval[1] < 0:
        return "It handles them better than before, but is not shown to gain from them."
    return "Tuning helped less with them."


def _joined(heads: Sequence[str]) -> str:
    return heads[0] if len(heads) == 1 else f"{heads[0].split('-')[0]}-{heads[-1].split('-')[1]}"
