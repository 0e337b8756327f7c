"""Do the doctor's measures order methods as tasks do that we did not write? docs/evidence/prediction.md has the plan.

    python benchmarks/prediction.py SmolLM2-135M-Instruct.Q4_1.gguf --texts moby_dick.txt bleak_house.txt

Needs lm-eval, wonderwords and nltk (the sentences of RULER); nothing is downloaded. About an hour of one core. Every
reading is kept in --out as soon as it is done: stopped, the same command goes on. Record and figure are written
whenever a round is complete in all cells, and never from parts of one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from records import RESULTS, environment

from ropewalk.atomic_io import write_json
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import METHODS
from ropewalk.methods.method import Reach
from ropewalk.models.prompts import Tokenizer
from ropewalk.readers.adapters import open_reader
from ropewalk.readers.decoder import ASK_TOKENS, DecoderPrefix, DecoderReader
from ropewalk.readers.losses import cropped_losses, losses_of_rows
from ropewalk.readers.reader import CHUNK

Floats = npt.NDArray[np.float64]

TRAINED, TARGETS = 8192, (10240, 12288)
NAMES = ("plain", "pi", "ntk", "yarn", "dca", "crop")
CROP_TOKENS, STRIDE = 8000, 2048  # what crop sees before a question; its step for losses
TASKS = {"niah_multikey_2": ("words", "numbers"), "niah_multikey_3": ("uuids", "uuids")}
SEEDS = (1, 2)
QUESTIONS, VALUE_TOKENS, ROOM = 12, 9, 128  # ROOM: what lm-eval leaves for the answer
SPAN, CUE, SPREAD, MORE_FAR, UNREAD, WINDOW_ROOM = 32, 8, 16, 8, 12, 64
PERMUTATIONS, BOUND, ALPHA = 100_000, 0.59, 0.05
METRICS = {"loss": "loss less crop beyond 8,192 (lower is better)", "far_copies": "copies from more than 8,192 back"}


# The tasks: lm-eval's sentences, with more questions of each context


def context_of(tokenizer: Tokenizer, task: str, target: int, seed: int) -> dict[str, Any]:
    """Return a context's token ids, and its questions with their values and the tokens from each value to the end."""
    os.environ.setdefault("LOCAL_RANK", "1")  # on import lm-eval's rank 0 downloads what only its essays need
    from lm_eval.tasks.ruler import niah_utils, prepare_niah

    keys, values = TASKS[task]

    def sample(sentences: int) -> str:
        random.seed(seed)
        text: str = prepare_niah.generate_input_output(
            sentences,
            prepare_niah.get_haystack(type_haystack="needle"),
            type_haystack="needle",
            num_needle_k=1,
            type_needle_k=keys,
            num_needle_v=1,
            type_needle_v=values,
            template=niah_utils.TEMPLATE,
        )[0]
        return text

    fits, too_many = 1, target
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if len(tokenizer.encode(sample(middle))) <= target - ROOM:
            fits = middle
        else:
            too_many = middle
    text = sample(fits)
    cut = text.rindex("\n") + 1
    ids = tokenizer.encode(text[:cut])
    found = list(re.finditer(r"for (\S+) is: (\S+)\.\n", text[:cut]))
    picked = [found[int((index + 0.5) / QUESTIONS * len(found))] for index in range(QUESTIONS)]
    asked = re.compile(r"for \S+ mentioned")
    prefix = f"The special magic {values[:-1]} for X mentioned in the provided text is"  # as in `generate_samples`
    questions = [asked.sub(f"for {match[1]} mentioned", f"{text[cut:]} {prefix}") for match in picked]
    return {
        "ids": ids,
        "sentences": len(found),
        "questions": [tokenizer.encode(question) for question in questions],
        "values": [tokenizer.encode(f" {match[2]}")[:VALUE_TOKENS] for match in picked],
        "back": [len(ids) - len(tokenizer.encode(text[: match.start(2)])) for match in picked],
    }


