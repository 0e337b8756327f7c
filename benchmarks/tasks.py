"""Does the doctor's measure predict tasks? The plan of the experiment, and the experiment.

    python benchmarks/tasks.py MODEL.gguf --texts FOLDER [--dtype bfloat16] [--again]

The plan, committed before anything was measured:

- Models: SmolLM2-135M (trained with 8,192 tokens, windows of 12,288) and `tiny` (256, 384). stories260K finds 4 of 16
  facts within its trained length, which is chance, and the package index has no other model of this kind.
- Methods: plain, pi, ntk, dynamic, yarn, llama3, abf, rerope, self-extend, dca.
- Predictors, from texts that the tasks do not use: the share of far facts found, and crop's loss less the method's, in
  windows of `rw.doctor`: two for SmolLM2 (Bleak House, Middlemarch), 16 for `tiny` (Bleak House). A method that the
  doctor gives up has found one in four, and its loss at that point counts.
- Tasks, each with all evidence farther back than the trained length, and asked as a choice between the four values of
  a group, so that the expected margin of a blind model is 0:
  `keys`: RULER's multi-key retrieval, in a window of nothing but keys and numbers (Hsieh et al. 2024, arXiv:2404.06654,
  NIAH multikey-2; `tiny`: names and words); `variables`: RULER's variable tracking over two hops, the value of a
  variable that was set to another variable; `paraphrase`: the question names the key by a different word, as in NoLiMa
  (Modarressi et al. 2025, arXiv:2502.05167). `variables` and `paraphrase` stand in Moby-Dick, and `tiny` has `keys`
  only. 96 questions of each, in two windows (SmolLM2) or as many as needed (`tiny`).
- A task counts for a model if plain, in windows of the trained length, finds more than chance (p < 0.01, exact).
- Outcome: the mean margin, the log-probability of the right value less the mean of the other three in nats; the share
  of right answers is the second.
- Analysis: Spearman's correlation over the ten methods, for each model and task, averaged over all that count. The test
  is one-sided, by 20,000 permutations of the predictor's methods, the same for all tasks of a model, and Holm's for the
  two predictors. The interval is a bootstrap over the methods of each model, 90 %. A predictor succeeds with a mean of
  at least 0.5, a lower end above 0.2 and p < 0.05. With one model, the power for a true correlation of 0.7 is 46 %.

Changed when it ran, before any result was seen: at a given length `dynamic` has the frequencies of `ntk`, so nine
methods remain; windows of `tiny` have 12 questions instead of 16, which did not fit.

Each reading is saved when it is done; the same command continues, and --again starts over. About 70 minutes on one
core with AVX512-BF16 in bfloat16.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from league import far_found, read
from records import environment, excerpt, parsed, parser_of
from scipy import stats

from ropewalk.atomic_io import write_json
from ropewalk.checkpoints.opening import open_reader
from ropewalk.checkpoints.reader import Reader
from ropewalk.diagnosis.evidence import choice
from ropewalk.diagnosis.facts import GROUP, NUMBERS, WORDS, Encode, Found, Kind, ids_after
from ropewalk.diagnosis.schedule import Design, Schedule, make_schedule

METHODS = ("plain", "pi", "ntk", "yarn", "llama3", "abf", "rerope", "self-extend", "dca")
QUESTIONS, PERMUTATIONS, BOOTSTRAPS = 96, 20_000, 4_000
FIRST, TRIES = 8, 30  # tokens before the first evidence; sentences that are tried for a place
_PAIRS = """
puppy dog, kitten cat, automobile car, physician doctor, infant baby, bicycle bike, rifle gun, cottage house, lamb
sheep, foal horse, calf cow, dagger knife, sofa couch, guitar instrument, emerald jewel, dollar money, rose flower, oak
tree, whiskey drink, sonnet poem, novel book, trousers clothes, spectacles glasses, aspirin medicine, salmon fish,
sparrow bird, spider insect, cobra snake, yacht boat, helicopter aircraft, hammer tool, banana fruit, carrot vegetable,
cigar tobacco, telephone phone, photograph picture, rug carpet, stove oven, purse bag, mansion palace, clarinet music,
wristwatch clock, blanket bed, pistol weapon, diamond ring, cheese food, violin orchestra, umbrella rain
"""
_COLORS = """
amber azure black blue brown coral crimson golden gray green indigo ivory lime maroon navy olive orange pink plum
purple red rose ruby scarlet silver teal turquoise violet white yellow bronze copper
"""
_THINGS = """
anchor apple basket bell bottle box bridge button candle chair clock coat coin cup door drum egg flag flute gate
glove hammer hat horse kettle key knife lamp letter mirror needle pencil pillow ring rope saddle ship shoe spoon
star stone sword table ticket tower wagon wheel window
"""
_NAMES = """
Adam Agnes Albert Alice Amy Andrew Anna Arthur Barbara Ben Bill Bob Carl Carol Charles Clara Daniel David Diana
Donald Dora Edgar Edith Edward Ellen Emily Emma Eric Eva Felix Florence Frank Fred George Gloria Grace Hannah Harold
Harry Helen Henry Hugo Ian Irene Isaac Jack James Jane Jason Joan Joe John Joseph Julia Karen Kate Kevin Laura Lee
Leonard Lily Linda Louis Lucy Luke Margaret Maria Mark Martin Mary Matthew Max Michael Mike Nancy Nick Nora Oliver
Oscar Patrick Paul Peter Philip Rachel Ralph Richard Robert Roger Rose Ruth Sally Sam Sarah Simon Sophie Stella
Steve Susan Ted Thomas Tim Tom Victor Walter William
"""
PAIRS = [tuple(pair.split()) for pair in " ".join(_PAIRS.split()).split(", ")]
COLORS, THINGS, NAMES = _COLORS.split(), _THINGS.split(), _NAMES.split()


@dataclass(frozen=True)
class Item:
    """One question: the sentences of its evidence, in order, the question's text, and its value."""

    evidence: tuple[str, ...]
    question: str
    value: str


