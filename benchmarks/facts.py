"""Is the doctor's measure what it says? Chance of a blind model, agreement of separate runs, and power.

    python benchmarks/facts.py --texts FOLDER [--smollm2 GGUF] [--again]

- Chance: windows are read from the last trained length of tokens only, so that every far fact is out of sight; the
  questions about far facts are asked as in the doctor. `tiny` reads 200 windows with facts of each kind, SmolLM2 eight.
  Runs of eight windows are drawn from them, and looked at after 1, 2, 4 and 8.
- Agreement: the doctor on 30 disjoint stretches of Moby-Dick, each for itself.

FOLDER holds bleak_house.txt and moby_dick.txt. Each part is saved when it is done; the same command continues, and
--again measures all of them again. About 20 minutes on two cores, 10 without SmolLM2.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import environment, excerpt, parsed, source_of

import ropewalk as rw
from ropewalk.atomic_io import write_json
from ropewalk.checkpoints.opening import open_reader
from ropewalk.diagnosis.evidence import LEVEL, LOOK_CONFIDENCE, groups_of
from ropewalk.diagnosis.facts import GROUP, KINDS, Found, Teller
from ropewalk.diagnosis.schedule import LOOKS

RUNS = 2000
STRETCHES, STRETCH = 30, 34_000  # of Moby-Dick, characters
UNSEEN = 0.95  # `tiny` was trained on the first 95 % of the other novels


def blind(source: str, text: str, kind: str, *, windows: int, target: int) -> dict[str, Any]:
    """Ask for far facts that the model cannot see; return what is found, and how often chance seems refuted."""
    reader = open_reader(source, name=source, dtype=torch.float32, device=torch.device("cpu"))
    tokenizer, trained, found = reader.tokenizer, reader.trained_length, list[list[list[int]]]()
    ids, teller = tokenizer.encode(text), Teller(KINDS[kind], tokenizer.encode, tokenizer.decode)
    layout = teller.layout(trained, target)
    step = max(1, (len(ids) - target) // max(1, windows - 1))
    for number in range(windows):
        told = teller.fill(layout, ids[number * step :][:target], seed=(7, number))
        numbers = [index for index, fact in enumerate(told.facts) if fact.far]
        rows: list[list[float]] = []
        questions = [told.questions[index] for index in numbers]
        asking = {trained: lambda prefix, rows=rows, questions=questions: rows.extend(prefix.ask(questions))}
        seen = torch.from_numpy(told.ids[layout.asked_at - trained : layout.asked_at + 1])
        reader.window_losses(seen, asking=asking)
        found.append(groups_of((told.facts[index], row) for index, row in zip(numbers, rows, strict=True)))
        if number % 20 == 19:
            print(f"blind, {source.rpartition('/')[2]}, {kind}: {number + 1} of {windows} windows", flush=True)
    return {"model": source.rpartition("/")[2], "kind": kind, "trained_length": trained, "target": target,
            "windows": windows, **of_chance(found)}  # fmt: skip


def of_chance(found: Sequence[Sequence[Sequence[int]]]) -> dict[str, Any]:
    """Return the share found, its spread between windows, and the share of runs in which chance seems refuted."""
    right = np.array([sum(choice == place for group in of for place, choice in enumerate(group)) for of in found])
    asked, random = GROUP * len(found[0]), np.random.default_rng(0)
    whole = Found.of([group for of in found for group in of], confidence=LOOK_CONFIDENCE)
    false = 0
    for _ in range(RUNS):
        chosen = random.permutation(len(found))[: min(LOOKS[-1], len(found))]
        looks = (Found.of([g for n in chosen[:look] for g in found[n]], confidence=LOOK_CONFIDENCE)
                 for look in LOOKS if look <= len(chosen))  # fmt: skip
        false += any(look.exceeds_chance(LEVEL) for look in looks)
    return {
        "asked": whole.asked, "found": whole.found, "share": whole.share, "interval": [whole.low, whole.high],
        "variance_of_windows_over_binomial": float(right.var(ddof=1) / (asked * 0.25 * 0.75)),
        "runs_with_a_false_works": false / RUNS,
    }  # fmt: skip


def agreement(text: str, engine: str) -> dict[str, Any]:
    """Run the doctor on disjoint stretches; how often do two runs give the same action, method and length?"""
    rows = []
    for number in range(min(STRETCHES, len(text) // STRETCH)):
        part = text[number * STRETCH : (number + 1) * STRETCH]
        with tempfile.TemporaryDirectory() as state:
            found = rw.doctor("tiny", text=[("part", part)], engine=engine, methods="yarn,llama3,dca", state=state,
                              progress=False)  # fmt: skip
        verdict = found.verdict
        reached = None if verdict.method is None else found.evidence.standings[verdict.method].half
        around = None if reached is None else [reached.low, reached.high]
        answer = {"action": verdict.action, "method": verdict.method, "length": verdict.length}
        source = source_of(part, "moby_dick.txt", number * STRETCH)
        rows.append({**answer, "text": source, "windows": found.evidence.windows, "half": around})
        print(f"agreement, {engine}: {number + 1} of {STRETCHES}: {verdict.headline}", flush=True)
    pairs = list(itertools.combinations(rows, 2))
    same = [one["action"] == other["action"] and one["method"] == other["method"] for one, other in pairs]
    lengths = [one["length"] == other["length"] for (one, other), alike in zip(pairs, same, strict=True) if alike]
    return {"engine": engine, "runs": rows, "pairs": len(pairs), "same_action_and_method": float(np.mean(same)),
            "same_length_of_those": float(np.mean(lengths)) if lengths else None}  # fmt: skip


def main() -> None:
    """Run the parts that the record lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--smollm2")
    given, record = parsed(parser, "facts.json")
    torch.set_num_threads(1)
    (bleak, of_bleak), (moby, of_moby) = (excerpt(given.texts, name, 0) for name in ("bleak_house", "moby_dick"))
    unseen = bleak[int(UNSEEN * len(bleak)) :] + moby[: len(moby) // 2]
    parts: dict[str, Callable[[], Any]] = {
        **{f"blind_tiny_{kind}": lambda kind=kind: blind("tiny", unseen, kind, windows=200, target=1024)
           for kind in KINDS},
        **{f"agreement_{engine}": lambda engine=engine: agreement(moby, engine) for engine in ("python", "vllm")},
    }  # fmt: skip
    if given.smollm2:
        parts |= {f"blind_smollm2_{kind}": lambda kind=kind: blind(given.smollm2, bleak, kind, windows=8, target=16384)
                  for kind in KINDS}  # fmt: skip
    for name, part in parts.items():
        if name not in record:
            texts = [of_bleak, of_moby]
            record |= {"generator": "ropewalk", "texts": texts, name: part(), "environment": environment()}
            write_json(given.record, record)


if __name__ == "__main__":
    main()