def read_task(reader: DecoderReader, tokenizer: Tokenizer, name: str, target: int, task: str, turn: int) -> Any:
    """Return the log-probability of every candidate after every question of one context."""
    context = context_of(tokenizer, task, target, SEEDS[turn])
    ids, model, seq_len = under(reader, name, target, context["ids"])
    found = model.prefix(ids, seq_len=seq_len).ask([(question, context["values"]) for question in context["questions"]])
    return {
        "log_probs": found,
        "back": context["back"],
        "tokens": len(context["ids"]),
        "sentences": context["sentences"],
    }


def right(log_probs: Sequence[Sequence[float]]) -> list[bool]:
    """Return whether each question's own value is the likeliest, each value's mean over the questions taken off.

    >>> right([[-3.0, -1.0], [-5.0, -2.0]]), right([[-3.0, -1.0], [-5.0, -4.0]])
    ([True, True], [False, False])
    """
    table = np.array(log_probs)
    return [bool(best == own) for own, best in enumerate((table - table.mean(0)).argmax(1))]


# The doctor's measures


def under(reader: DecoderReader, name: str, target: int, ids: Sequence[int]) -> tuple[list[int], DecoderReader, int]:
    """Return the tokens that a method reads of these, the model under it, and the length for its frequencies."""
    if METHODS[name].crops:
        return list(ids[-CROP_TOKENS:]), reader, TRAINED
    return list(ids), reader.under(METHODS[name].positions(reader.positions, Reach(TRAINED, target, 0))), target


def span_starts(tokens: int) -> tuple[list[int], list[int]]:
    """Return where spans of a window begin: those spread over all of it, and those more in its far part."""
    far = tokens - TRAINED
    spread = [int((index + 0.5) / SPREAD * tokens) for index in range(SPREAD)]
    return spread, [int((index + 0.25) / MORE_FAR * (far - SPAN)) for index in range(MORE_FAR)]


@torch.inference_mode()
def read_and_keep(reader: DecoderReader, ids: Sequence[int], seq_len: int) -> tuple[DecoderPrefix, Floats]:
    """Return a prefix of these tokens and the losses of the tokens from 1 on, from one reading."""
    model = reader.model
    prefix = DecoderPrefix(model, model.new_cache(seq_len=seq_len, capacity=seq_len + ASK_TOKENS), chunk=CHUNK)
    tokens, losses = torch.tensor(list(ids)), []
    for start in range(0, len(ids) - 1, CHUNK):
        stop = min(start + CHUNK, len(ids) - 1)

        def head(hidden: torch.Tensor, weight: torch.Tensor, start: int = start, stop: int = stop) -> torch.Tensor:
            return losses_of_rows(hidden, weight, targets=tokens[start + 1 : stop + 1], first=0)

        losses.append(model(tokens[None, start:stop], cache=prefix.cache, head_fn=head))
    prefix._tokens = len(ids) - 1
    prefix.read(ids[-1:])
    return prefix, torch.cat(losses).double().numpy()


def read_window(reader: DecoderReader, name: str, target: int, book: Sequence[int], begin: int) -> Any:
    """Return the mean loss beyond the trained length, and each span's log-probability per token after the window."""
    tokens = target - WINDOW_ROOM
    window = list(book[begin : begin + tokens])
    ids, model, seq_len = under(reader, name, target, window)
    prefix, losses = read_and_keep(model, ids, seq_len)
    if METHODS[name].crops:
        losses = cropped_losses(reader, torch.tensor(window), trained_length=TRAINED, stride=STRIDE, first=TRAINED)
    else:
        losses = losses[TRAINED - 1 :]
    spread, more = span_starts(tokens)
    spans = [window[start : start + SPAN] for start in (*spread, *more)] + unread_spans(book, begin)
    after = [found[0] for found in prefix.ask([(span[:CUE], [span[CUE:]]) for span in spans])]
    return {"loss": float(losses.mean()), "after": [total / (SPAN - CUE) for total in after], "tokens": tokens}


