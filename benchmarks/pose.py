"""Does tuning on short windows whose positions skip (PoSE) teach a model to read further? Arms, one record, one figure.

    python benchmarks/pose.py tiny --out build/pose-tiny --record benchmarks/results/pose-tiny.json ...

benchmarks/pose_tiny.sh and benchmarks/pose_smollm2.sh hold the settings. Each arm is one `extend.tune` on the same data
and the same number of tokens (with windows of the trained length: in about the same time). Then the source under the
method and every arm are read alike, on texts that no arm saw (the copies and retrieval on the first of them):

- losses at every length of --lengths: whole windows and fresh windows of the trained length, and their interaction
  (tuned - untuned) x (full - crop) beyond the trained length, the same of two arms at a time; what the arm
  costs within it, against plain;
- copies at every length, and retrieval of named numbers: of the source under the method, under the methods of
  --zero-shot, and of every arm.

Everything that was done is kept in --out: stopped, the same command goes on. The record is written anew after each arm.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ropewalk import extend
from ropewalk.atomic_io import finite, write_json
from ropewalk.builtin.texts import read_text
from ropewalk.extend.job import SourceModel
from ropewalk.extend.measurement import (
    CROP,
    PLAIN,
    TUNED,
    TUNED_CROP,
    HeldOutText,
    Variant,
    after,
    interaction,
    measure,
    refuse_seen,
)
from ropewalk.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    RED,
    SKY,
    caption,
    length_ticks,
    new_figure,
    panel,
    style,
    write_figure,
)
from ropewalk.ledger import Ledger
from ropewalk.measure.answers import Answer, RetrievalMeasurement
from ropewalk.measure.copies import SpanDesign, WindowSpans, gather_copies
from ropewalk.measure.losses import run
from ropewalk.measure.plan import KIND, LossProtocol, Plan, fingerprint, plan, trained_length_of
from ropewalk.measure.retrieval import measure_retrieval
from ropewalk.methods import METHODS, Reach
from ropewalk.progress import ProgressBar
from ropewalk.readers.digest import environment_of
from ropewalk.readers.reader import Reader
from ropewalk.statistics import difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNTUNED, UNTUNED_CROP = f"un{TUNED}", f"un{TUNED_CROP}"
ARMS: dict[str, str] = {
    "full-length": "windows of the target length, with far answers: the positive control",
    "pose": "short windows that skip, with far answers",
    "trained-length": "windows of the trained length that skip, with far answers, 4 of 10 tokens: as much time",
    "trained-length-no-skip": "the same windows, which do not skip",
    "trained-length-no-far-answers": "the same windows, of plain text",
    "trained-length-no-method": "the same windows, without the method",
    "no-skip": "short windows that do not skip, with far answers",
    "no-method": "short windows that skip, with far answers, without the method",
    "no-far-answers": "short windows that skip, of plain text",
    "no-skip-no-far-answers": "short windows that do not skip, of plain text",
}
COMPARED = {"no-skip-no-far-answers": "no-far-answers"} | {
    arm: "trained-length" for arm in ARMS if arm.startswith("trained-length-")
}  # others: with `pose`
SHARE = 0.4  # of the tokens that `trained-length` is tuned on: attention and checkpoints make each of them dearer


def changes_of(arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """What sets an arm apart from `pose`."""
    whole = {"window": None, "batch_size": max(1, options.batch_size * options.window // options.target)}
    tokens = options.batch_size * options.window * options.steps
    longer = {"window": options.trained, "batch_size": 1, "activation_checkpointing": True,
              "steps": max(1, round(SHARE * tokens / options.trained))}  # fmt: skip
    return {
        "full-length": whole,
        "pose": {},
        "trained-length": longer,
        "trained-length-no-skip": {**longer, "skip_target": options.trained},
        "trained-length-no-method": {**longer, "method": "plain"},
        "trained-length-no-far-answers": {**longer, "repeat_share": 0.0},
        "no-skip": {"skip_target": options.window},
        "no-method": {"method": "plain"},
        "no-far-answers": {"repeat_share": 0.0},
        "no-skip-no-far-answers": {"skip_target": options.window, "repeat_share": 0.0},
    }[arm]


def tuned(arm: str, options: argparse.Namespace, progress: ProgressBar) -> Path:
    """The folder of an arm's model, tuned now if it is not there."""
    out = options.out / arm
    settings = extend.TuneSettings(
        **{
            "text": tuple(map(str, options.text)),
            "target": options.target,
            "method": options.method,
            "measure": False,
            "dtype": "float32",
            "checkpoint_every": options.checkpoint_every,
            **{name: getattr(options, name) for name in OF_TRAINING},
            **changes_of(arm, options),
        }
    )
    if not (out / "config.json").exists():
        extend.tune(options.model, out, settings, progress=progress)
    return out  # type: ignore[no-any-return]