@dataclass(frozen=True)
class Size:
    """The questions of a window, and tokens: the most of a question with its answer, and the slack of a place."""

    questions: int
    longest: int
    slack: int


Make = Callable[[np.random.Generator, Sequence[str], int], list[Item]]


def keys(random: np.random.Generator, values: Sequence[str], count: int) -> list[Item]:
    """Return things of a colour, with numbers; more of them than are asked for. With words for values: persons."""
    if values[0].isdigit():
        things = [f"The number of the {color} {thing} is" for color in COLORS for thing in THINGS]
    else:
        things = list(NAMES)
    labels = [things[at] for at in random.permutation(len(things))]
    further = random.permutation(values[count:])
    drawn = [*values[:count], *(further[at % len(further)] for at in range(len(labels) - count))]
    return [Item((f" {label} {value}.",), f" {label}", value) for label, value in zip(labels, drawn, strict=True)]


def variables(random: np.random.Generator, values: Sequence[str], count: int) -> list[Item]:
    """Return persons whose number is that of another person."""
    names = random.permutation(NAMES)[: 2 * count]
    return [
        Item((f" The number of {one} is {value}.", f" The number of {two} is that of {one}."),
             f" The number of {two} is", value)
        for one, two, value in zip(names[::2], names[1::2], values, strict=False)
    ]  # fmt: skip


def paraphrase(random: np.random.Generator, names: Sequence[str], count: int) -> list[Item]:
    """Return owners of things, which the question names by a related word."""
    chosen = [PAIRS[at] for at in random.permutation(len(PAIRS))[:count]]
    return [Item((f" The {told} belongs to {name}.",), f" The owner of the {asked} is", name)
            for (told, asked), name in zip(chosen, names, strict=False)]  # fmt: skip


TASKS: dict[str, Make] = {"keys": keys, "variables": variables, "paraphrase": paraphrase}


@dataclass(frozen=True)
class TaskWindow:
    """Token ids up to the questions, and the questions with their choices; question i of a group has choice i."""

    ids: list[int]
    questions: list[tuple[list[int], list[list[int]]]]