def unread_spans(book: Sequence[int], begin: int) -> list[list[int]]:
    """Return spans of the same book that no window holds."""
    first = begin + max(TARGETS) + 2048
    return [list(book[first + 1024 * index :][:SPAN]) for index in range(UNREAD)]


def spans_alone(reader: DecoderReader, target: int, book: Sequence[int], begin: int) -> Any:
    """Return each span's log-probability per token after its own first tokens alone, the same for every method."""
    spread, more = span_starts(target - WINDOW_ROOM)
    spans = [list(book[begin + start :][:SPAN]) for start in (*spread, *more)] + unread_spans(book, begin)
    found = reader.continuation_log_probs([(span[:CUE], span[CUE:]) for span in spans])
    return {"alone": [total / (SPAN - CUE) for total, _ in found]}


def copies(window: Mapping[str, Any], alone: Sequence[float], crops: bool) -> tuple[float, float]:
    """Return the mean gain of the far spans, and of those at all depths; crop gains 0 where it sees nothing."""
    difference = np.array(window["after"]) - np.array(alone)
    gains = difference[:-UNREAD] - difference[-UNREAD:].mean()
    spread, more = span_starts(window["tokens"])
    back = window["tokens"] - np.array([*spread, *more])
    if crops:
        gains = np.where(back <= CROP_TOKENS, gains, 0.0)
    return float(gains[back > TRAINED].mean()), float(gains[: len(spread)].mean())


# The run


def jobs(turn: int) -> list[tuple[str, ...]]:
    """Return the readings of one round: the window of one book, and one context of each task, in every cell."""
    found = [("alone", str(target), str(turn)) for target in TARGETS]
    for target in TARGETS:
        for name in NAMES:
            found += [(kind, str(target), str(turn), name) for kind in ("window", *TASKS)]
    return found


def do_job(
    job: Sequence[str], reader: DecoderReader, tokenizer: Tokenizer, books: Sequence[tuple[list[int], int]]
) -> Any:
    kind, target, turn, *name = job
    book, begin = books[int(turn)]
    if kind == "alone":
        return spans_alone(reader, int(target), book, begin)
    if kind == "window":
        return read_window(reader, name[0], int(target), book, begin)
    return read_task(reader, tokenizer, name[0], int(target), kind, int(turn))


# The analysis, as planned