def held_out(options: argparse.Namespace, source: Reader, length: int, path: Path) -> HeldOutText:
    """Windows of `length` tokens of a text that no arm saw."""
    trained, tokenizer = trained_length_of(source, None), source.tokenizer
    assert tokenizer is not None
    return HeldOutText.take(path, tokenizer, Reach(trained, length), start_char=options.start_char,
                            windows=options.windows, block=options.block)  # fmt: skip


def beyond(variant: Variant, protocol: LossProtocol, length: int) -> list[float]:
    """Each window's mean loss from the trained length up to `length`."""
    return up_to(variant.blocks, protocol, length)


def up_to(blocks: Sequence[Sequence[float]], protocol: LossProtocol, length: int) -> list[float]:
    """As `beyond`, of losses by window and block; blocks are equally long."""
    which = [i for i, (first, end) in enumerate(protocol.blocks) if first >= protocol.trained_length and end <= length]
    return [sum(row[i] for i in which) / len(which) for row in blocks]


def joined(parts: Sequence[Variant]) -> Variant:
    """One model's losses on several texts, window after window."""
    beyond = [one.beyond for one in parts if one.beyond is not None]
    return dataclasses.replace(
        parts[0],
        blocks=[row for one in parts for row in one.blocks],
        within=[loss for one in parts for loss in one.within],
        beyond=[loss for losses in beyond for loss in losses] if beyond else None,
        seconds=sum(one.seconds for one in parts),
    )


def losses(
    source: Reader, model: Reader, texts: Sequence[HeldOutText], method: str, options: argparse.Namespace
) -> dict[str, Any]:
    """An arm's losses beside the source's: means, the interaction at every length, and the cost within."""
    adapted, protocol = under(source, method, options), texts[0].protocol
    parts: dict[str, list[Variant]] = {}
    with ProgressBar("losses", every=10) as progress:
        for text in texts:
            as_it_is, of_method = after(adapted, text.protocol)
            untuned = as_it_is, {name.replace(TUNED, UNTUNED): key for name, key in of_method.items()}
            baselines = plan(source, text.protocol, [PLAIN, CROP])
            if method == PLAIN:
                untuned = baselines, {UNTUNED: PLAIN, UNTUNED_CROP: CROP}
            for reader, planned, names in (
                (source, baselines, {PLAIN: PLAIN, CROP: CROP}),
                (source if method == PLAIN else adapted, *untuned),
                (model, *after(model, text.protocol)),
            ):
                for variant in measure(reader, text.windows, planned, names, options.out / "losses", progress=progress):
                    parts.setdefault(variant.name, []).append(variant)
    found = {name: joined(of_texts) for name, of_texts in parts.items()}
    four = [found[name] for name in (TUNED, TUNED_CROP, UNTUNED, UNTUNED_CROP)]
    within, interval = difference(found[TUNED].within, found[PLAIN].within)
    rows: list[dict[str, Any]] = []
    for length in options.lengths:
        mean, ends = interaction(*(beyond(variant, protocol, length) for variant in four))
        rows.append({"length": length, "interaction": {"nats": mean, "ci": ends}})
        for key, name in (("tuned_minus_its_crop", TUNED_CROP), ("tuned_minus_crop", CROP)):
            full, other = (beyond(found[one], protocol, length) for one in (TUNED, name))
            against, around = difference(full, other)
            rows[-1][key] = {"nats": against, "ci": around}
    return {
        "variants": [variant.to_json() for variant in found.values()],
        "beyond": rows,
        "tuned_minus_plain_within": {"nats": within, "ci": interval},
    }


