"""The doctor's verdicts on `tiny`, window by window, into benchmarks/results/verdicts-tiny.json.

    python scripts/verdicts_of_tiny.py FOLDER [--state FOLDER]

FOLDER contains moby_dick.txt, bleak_house.txt and tinyshakespeare.txt. Each text is read in 48 disjoint windows, under
five methods. The rules then decide on disjoint runs of 16 of these windows, at the planned looks, and stop as the
doctor stops: on three runs of each text, and on nine runs that take their windows from the three texts in turn. The
record keeps every loss and answer, so that `replayed` decides anew without a model. About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ropewalk as rw
from ropewalk.atomic_io import write_whole
from ropewalk.diagnosis import Protocol
from ropewalk.diagnosis.rules import Decision, Evidence, LossTable, apply_rules
from ropewalk.measure import copies as of_copies
from ropewalk.measure.copies import Answers, CopyMeasurement, SpanDesign
from ropewalk.measure.plan import LossProtocol
from ropewalk.statistics import LOOKS

RECORD = Path(__file__).resolve().parents[1] / "benchmarks/results/verdicts-tiny.json"
TEXTS = ("moby_dick.txt", "bleak_house.txt", "tinyshakespeare.txt")
METHODS, WINDOWS, RUN = ("yarn", "dca", "llama3"), 48, LOOKS[-1]


class Able(CopyMeasurement):
    """A measurement whose model is known to copy: gains are computed from any windows."""

    @property
    def can_copy(self) -> bool:
        return True


def measured(path: Path, state: Path | None) -> dict[str, Any]:
    """Return every loss and answer of one text, rounded to 0.00001 nats, and the protocol."""
    found = rw.doctor(
        "tiny",
        text=path,
        methods=METHODS,
        minutes=600,
        resume=True,
        state=None if state is None else state / path.stem,
        protocol=Protocol(windows=WINDOWS, workers=1, keep_going=True),
        progress=False,
    )
    losses, copies = LossTable.of(found.measurement), found.copies
    assert copies is not None
    assert losses.share == 1.0, "windows are disjoint"
    return {
        "text": path.stem,
        "protocol": found.measurement.protocol.to_json(),
        "model_digest": found.environment["model_digest"],
        "losses": {name: np.round(values, 5).tolist() for name, values in losses.losses.items()},
        "frequencies": np.round(losses.frequencies, 5).tolist(),
        "answers": {
            name: [
                {
                    kind: {length: np.round(values, 5).tolist() for length, values in part.items()}
                    for kind, part in (("read", one.read), ("unread", one.unread))
                }
                for one in windows
            ]
            for name, windows in copies.answers.items()
        },
        "ranges": copies.ranges,
    }


def runs(texts: int) -> list[list[tuple[int, int]]]:
    """Return the (text, window) of each run: three runs of each text, then those that take the texts in turn."""
    per_text = WINDOWS // RUN
    alone = [[(text, part * RUN + i) for i in range(RUN)] for text in range(texts) for part in range(per_text)]
    turn = [(text, window) for window in range(WINDOWS) for text in range(texts)]
    return alone + [turn[start : start + RUN] for start in range(0, len(turn), RUN)]


def evidence(texts: Sequence[Mapping[str, Any]], chosen: Sequence[tuple[int, int]]) -> Evidence:
    """Return the evidence of some windows of a record, given by text and number."""
    first = texts[0]
    protocol = LossProtocol.choose(
        trained_length=first["protocol"]["trained_length"],
        text="these",
        target=first["protocol"]["target"],
        windows=1,
        block=first["protocol"]["block"],
    )
    blocks = LossTable(
        trained=protocol.trained_length,
        target=protocol.target,
        losses={name: [texts[text]["losses"][name][window] for text, window in chosen] for name in first["losses"]},
        frequencies=[texts[text]["frequencies"][window] for text, window in chosen],
        weights=protocol.weights,
        within=protocol.blocks_within,
        stretches=protocol.stretches,
        ends=protocol.stretch_ends,
        texts=tuple(text for text, _ in chosen),
    )

    def answers(one: Mapping[str, Any]) -> Answers:
        return Answers(*({int(length): values for length, values in one[kind].items()} for kind in ("read", "unread")))

    copies = CopyMeasurement(
        trained_length=protocol.trained_length,
        target=protocol.target,
        design=SpanDesign.choose(protocol),
        answers={
            name: [answers(texts[text]["answers"][name][window]) for text, window in chosen]
            for name in first["answers"]
        },
        ranges={int(length): numbers for length, numbers in first["ranges"].items()},
        texts=blocks.texts,
    )
    return Evidence(blocks, copies)


def replayed(
    texts: Sequence[Mapping[str, Any]], chosen: Sequence[tuple[int, int]]
) -> tuple[int | None, Decision, int | None]:
    """Return the windows of the first look with the last action and method, the decision, and its length, or None."""
    first, last = None, None
    for look in LOOKS:
        of = evidence(texts, chosen[:look])
        decision = apply_rules(of)
        if (decision.action, decision.method) != last:
            first, last = look, (decision.action, decision.method)
        if decision.final:
            break
    return first, decision, of.length(decision.stretches) if decision.action in ("keep", "extend") else None


def table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of verdicts of docs/evidence/verdicts.md, with the looks from which action and method stay."""
    lines = ["| text | last verdict | runs | same action and method from |", "|---|---|--:|---|"]
    found: dict[tuple[str, str], list[int]] = {}
    for one in verdicts:
        words = [one["action"], one["method"], None if one["length"] is None else f"to {one['length']:,}"]
        found.setdefault((one["texts"], " ".join(filter(None, words))), []).append(one["windows"])
    for (text, verdict), windows in found.items():
        lines.append(f"| {text} | {verdict} | {len(windows)} | {', '.join(map(str, sorted(windows)))} |")
    return "\n".join(lines)


