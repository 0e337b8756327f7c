"""Measure which rope each engine applies, for every family, block and spelling of `models.py`.

python benchmarks/engines/matrix.py --engines mlx,llama.cpp    # resumes; --small for continuous integration

A prompt's log-probabilities and those of generated tokens are compared with transformers. Where they differ, `verify`
names the wrong rope. The record is benchmarks/results/engines.json; environments are those of `make engines`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from engines.models import BLOCKS, FAMILIES, PROMPT, SPELLINGS, UNSCALED, Case, Models
from engines.runners import ENGINES, Runner, Skipped

from ropewalk.atomic_io import write_whole
from ropewalk.errors import RopeError
from ropewalk.verification.verify import verify

RECORD = ROOT / "benchmarks" / "results" / "engines.json"
NEW = 8  # generated tokens
EQUAL = 5e-3  # nats: float32 in another order of sums has up to 1e-3
VERIFIED = ("llama", "qwen2")
"""Families of which `verify` judges every cell; of others those that equal neither transformers nor the plain rope."""
SMALL_FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "starcoder2")
SMALL_BLOCKS = ("plain", "linear", "yarn")


@dataclass(frozen=True)
class Cell:
    """The result of one checkpoint in one engine.

    - `outcome`: "equal"; "named", with the wrong rope as `name`; "other", which differs as much with the plain rope, so
      that the rope is not the cause; "unknown"; or "not loaded", with the engine's reason as `name`.
    - `largest`: the largest difference of a log-probability, in nats, after the prompt's tokens and generated ones.
    - `first`: the number of tokens after which the difference is first above `EQUAL`.
    - `acts`: the largest difference that the block itself makes, in nats: that of the plain rope with its weights.
    - `verdict`: the kind of the verdict of `verify`; None if it was not run.
    """

    engine: str
    family: str
    block: str
    spelling: str
    outcome: str
    version: str = ""
    name: str = ""
    largest: float | None = None
    first: int | None = None
    acts: float | None = None
    verdict: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return (self.engine, self.family, self.block, self.spelling)


def prompt_ids(tokens: int) -> list[int]:
    """Return the ids of a random prompt of printable characters."""
    return torch.randint(32, 127, (tokens,), generator=torch.Generator().manual_seed(1)).tolist()


@torch.inference_mode()
def reference(model: Any, ids: Sequence[int], new: int = NEW) -> tuple[torch.Tensor, list[int]]:
    """Return transformers' log-probabilities after each token, float64 [tokens, vocabulary], and the generated ids."""
    out = model(torch.tensor([list(ids)]), use_cache=True)
    rows, tokens = [out.logits[0]], list[int]()
    for _ in range(new):
        tokens.append(int(rows[-1][-1].argmax()))
        out = model(torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)
        rows.append(out.logits[0])
    return torch.cat(rows).double().log_softmax(-1), tokens


def differences(rows: dict[int, dict[int, float]], wanted: torch.Tensor) -> dict[int, float]:
    """Return the largest difference in nats by the number of tokens before the answer."""
    return {at: max(abs(value - float(wanted[at - 1, token])) for token, value in row.items())
            for at, row in rows.items()}  # fmt: skip