def contrasts(arms: Mapping[str, Any], protocol: LossProtocol, lengths: Sequence[int]) -> dict[str, Any]:
    """The arm `pose` against every other: the difference of their (full - crop) beyond the trained length.

    And arms that have a control of their own, which does not skip, against that.
    """

    def by_window(arm: str, name: str, length: int) -> list[float]:
        (found,) = (one for one in arms[arm]["variants"] if one["name"] == name)
        return up_to(found["loss_by_window_and_block"], protocol, length)

    rows: dict[str, list[dict[str, Any]]] = {}
    for arm in arms:
        other = COMPARED.get(arm, "pose")
        if arm == other or other not in arms:
            continue
        for length in lengths:
            four = [by_window(one, name, length) for one in (other, arm) for name in (TUNED, TUNED_CROP)]
            mean, ends = interaction(*four)
            rows.setdefault(arm, []).append({"of": other, "length": length, "nats": mean, "ci": ends})
    return rows


def under(source: Reader, method: str, options: argparse.Namespace) -> Reader:
    """The source under a method, up to the target."""
    reach = Reach(trained_length_of(source, None), options.target)
    return source.under(METHODS[method].positions(source.positions, reach))


def copying(reader: Reader, source: Reader, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return at every length what spans of the window gain from having been read, and the control."""
    rows: list[dict[str, Any]] = []
    for length in options.lengths if options.copy_windows else ():
        text = held_out(options, source, length, options.validation[0])
        protocol = dataclasses.replace(text.protocol, windows=options.copy_windows)
        design, tokenizer = SpanDesign.choose(protocol), source.tokenizer
        if design is None:
            continue
        assert tokenizer is not None
        ids = tokenizer.encode(text.contents[options.start_char :])
        places = [start for _, start in protocol.places([len(ids)])]
        windows = [ids[start : start + length] for start in places]
        spans = [
            WindowSpans.draw(design, window, [ids[start + length :], ids[:start]], seed=(protocol.seed, number))
            for number, (window, start) in enumerate(zip(windows, places, strict=True))
        ]
        key = fingerprint(reader, torch.tensor(windows), protocol)
        ledger = Ledger(options.out / "copies" / key, kind=KIND, key=key)
        ledger.resume()
        # the reader is under its method already: "plain" is the model as it is, asked at every stop
        work = as_it_is(reader, protocol)
        with ProgressBar("copies", every=10) as progress:
            run(reader, torch.tensor(windows), work, ledger, spans=spans, progress=progress)
        results = {PLAIN: [ledger[work.key(PLAIN, number)] for number in range(len(windows))]}
        found = gather_copies(protocol, spans, results, (0,) * len(windows))
        rows += [{"window": length, **row.to_json()} for row in found.rows() if row.length > protocol.trained_length]
        rows.append({"length": length, "control": found.to_json()["control"]})
    return rows


def as_it_is(reader: Reader, protocol: LossProtocol) -> Plan:
    """Return a plan of the model's own positions only, under the name plain."""
    own = reader.positions
    return Plan(protocol=protocol, own=own, positions={PLAIN: own}, same_as={}, config_form=reader.config_form)


def answers(
    readers: Mapping[str, Reader], source: Reader, options: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """Of each model the share of named numbers that it finds in texts of each length, chance beside it."""
    if not options.texts:
        return {name: [] for name in readers}
    tokenizer, trained = source.tokenizer, trained_length_of(source, None)
    assert tokenizer is not None
    with ProgressBar("retrieval", every=10) as progress:
        found = measure_retrieval(
            readers, tokenizer, lengths=options.lengths, samples=options.texts, text=read_text(options.validation[0]),
            trained_length=trained, state=options.out / "retrieval", resume=True,
            progress=progress,
        )  # fmt: skip
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in readers}
    for name in readers:
        for length in options.lengths:
            accuracy = found.accuracy(name, length=length)
            if accuracy is not None:
                rows[name].append(
                    {"length": length, **accuracy.to_json(), "by_distance": by_distance(found, name, length, trained)}
                )
    return rows


def by_distance(found: RetrievalMeasurement, name: str, length: int, step: int) -> list[dict[str, Any]]:
    """How many were found of those that lie so far back, in steps of `step` tokens."""
    rows = []
    for first in range(0, length, step):
        inside = partial(lies, first, first + step)
        part = found.accuracy(name, length=length, where=inside)
        if part is not None:
            rows.append({"distances": [first, first + step], "asked": part.n, "found": part.correct})
    return rows


def lies(first: int, end: int, answer: Answer) -> bool:
    """Whether an answer lies from `first` up to `end` tokens back."""
    return answer.distance is not None and first <= answer.distance < end


def pose_figure(record: Mapping[str, Any]) -> Figure:
    """Draw each arm of `benchmarks/pose.py`: the interaction at each length, and what copying gains, if measured."""
    colors = dict(zip(record["arms"], cycle((BLUE, RED, GREEN, PURPLE, ORANGE, INK, SKY)), strict=False))
    markers = dict(zip(record["arms"], cycle("osD^vPX*h"), strict=False))
    copied = any(result["copy"] for result in (*record["untuned"].values(), *record["arms"].values()))
    with style():
        figure, left = new_figure(11.0 if copied else 8.5, 4.3 if copied else 1.5 + 0.5 * len(record["arms"]))
        left.remove()
        left, *rest = figure.subplots(1, 2 if copied else 1, squeeze=False)[0]
        panel(left, "interaction up to each length, nats per token")
        left.axvline(0, color=INK, linewidth=0.8)
        lengths = record["lengths"]
        for place, (arm, found) in enumerate(record["arms"].items()):
            for row in found["beyond"]:
                mean, ends = row["interaction"]["nats"], row["interaction"]["ci"]
                at = place + 0.22 * (lengths.index(row["length"]) - (len(lengths) - 1) / 2)
                around = None if ends is None else [[mean - ends[0]], [ends[1] - mean]]
                left.errorbar(mean, at, xerr=around, color=colors[arm], marker=markers[arm], linestyle="", capsize=3)
                left.annotate(f" {row['length']:,}", (mean if ends is None else ends[1], at), color=QUIET, fontsize=8,
                              va="center")  # fmt: skip
        left.set_yticks(range(len(record["arms"])), list(record["arms"]))
        left.set_ylim(len(record["arms"]) - 0.5, -0.5)
        left.margins(x=0.2)
        for right in rest:
            _copies(figure, right, record, colors, markers)
        windows = record["protocol"]["windows"] * len(record["protocol"]["texts"])
        dotted = "; the trained length is dotted" if copied else ""
        note = f"{windows} windows; 95 % intervals, paired by window{dotted}."
        caption(figure, f"{record['model']}: tuned on windows that skip, and controls", note)
    return figure


def _copies(
    figure: Figure, axes: Axes, record: Mapping[str, Any], colors: Mapping[str, str], markers: Mapping[str, str]
) -> None:
    """Draw what a copy gains by its distance, under every model of a record of PoSE."""
    panel(axes, f"copies at the end of {record['lengths'][-1]:,} tokens: nats per token, by distance")
    untuned = dict(zip(record["untuned"], (QUIET, SKY), strict=False))
    curves = [(f"{name}, untuned", untuned.get(name, QUIET), "", found) for name, found in record["untuned"].items()]
    curves += [(arm, colors[arm], markers[arm], found) for arm, found in record["arms"].items()]
    for name, color, marker, found in curves:
        rows = [row for row in found["copy"] if row.get("window") == record["lengths"][-1]]
        if rows:
            axes.plot([row["distance"] for row in rows], [row["gain"] for row in rows], color=color, marker=marker,
                      linestyle="-" if marker else "--", label=name)  # fmt: skip
    axes.axvline(record["trained_length"], color=QUIET, linestyle=":")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("distance, tokens")
    length_ticks(axes)
    if axes.lines[2:]:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=8)