def window_of(
    task: str, encode: Encode, kind: Kind, fillers: Iterator[str], *, reach: int, length: int, size: Size, seed: int
) -> TaskWindow:
    """Return a window of about `length` tokens with its evidence in the first `reach`, between whole sentences."""
    random = np.random.default_rng([seed, *task.encode()])
    of_size: dict[int, list[str]] = {}
    for value in NAMES if task == "paraphrase" else kind.values:
        of_size.setdefault(len(ids_after(encode, f" {value}")), []).append(value)
    items = TASKS[task](random, random.permutation(max(of_size.values(), key=len)).tolist(), size.questions)
    asked, further = items[: size.questions], items[size.questions :]
    others = chain((text for item in further for text in item.evidence), fillers)
    pieces = [ids_after(encode, text) for item in asked for text in item.evidence]
    starts = np.linspace(FIRST, reach - max(map(len, pieces)) - size.slack, len(pieces)).astype(int).tolist()
    ids: list[int] = []

    def fill(up_to: int) -> None:
        for _ in range(TRIES):
            while len(ids) < up_to and len(ids) + len(piece := ids_after(encode, next(others))) <= up_to + size.slack:
                ids.extend(piece)

    for start, piece in zip(starts, pieces, strict=True):
        fill(start)
        ids += piece
    end = len(ids)
    fill(length - size.slack)
    assert end <= reach, (task, end, reach)
    assert length - 2 * size.slack <= len(ids) <= length, (task, len(ids), length)
    questions = []
    for first in range(0, len(asked), GROUP):
        choices = [ids_after(encode, f" {item.value}") for item in asked[first : first + GROUP]]
        questions += [(ids_after(encode, item.question), choices) for item in asked[first : first + GROUP]]
    return TaskWindow(ids, questions)