class Matrix:
    """The cells of one engine, saved after each family."""

    def __init__(self, runner: Runner, saved: dict[tuple[str, ...], Cell], verified: Sequence[str] = VERIFIED) -> None:
        self.runner, self.saved, self.verified = runner, saved, verified
        self.references: dict[tuple[str, str, bool], tuple[torch.Tensor, list[int]]] = {}
        self.named: list[tuple[dict[int, dict[int, float]], str]] = []

    def family(self, family: str, blocks: list[str]) -> Iterator[Cell]:
        """Yield the cells of a family that are not saved."""
        plain: dict[str, Cell] = {}
        with tempfile.TemporaryDirectory() as place:
            models = Models(family, Path(place))
            for case, config in models.cases(blocks):
                if not self.runner.takes(case):
                    continue
                key = (self.runner.name, family, case.block, case.spelling)
                control = f"{case.block.split(',')[0]} {case.spelling}" if "window" in case.block else case.spelling
                if case.block != "plain" and control in plain and plain[control].outcome == "not loaded":
                    continue  # neither will this block be
                cell = self.saved.get(key) or self.cell(case, models, config, plain.get(control))
                if case.block in ("plain", "window"):
                    plain[control] = cell
                if key not in self.saved:
                    yield cell
            self.references.clear()
            self.named.clear()

    def cell(self, case: Case, models: Models, config: Any, plain: Cell | None) -> Cell:
        """Run one checkpoint."""
        model = models.model(config)
        wanted, tokens = self.wanted(case, model)
        about = {"engine": self.runner.name, "family": case.family, "block": case.block, "spelling": case.spelling}
        without = self.without(case, models)
        acts = float((without[: case.prompt] - wanted[: case.prompt]).abs().amax())
        try:
            with self.runner.opened(case, model) as engine:
                rows, generated = self.runner.rows(engine, prompt_ids(case.prompt), NEW)
                about["version"] = self.runner.version
                same = next((n for n, (a, b) in enumerate(zip(generated, tokens, strict=False)) if a != b), NEW)
                rows = {at: row for at, row in rows.items() if at <= case.prompt + same}
                nan = [at for at, row in rows.items() if not all(map(math.isfinite, row.values()))]
                if nan:
                    return Cell(**about, outcome="named", name=f"NaN after {min(nan)} tokens", first=min(nan),
                                acts=round(acts, 4))  # fmt: skip
                apart = differences(rows, wanted)
                largest = max(apart.values())
                first = next((at for at, nats in sorted(apart.items()) if nats > EQUAL), None)
                measured = {"largest": round(largest, 6), "first": first, "acts": round(acts, 4)}
                if largest <= EQUAL and case.family not in self.verified:
                    return Cell(**about, outcome="equal", **measured)
                if name := self.quick_name(case, models, rows):
                    return Cell(**about, outcome="named", name=name, **measured)
                if plain is not None and plain.outcome == "other" and largest <= 2 * (plain.largest or 0.0):
                    return Cell(**about, outcome="other", name="differs with the plain rope, too", **measured)
                verification = verify(case.folder, engine, up_to=case.prompt, max_tokens=case.prompt + NEW,
                                      progress=False)  # fmt: skip
        except Skipped as error:
            return Cell(**{"version": self.runner.version, **about}, outcome="not expressed", name=str(error))
        except RopeError as error:
            reason = str(error.facts.get("error", error.rule))
            return Cell(**{"version": self.runner.version, **about}, outcome="not loaded", name=_short(reason))
        verdict = verification.verdict
        if largest <= EQUAL:
            return Cell(**about, outcome="equal", verdict=verdict.kind, **measured)
        if verdict.kind == "other" and (case.block == "plain" or verdict.applied[0].startswith("no scaling")):
            prompts = {at: row for at, row in rows.items() if at <= case.prompt}
            self.named.append((prompts, f"no scaling, {verdict.applied[0].removeprefix('no scaling, ')}"))
        if verdict.kind == "other":
            return Cell(**about, outcome="named", name=verdict.applied[0], verdict=verdict.kind, **measured)
        if case.block == "plain" or case.block == "window":
            return Cell(**about, outcome="other", name="not the rope", verdict=verdict.kind, **measured)
        return Cell(**about, outcome="unknown", name=_short(verdict.sentence), verdict=verdict.kind, **measured)

    def quick_name(self, case: Case, models: Models, rows: dict[int, dict[int, float]]) -> str | None:
        """Return the name if the answers are those without the scaling, without the window, or without both."""
        prompts = {at: row for at, row in rows.items() if at <= case.prompt}
        others = {"no scaling": "window" if case.block.startswith("window") else "plain"}
        if case.block.startswith("window"):
            others |= {"no window": case.block.partition(", ")[2] or "plain", "no scaling, no window": "plain"}
        elif case.family in self.verified:
            return None
        if case.prompt == PROMPT and models.config(case.block).rope_parameters.get("llama_4_scaling_beta"):
            others["queries not scaled by position"] = f"{case.block}, {UNSCALED}"
        for name, block in others.items():
            if block != case.block and max(differences(prompts, self.without(case, models, block)).values()) <= EQUAL:
                return name
        for answers, name in self.named:  # the same answers are of the same rope, and of no window
            if prompts.keys() <= answers.keys() and _apart(prompts, answers) <= EQUAL:
                where = "no window, " if case.block.startswith("window") else ""
                return where + (name.removeprefix("no scaling, ") if case.block == "window" else name)
        return None

    def wanted(self, case: Case, model: Any) -> tuple[torch.Tensor, list[int]]:
        """Return the reference of a checkpoint; spellings of one block share it."""
        key = (case.family, case.block, case.spelling == SPELLINGS[2])
        if key not in self.references:
            self.references[key] = reference(model, prompt_ids(case.prompt))
        return self.references[key]

    def without(self, case: Case, models: Models, block: str | None = None) -> torch.Tensor:
        """Return the log-probabilities of the model with another block; by default with the plain rope."""
        block = block or ("window" if case.block.startswith("window") else "plain")
        key = (case.family, f"{block} only", False)
        if key not in self.references:
            self.references[key] = reference(models.model(models.config(block)), prompt_ids(PROMPT), 0)
        return self.references[key][0]