def main() -> None:
    """Tune and read every arm, and write record and figure."""
    options = arguments()
    source_model = SourceModel.open(options.model)
    dtype = getattr(torch, options.dtype)
    source: Reader = source_model.reader.to(device="cpu", dtype=dtype)
    options.trained = trained = trained_length_of(source, None)
    texts = [held_out(options, source, max(options.lengths), path) for path in options.validation]
    protocol = dataclasses.replace(texts[0].protocol, texts=tuple(text.name for text in texts))
    assert source.tokenizer is not None
    seen = [(str(path), read_text(path)[1]) for path in options.text]
    for text in texts:
        refuse_seen(text.windows, seen, source.tokenizer, validation=text.name)
    untuned = {name: under(source, name, options) for name in dict.fromkeys((options.method, *options.zero_shot))}
    retrieved = answers(untuned, source, options)
    record: dict[str, Any] = {
        "kind": "pose",
        "model": source_model.name,
        "method": options.method,
        "trained_length": trained,
        "target": options.target,
        "lengths": options.lengths,
        "protocol": protocol.to_json(),
        "dtype": options.dtype,
        "untuned": {
            name: {"copy": copying(reader, source, options), "retrieval": retrieved[name]}
            for name, reader in untuned.items()
        },
        "arms": {},
        "environment": environment_of("cpu", source.parameters),
    }
    for arm in options.arms:
        with ProgressBar(arm, every=10) as progress:
            folder = tuned(arm, options, progress)
        method = changes_of(arm, options).get("method", options.method)
        positions = under(source, method, options).positions
        model = SourceModel.open(folder).reader.to(device="cpu", dtype=dtype).under(positions)
        done = extend_record(folder)
        record["arms"][arm] = {
            "what": ARMS[arm],
            **done,
            **losses(source, model, texts, method, options),
            "copy": copying(model, source, options),
            "retrieval": answers({arm: model}, source, options)[arm],
        }
        record["contrasts"] = contrasts(record["arms"], protocol, options.lengths)
        write_json(options.record, finite(record))
        write_figure(pose_figure(record), [options.record.with_suffix(ending) for ending in (".png", ".svg")])
        for row in record["arms"][arm]["beyond"]:
            ends = row["interaction"]["ci"]
            shown = "" if ends is None else f" [{ends[0]:+.4f}, {ends[1]:+.4f}]"
            print(f"{arm:15} to {row['length']:,}: interaction {row['interaction']['nats']:+.4f}{shown}", flush=True)