def cells_of(ledger: Mapping[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Return measures and accuracies of every cell over the first rounds."""
    cells = []
    for target in TARGETS:
        loss: dict[str, Floats] = {
            name: np.array([ledger[f"window/{target}/{turn}/{name}"]["loss"] for turn in range(rounds)])
            for name in NAMES
        }
        for name in NAMES:
            gains = [
                copies(
                    ledger[f"window/{target}/{turn}/{name}"],
                    ledger[f"alone/{target}/{turn}"]["alone"],
                    METHODS[name].crops,
                )
                for turn in range(rounds)
            ]
            answers: dict[str, list[bool]] = {}
            back: list[int] = []
            for task in TASKS:
                read = [ledger[f"{task}/{target}/{turn}/{name}"] for turn in range(rounds)]
                answers[task] = [answer for context in read for answer in right(context["log_probs"])]
                back += [distance for context in read for distance in context["back"]]
            every = [answer for task in TASKS for answer in answers[task]]
            far = [answer for answer, distance in zip(every, back, strict=True) if distance > TRAINED]
            cells.append(
                {
                    "method": name,
                    "target": target,
                    "loss": float((loss[name] - loss["crop"]).mean()),
                    "far_copies": 0.0 if METHODS[name].crops else float(np.mean([gain for gain, _ in gains])),
                    "copies": float(np.mean([gain for _, gain in gains])),
                    "accuracy": float(np.mean(every)),
                    "answers": len(every),
                    "far_accuracy": float(np.mean(far)),
                    "far_answers": len(far),
                    **{task: float(np.mean(answers[task])) for task in TASKS},
                }
            )
    return cells


def ranks(values: Sequence[float] | Floats) -> Floats:
    """Return ranks from 0, equal values with their mean rank.

    >>> ranks([3.0, 1.0, 3.0]).tolist()
    [1.5, 0.0, 1.5]
    """
    array = np.asarray(values, dtype=np.float64)
    return np.array([(array < value).sum() + ((array == value).sum() - 1) / 2 for value in array])


def spearman(measure: Sequence[float], accuracy: Sequence[float]) -> float:
    """Return Spearman's correlation; 0 where one of both is constant.

    >>> round(spearman([1.0, 2.0, 3.0], [1.0, 9.0, 4.0]), 3)
    0.5
    """
    one, other = ranks(measure), ranks(accuracy)
    return 0.0 if one.std() == 0 or other.std() == 0 else float(np.corrcoef(one, other)[0, 1])


def permutation_p(measure: Sequence[float], accuracy: Sequence[float], groups: Sequence[int]) -> float:
    """Return the share of permutations of accuracies within groups that correlate at least as highly, one-sided."""
    draws, group = np.random.default_rng(0), np.array(groups)
    one, other = ranks(measure), ranks(accuracy)
    one, other = one - one.mean(), other - other.mean()
    total = np.zeros(PERMUTATIONS)
    for value in np.unique(group):
        rows = draws.permuted(np.tile(other[group == value], (PERMUTATIONS, 1)), axis=1)
        total += rows @ one[group == value]
    return float((1 + (total >= one @ other - 1e-9).sum()) / (1 + PERMUTATIONS))


def analysis(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the two planned tests, corrected by Holm, and the planned descriptions."""
    sign = {"loss": -1.0, "far_copies": 1.0, "copies": 1.0}

    def both(metric: str, outcome: str, some: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
        return [sign[metric] * cell[metric] for cell in some], [cell[outcome] for cell in some]

    groups = [cell["target"] for cell in cells]
    primary = {}
    for metric in METRICS:
        measure, accuracy = both(metric, "accuracy", cells)
        primary[metric] = {"spearman": spearman(measure, accuracy), "p": permutation_p(measure, accuracy, groups)}
    low, high = sorted(primary, key=lambda metric: primary[metric]["p"])
    primary[low]["holm"] = min(1.0, 2 * primary[low]["p"])
    primary[high]["holm"] = min(1.0, max(primary[low]["holm"], primary[high]["p"]))
    predicts = [name for name, found in primary.items() if found["spearman"] > BOUND and found["holm"] <= ALPHA]
    without = [cell for cell in cells if not METHODS[cell["method"]].crops]
    described = {
        f"{metric}: {label}": spearman(*both(metric, outcome, some))
        for metric in sign
        for label, outcome, some in (
            ("all answers", "accuracy", cells),
            ("far answers", "far_accuracy", cells),
            *((task, task, cells) for task in TASKS),
            ("all answers, without crop", "accuracy", without),
        )
        if (metric, label) not in {("loss", "all answers"), ("far_copies", "all answers")}
    }
    best = max(predicts, key=lambda name: primary[name]["spearman"], default=None)
    return {"primary": primary, "predicts": predicts, "first_column": best, "described": described}


def draw(record: Mapping[str, Any], out: Path) -> None:
    """Draw each measure against the accuracy, one point to a cell."""
    from ropewalk.figures.style import caption, look_of, style, write_figure

    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10.0, 4.6))
        panels = figure.subplots(1, 2, sharey=True)
        labels = (
            "loss less crop beyond 8,192 tokens (nats, reversed)",
            "copies from more than 8,192 tokens back (nats)",
        )
        for axes, metric, label in zip(panels, METRICS, labels, strict=True):
            for cell in record["cells"]:
                look = look_of(cell["method"])
                hollow = cell["target"] == TARGETS[0]
                axes.plot(
                    cell[metric],
                    cell["accuracy"],
                    marker="o" if hollow else "s",
                    linestyle="",
                    markersize=8,
                    markerfacecolor="white" if hollow else look.color,
                    markeredgecolor=look.color,
                    markeredgewidth=1.8,
                    clip_on=False,
                    label=f"{cell['method']}, {cell['target']:,}",
                )
            found = record["analysis"]["primary"][metric]
            axes.set_title(f"Spearman {found['spearman']:+.2f}, corrected p {found['holm']:.2g}", fontsize=10)
            axes.axhline(1 / QUESTIONS, color="#888888", linewidth=1, linestyle=":")
            axes.set_xlabel(label)
        panels[0].invert_xaxis()
        panels[0].set_ylim(0, 1)
        panels[0].set_ylabel(f"right of {record['cells'][0]['answers']} answers (chance 1/{QUESTIONS}, dotted)")
        panels[1].legend(fontsize=8, ncols=1, loc="center left", bbox_to_anchor=(1.0, 0.5))
        done = "" if record["complete"] else f"; incomplete: round 1 of {len(SEEDS)}"
        caption(figure, f"{record['model']}: the doctor's measures and two RULER tasks{done}")
        write_figure(figure, [out.with_suffix(".png")])


def write(ledger: Ledger, rounds: int, model: str, out: Path) -> dict[str, Any]:
    cells = cells_of(ledger.results, rounds)
    used = [job for turn in range(rounds) for job in jobs(turn)]
    record = {
        "model": model,
        "complete": rounds == len(SEEDS),
        "rounds": rounds,
        "environment": environment(),
        "analysis": analysis(cells),
        "cells": cells,
        "process_seconds": sum(ledger["/".join(job)]["process_seconds"] for job in used),
        "readings": {"/".join(job): ledger["/".join(job)] for job in used},
    }
    write_json(out.with_suffix(".json"), record)
    draw(record, out)
    return record


def main(arguments: Sequence[str] | None = None, *, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path, nargs=2, required=True, help="two novels")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/state/prediction"), help="folder of the readings")
    parser.add_argument("--record", type=Path, default=RESULTS / "prediction.json")
    given = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    reader = open_reader(given.model, name=given.model.stem, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert isinstance(reader, DecoderReader)
    assert reader.tokenizer is not None
    assert reader.trained_length == TRAINED
    tokenizer = reader.tokenizer
    books = []
    for path in given.texts:
        ids = tokenizer.encode(path.read_text(encoding="utf-8"))
        books.append((ids, len(ids) // 3))
    texts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in given.texts]
    settings = (
        TARGETS,
        CROP_TOKENS,
        STRIDE,
        TASKS,
        SEEDS,
        QUESTIONS,
        VALUE_TOKENS,
        ROOM,
        SPAN,
        CUE,
        SPREAD,
        MORE_FAR,
        UNREAD,
    )
    ledger = Ledger(given.out, kind="prediction", key=fingerprint(reader.digest(), texts, settings, WINDOW_ROOM))
    say(f"{ledger.resume() if (given.out / 'ledger.json').exists() else ledger.begin()} readings are there")
    for turn in range(len(SEEDS)):
        for job in jobs(turn):
            name = "/".join(job)
            if name in ledger:
                continue
            began, cpu = time.perf_counter(), time.process_time()
            result = do_job(job, reader, tokenizer, books)
            ledger.add(
                name, {**result, "seconds": time.perf_counter() - began, "process_seconds": time.process_time() - cpu}
            )
            say(f"{time.strftime('%H:%M:%S')} {name} {time.perf_counter() - began:.0f} s")
        record = write(ledger, turn + 1, reader.name, given.record.with_suffix(""))
        for cell in record["cells"]:
            say(
                "{method:6} {target:6,} loss {loss:+.3f} far copies {far_copies:+.2f} accuracy {accuracy:.2f}".format(
                    **cell
                )
            )
        say(f"round {turn + 1}: {record['analysis']['primary']}")


if __name__ == "__main__":
    main()
