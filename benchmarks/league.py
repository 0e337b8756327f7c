"""The league: what every method finds that needs no tuning, on SmolLM2-135M at twice its trained length and on `tiny`.

    python benchmarks/league.py MODEL.gguf --texts FOLDER [--dtype bfloat16] [--again]

FOLDER holds bleak_house.txt, middlemarch.txt and moby_dick.txt. SmolLM2 reads one window of the first two novels under
each method, and one more window of each under the five that found most and under YaRN, which engines run. `tiny` reads
one window of eight parts of Moby-Dick, which it was not trained on, at four times its trained length. Each window is a
run of `rw.doctor` of its own: chance is one in four, and a method is given up when its loss rises by more than a nat.
Each run is saved when it is done; the same command continues, and --again measures everything once more. About 40
minutes on two busy cores with AMX in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from records import environment, excerpt, parsed, parser_of

import ropewalk as rw
from ropewalk.atomic_io import write_json
from ropewalk.diagnosis.evidence import choice
from ropewalk.methods import METHODS

ZERO_SHOT = [name for name, one in METHODS.items()
             if not (one.keeps_own or one.crops) or name == "plain"]  # fmt: skip
STRETCHES = {"bleak_house": (20_000, 400_000), "middlemarch": (20_000, 400_000)}
CHARACTERS = 90_000
TINY_PARTS, TINY_STRETCH = 8, 8_000
BEST = 5


def read(model: str, text: tuple[str, dict[str, Any]], methods: list[str], **settings: Any) -> dict[str, Any]:
    """Return what each method found in one window, with its losses and seconds; the text has its source."""
    named = text[1]["file"].removesuffix(".txt"), text[0]
    found = rw.doctor(model, text=[named], methods=methods, windows=1, minutes=math.inf, **settings)
    window, rows = found.windows[0], {}
    for method, (reading,) in found.readings.items():
        standing = found.evidence.standings[method]
        rows[method] = {
            "right": [choice(row) == fact.right for fact, row in zip(window.facts, reading.answers, strict=False)],
            "loss_less_crops": None if standing.loss is None else standing.loss.value,
            "cost": None if standing.cost is None else standing.cost.value,
            "given_up_at": reading.stopped,
            "seconds": reading.seconds,
        }  # fmt: skip
    return {
        "kind": found.kind, "text": text[1], "trained_length": found.trained_length, "target": found.target,
        "far": [fact.far for fact in window.facts],
        "distances": [found.target - fact.start for fact in window.facts],
        "control": [found.evidence.control.found, found.evidence.control.asked],
        "same_as": {method: form.same_as for method, form in found.methods.items() if form.same_as},
        "rows": rows, "environment": {**found.environment, **environment()},
    }  # fmt: skip


def far_found(runs: Mapping[str, Any], method: str) -> tuple[int, int]:
    """Return how many far facts a method found in some runs, and of how many; a run that was given up found none."""
    of = [(run["rows"][method]["right"], run["far"]) for run in runs.values() if method in run["rows"]]
    right = [hit for hits, fars in of for hit, far in zip(hits or [False] * len(fars), fars, strict=True) if far]
    return sum(right), len(right)


def main() -> None:
    """Read what the record lacks."""
    given, record = parsed(parser_of(__doc__), "league.json")

    def run(part: str, key: str, *of: Any, **settings: Any) -> None:
        if key not in record.setdefault(part, {}):
            record[part][key] = read(*of, **settings)
            write_json(given.record, {"generator": "ropewalk", **record})

    def round_of(number: int, methods: list[str]) -> None:
        for novel, starts in STRETCHES.items():
            text = excerpt(given.texts, novel, starts[number], CHARACTERS)
            run("smollm2", f"{novel} {number + 1}", given.model, text, methods, target=16384, trained_length=8192,
                dtype=given.dtype)  # fmt: skip

    round_of(0, ZERO_SHOT)
    first = record["smollm2"]
    ranked = sorted(ZERO_SHOT[1:], key=lambda method: -far_found(first, method)[0])
    print("the best:", ", ".join(f"{method} {far_found(first, method)[0]}" for method in ranked))
    round_of(1, list(dict.fromkeys([*ranked[:BEST], "yarn"])))
    for part in range(TINY_PARTS):
        text = excerpt(given.texts, "moby_dick", 20_000 + part * TINY_STRETCH, TINY_STRETCH)
        run("tiny", f"moby_dick {part + 1}", "tiny", text, ZERO_SHOT, target=1024)


if __name__ == "__main__":
    main()