def sentences(text: str, seed: int) -> Iterator[str]:
    """Return the sentences of a text from a random place on."""
    parts = [" " + " ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+", text)]
    start = int(np.random.default_rng(seed).integers(0, len(parts) // 2))
    return iter(parts[start:])


def main() -> None:
    """Measure what the record lacks, and analyse it."""
    given, record = parsed(parser_of(__doc__), "tasks.json")
    moby, record["text"] = excerpt(given.texts, "moby_dick", 0)

    def keep(part: str, key: str, value: Callable[[], Any]) -> None:
        if key not in record.setdefault(part, {}):
            record[part][key] = value()
            write_json(given.record, {"generator": "ropewalk", **record, "environment": environment()})
            print(part, key, flush=True)

    methods = list(METHODS)
    for novel in ("bleak_house", "middlemarch"):
        part = excerpt(given.texts, novel, 600_000, 75_000)
        keep("smollm2 predictors", novel,
             partial(read, given.model, part, methods, target=12_288, dtype=given.dtype))  # fmt: skip
    for number in range(16):
        part = excerpt(given.texts, "bleak_house", 1_000 * (1500 + 4 * number), 4_000)
        keep("tiny predictors", str(number), partial(read, "tiny", part, methods, target=384))
    dtype = torch.bfloat16 if given.dtype == "bfloat16" else torch.float32
    smollm2 = Subject(given.model, dtype, 12_288, NUMBERS, Size(48, 24, 16))
    for name, subject in (("smollm2", smollm2), ("tiny", Subject("tiny", torch.float32, 384, WORDS, Size(12, 8, 8)))):
        for task in TASKS if subject.kind is NUMBERS else ("keys",):
            for number in range(math.ceil(QUESTIONS / subject.size.questions)):
                for method in ("control", *methods):
                    keep(f"{name} {task}", f"{method}/{number}",
                         partial(subject.answers, task, number, method, moby))  # fmt: skip
    record["result"] = analysed(record)
    write_json(given.record, {"generator": "ropewalk", **record, "environment": environment()})
    print(json.dumps(record["result"], indent=1))


@dataclass(frozen=True)
class Subject:
    """A model with the kind and the size of its tasks."""

    source: str
    dtype: torch.dtype
    target: int
    kind: Kind
    size: Size

    @cached_property
    def reader(self) -> Reader:
        """Return the reader of the model."""
        return open_reader(self.source, name=self.source, dtype=self.dtype, device=torch.device("cpu"))

    @cached_property
    def schedule(self) -> Schedule:
        """Return the positions of all methods."""
        trained = self.reader.trained_length
        return make_schedule(self.reader, Design(trained_length=trained, target=self.target, windows=1), METHODS)

    def answers(self, task: str, number: int, method: str, text: str) -> list[list[float]]:
        """Return the log-probabilities of the choices in a window; "control" is plain in one of the trained length."""
        trained, size, tokenizer = self.schedule.design.trained_length, self.size, self.reader.tokenizer
        whole = trained if method == "control" else self.target
        length = whole - size.longest
        window = window_of(
            task, tokenizer.encode, self.kind, sentences(text, number), length=length, size=size, seed=number,
            reach=length - (0 if method == "control" else trained + 2 * size.slack),
        )  # fmt: skip
        found: list[list[float]] = []
        variant = self.reader.under(self.schedule.positions["plain" if method == "control" else method])
        tokens = len(window.ids)
        ids = torch.tensor([*window.ids, window.ids[0]])  # the last one is not read before the questions
        asking = {tokens: lambda prefix: found.extend(prefix.ask(window.questions))}
        variant.window_losses(ids, first=tokens, seq_len=whole, asking=asking)
        return [[round(value, 4) for value in row] for row in found]


def task_outcome(part: Mapping[str, Sequence[Sequence[float]]], method: str) -> dict[str, Any]:
    """Return the margin, the right answers and the exact p of a method in a task."""
    rows = [row for key, of in part.items() if key.startswith(f"{method}/") for row in of]
    right = [place % GROUP for place in range(len(rows))]
    margins = [row[at] - (sum(row) - row[at]) / (GROUP - 1) for row, at in zip(rows, right, strict=True)]
    groups = [[choice(row) for row in rows[first : first + GROUP]] for first in range(0, len(rows), GROUP)]
    found = Found.of(groups, confidence=0.95)
    return {"margin": float(np.mean(margins)), "found": found.found, "asked": found.asked, "p": found.p}


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    a, b = (ranks - ranks.mean() for ranks in (stats.rankdata(one), stats.rankdata(other)))
    size = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size else 0.0


def analysed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcomes, and of each predictor its correlations, p and interval, by the plan."""
    outcomes: dict[str, dict[str, Any]] = {}
    predictors: dict[str, dict[str, np.ndarray]] = {}
    for model in ("smollm2", "tiny"):
        runs = record[f"{model} predictors"]
        shares, losses = [], []
        same = next(iter(runs.values()))["same_as"]
        for method in (same.get(method, method) for method in METHODS):
            given_up = any(run["rows"][method]["given_up_at"] for run in runs.values())
            found, asked = far_found(runs, method)
            shares.append(1 / GROUP if given_up else found / asked)
            losses.append(-float(np.mean([run["rows"][method]["loss_less_crops"] for run in runs.values()])))
        predictors[model] = {"far facts": np.array(shares), "loss": np.array(losses)}
        for task in TASKS:
            if f"{model} {task}" in record:
                part = record[f"{model} {task}"]
                outcomes[f"{model} {task}"] = {name: task_outcome(part, name) for name in ("control", *METHODS)}
    counts = {name: of for name, of in outcomes.items() if of["control"]["p"] < 0.01}
    result: dict[str, Any] = {"outcomes": outcomes, "counted": list(counts), "predictors": {}}
    for measure in ("margin", "found"):
        found = {name: np.array([of[method][measure] for method in METHODS]) for name, of in counts.items()}
        rows = {}
        for predictor in ("far facts", "loss"):
            values = {model: of[predictor] for model, of in predictors.items()}
            each = {name: _spearman(values[name.split()[0]], of) for name, of in found.items()}
            rows[predictor] = {"each": each, "mean": float(np.mean(list(each.values())))} if each else {}
            if each:
                rows[predictor] |= _tested(values, found, rows[predictor]["mean"])
        ordered = sorted((one for one in rows.values() if one), key=lambda one: one["p"])
        for place, one in enumerate(ordered):
            one["holm"] = min(1.0, max(one["p"] * (len(ordered) - place), *(each.get("holm", 0.0) for each in ordered)))
            one["succeeds"] = one["mean"] >= 0.5 and one["interval"][0] > 0.2 and one["holm"] < 0.05
        result["predictors"][measure] = rows
    result["values"] = {
        model: {name: dict(zip(METHODS, of.tolist(), strict=True)) for name, of in predictor.items()}
        for model, predictor in predictors.items()
    }
    return result


def _tested(values: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray], mean: float) -> dict[str, Any]:
    """Return p by permutation, and the bootstrap's interval."""
    random, count = np.random.default_rng(0), len(METHODS)

    def mean_of(rows: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray]) -> float:
        pairs = [(name.split()[0], of) for name, of in found.items()]
        return float(np.mean([_spearman(values[model][rows[model]], of[columns[model]]) for model, of in pairs]))

    same, by_chance, drawn = dict.fromkeys(values, np.arange(count)), list[float](), list[float]()
    for _ in range(PERMUTATIONS):
        by_chance.append(mean_of({model: random.permutation(count) for model in values}, same))
    for _ in range(BOOTSTRAPS):
        chosen = {model: random.integers(0, count, count) for model in values}
        drawn.append(mean_of(chosen, chosen))
    p = (1 + sum(one >= mean - 1e-12 for one in by_chance)) / (1 + PERMUTATIONS)
    return {"p": p, "interval": np.quantile(drawn, (0.05, 0.95)).tolist()}


if __name__ == "__main__":
    main()