def coverage(texts: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of copies of docs/evidence/verdicts.md, for other priors and bounds than the package's.

    By text: how often the interval of the gain less the bound contains the mean of all windows, mean and worst over
    methods and lengths, and how often plain is taken for a method that copies, at the worst length; percentages.
    """
    of_package = of_copies.SHARE, of_copies.PRIOR, of_copies.PRIOR_DF
    lines = ["| bound | k | d0 | text | 1 window | 2 windows | plain copies |", "|--:|--:|--:|---|--:|--:|--:|"]
    try:
        for constants in ((1 / 3, 1.25, 8), (1 / 3, 1.25, 4), (1 / 3, 1.5, 8), (1 / 4, 1.25, 8), (1 / 2, 1.25, 8)):
            of_copies.SHARE, of_copies.PRIOR, of_copies.PRIOR_DF = constants
            for number, text in enumerate(texts):
                cells, false = [], 0.0
                for count in (1, 2):
                    rng, held = np.random.default_rng(count), dict[tuple[str, int], list[bool]]()
                    draws = [[i] for i in range(WINDOWS)]
                    if count > 1:
                        draws = [rng.choice(WINDOWS, count, replace=False).tolist() for _ in range(100)]
                    whole, shown = gains(texts, number, range(WINDOWS)), dict[int, list[bool]]()
                    for chosen in draws:
                        for key, (mean, (low, high)) in gains(texts, number, chosen).items():
                            error = abs(mean - whole[key][0]) / np.sqrt(1 - count / WINDOWS)
                            held.setdefault(key, []).append(error <= (high - low) / 2)
                            if key[0] == "plain":
                                shown.setdefault(key[1], []).append(low > 0)
                    parts = [100 * float(np.mean(of)) for of in held.values()]
                    cells.append(f"{np.mean(parts):.1f}, {min(parts):.1f}")
                    false = max(false, *(100 * float(np.mean(of)) for of in shown.values()))
                row = [
                    f"{constants[0]:.2f}",
                    str(constants[1]),
                    str(constants[2]),
                    text["text"],
                    *cells,
                    f"{false:.1f}",
                ]
                lines.append(f"| {' | '.join(row)} |")
    finally:
        of_copies.SHARE, of_copies.PRIOR, of_copies.PRIOR_DF = of_package
    return "\n".join(lines)


def gains(texts: Sequence[Mapping[str, Any]], text: int, chosen: Sequence[int]) -> dict[tuple[str, int], Any]:
    """Return each method's gain less the bound at each stretch, with its interval, from some windows of a text."""
    found = evidence(texts, [(text, window) for window in chosen]).copies
    assert isinstance(found, CopyMeasurement)
    copies = Able(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})
    stops = range(len(copies.design.stops)) if copies.design is not None else ()
    return {(name, stretch): copies.beyond_bound(name, stretch) for name in copies.methods for stretch in stops}


def main() -> None:
    """Measure, decide, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the texts")
    parser.add_argument("--state", type=Path, help="the folder of the results so far [default: in the user's cache]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = [measured(given.folder / name, given.state) for name in TEXTS]
    texts = json.loads(json.dumps(texts))
    verdicts = []
    for chosen in runs(len(texts)):
        of = {text for text, _ in chosen}
        windows, decision, length = replayed(texts, chosen)
        verdicts.append(
            {"texts": texts[chosen[0][0]]["text"] if len(of) == 1 else "all", "chosen": chosen, "windows": windows,
             "action": decision.action, "method": decision.method, "length": length, "final": decision.final}
        )  # fmt: skip
    record = {"model": "tiny", "methods": METHODS, "verdicts": verdicts, "coverage": coverage(texts), "measured": texts}
    write_whole(RECORD, json.dumps(record) + "\n")
    print(table(verdicts))


if __name__ == "__main__":
    main()