def _apart(rows: dict[int, dict[int, float]], others: dict[int, dict[int, float]]) -> float:
    """Return the largest difference in nats of tokens that both have."""
    both = ((at, token) for at, row in rows.items() for token in row.keys() & others[at].keys())
    return max(abs(rows[at][token] - others[at][token]) for at, token in both)


def _short(text: str) -> str:
    """Return the last line of an error, without folders and with at most 160 characters."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    words = [word if not word.startswith("/") else Path(word).name for word in (lines or [""])[0].split()]
    return " ".join(words)[:160]


def read_record() -> dict[str, Any]:
    """Return the record; an empty one if there is none."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {"engines": {}, "cells": []}


def cells_of(record: dict[str, Any]) -> dict[tuple[str, ...], Cell]:
    """Return the cells of a record by key."""
    return {one.key: one for one in (Cell(**row) for row in record["cells"])}


def write_record(record: dict[str, Any], cells: dict[tuple[str, ...], Cell]) -> None:
    """Write the record, with one line for each cell."""
    rows = ",\n".join(
        json.dumps({key: value for key, value in asdict(cells[key]).items() if value not in (None, "")})
        for key in sorted(cells)
    )
    head = json.dumps({**record, "cells": []}, indent=1)
    write_whole(RECORD, head.replace('"cells": []', f'"cells": [\n{rows}\n]') + "\n")


def main() -> None:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--families", default="")
    parser.add_argument("--blocks", default="", help="separated by semicolons")
    parser.add_argument("--small", action="store_true", help="few families and blocks; compared with the record")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    cells = cells_of(read_record())
    families = chosen.families.split(",") if chosen.families else list(SMALL_FAMILIES if chosen.small else FAMILIES)
    blocks = chosen.blocks.split(";") if chosen.blocks else list(SMALL_BLOCKS if chosen.small else BLOCKS)
    changed = []
    for name in chosen.engines.split(","):
        if name == "sglang":  # only tables.py
            continue
        try:
            runner = ENGINES[name](name)
        except Skipped as error:
            print(f"SKIPPED {name}: {error}")
            continue
        with contextlib.closing(runner):
            matrix = Matrix(runner, {}, ()) if chosen.small else Matrix(runner, cells)
            for family in families:
                started = time.monotonic()
                new = list(matrix.family(family, blocks))
                if chosen.small:
                    changed += [one for one in new if _differs(one, cells.get(one.key))]
                    continue
                if new:
                    seconds, record = time.monotonic() - started, read_record()
                    cells |= cells_of(record)  # of other engines that run at the same time
                    cells |= {one.key: one for one in new}
                    about = record["engines"].setdefault(name, {"seconds": 0.0})
                    about |= {"version": runner.version, "date": time.strftime("%Y-%m-%d", time.gmtime()),
                              "seconds": round(about["seconds"] + seconds, 1)}  # fmt: skip
                    record["transformers"], record["torch"] = version("transformers"), version("torch")
                    write_record(record, cells)
                    counts = {kind: sum(one.outcome == kind for one in new) for kind in {o.outcome for o in new}}
                    print(f"{name} {family}: {counts}, {seconds:.0f} s", flush=True)
    for one in changed:
        print(f"differs from the record: {one}")
    if changed:
        sys.exit(1)


def _differs(cell: Cell, saved: Cell | None) -> bool:
    return saved is not None and (cell.outcome, cell.name) != (saved.outcome, saved.name)


if __name__ == "__main__":
    main()