def extend_record(folder: Path) -> dict[str, Any]:
    """What `extend tune` wrote of the tuning, without its log."""
    from ropewalk.atomic_io import read_json

    tuning = read_json(folder / "extend.json")["tuning"]
    return {"tuning": {key: value for key, value in tuning.items() if key != "log"}}


OF_TRAINING = ("steps", "batch_size", "window", "repeat_share", "train", "rank", "lr", "precision", "seed",
               "activation_checkpointing")  # fmt: skip


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model")
    add("--out", type=Path, required=True)
    add("--record", type=Path, required=True)
    add("--arms", type=lambda words: words.split(","), default=list(ARMS))
    add("--text", type=Path, nargs="+", required=True)
    add("--validation", type=Path, nargs="+", required=True)
    add("--start-char", type=int, default=30000)
    add("--method", default="yarn")
    add("--zero-shot", type=lambda words: [word for word in words.split(",") if word], default=["dca"])
    add("--target", type=int, required=True, help="What the method and the skips reach to.")
    add("--lengths", type=lambda words: [int(word) for word in words.split(",")], required=True)
    add("--windows", type=int, default=16, help="Of each text of --validation.")
    add("--block", type=int)
    add("--copy-windows", type=int, default=8, help="Windows in which copies are asked for; 0: none.")
    add("--texts", type=int, default=4, help="Texts of retrieval for each length; 0: none.")
    add("--dtype", default="float32", help="Of the weights while they are measured.")
    add("--steps", type=int, required=True)
    add("--batch-size", type=int, required=True)
    add("--window", type=int, required=True)
    add("--repeat-share", type=float, default=0.3)
    add("--train", default="all")
    add("--rank", type=int)
    add("--lr", type=float)
    add("--precision", default="float32")
    add("--seed", type=int, default=0)
    add("--activation-checkpointing", action="store_true")
    add("--checkpoint-every", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
