"""`ropewalk extend --search`: the search on one text, what it is worth on another, its record and its figure."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from ropewalk.context.retrieval.example import Example
    from ropewalk.extend.answers import HeldOutAnswers
    from ropewalk.extend.held_out import HeldOut
    from ropewalk.extend.search import SearchResult
    from ropewalk.models.decoder import Decoder

RECORD, FIGURE = "search.json", "search.png"
METHOD = "searched"
WINDOWS = 4  # of the search text: every evaluation reads them all
EXAMPLES = 10  # where answers are searched on: each gives a few tokens alone
EXAMPLES_APART = 40  # held out: read once for each analytic method, not for each evaluation


class Searched:
    """A finished search: what it found, and the files that say so."""

    def __init__(self, result: SearchResult, record: dict[str, Any]) -> None:
        self.result, self.record = result, record

    def files(self) -> dict[str, str | bytes]:
        """search.json, and search.png where matplotlib is installed."""
        files: dict[str, str | bytes] = {RECORD: json.dumps(self.record, indent=1, allow_nan=False) + "\n"}
        if find_spec("matplotlib") is not None:
            files[FIGURE] = self.figure("png")
        return files

    def figure(self, kind: str) -> bytes:
        """The divisors of each pair, and the loss by evaluation."""
        from ropewalk.figures.search import search_figure
        from ropewalk.figures.style import render

        said, space = self.record, self.result.space
        count, windows, seed = said["evaluations"], said["windows"], said["seed"]
        rows = [*said["starts"], {**said["best"], "name": "searched"}]
        figure = search_figure(
            {row["name"]: row["divisors"] for row in rows},
            {row["name"]: row["attention_factor"] for row in rows},
            said["losses"],
            {row["name"]: row["loss"] for row in said["starts"]},
            factor=space.target / space.trained_length,
            title=f"{said['model']}: factors searched from {space.trained_length:,} to {space.target:,} tokens",
            note=f"{count} evaluations on {windows} {_read(said['answers'])} of {said['text']}; seed {seed}.",
            axis=f"loss {'of the answers' if said['answers'] else 'beyond the trained length'}, nats per token",
        )
        drawn: bytes = render(figure, kind)
        return drawn


def run_search(
    console: Console,
    model: Decoder,
    *,
    name: str,
    texts: list[Path],
    validation: Path | None,
    trained_length: int,
    target: int,
    search_windows: int | None,
    windows: int | None,
    start_char: int,
    budget: int | None,
    minutes: float | None,
    monotone: bool,
    unscaled_tokens: int,
    answers: str | None,
    seed: int,
    restart: bool,
    environment: Mapping[str, Any],
) -> Searched:
    """Search, measure on held-out text, and tell. Ctrl-C ends with status 130; the same command goes on.

    With `answers`, names of retrieval tasks with commas, the search is on their answers, and held against others of the
    held-out text as well.

    Raises `RopeError` for texts that are missing or too short, and for a held-out text that shares passages with them.
    """
    import torch

    from ropewalk.context.sources import read_text
    from ropewalk.extend.answers import answer_objective, digest, held_out_answers
    from ropewalk.extend.held_out import held_out, search_record
    from ropewalk.extend.overlap import check_unseen
    from ropewalk.extend.search import BUDGET, search

    if model.tokenizer is None:
        raise RopeError(
            "extend: the checkpoint has no tokenizer, so no text can be searched on.",
            facts={"model": name},
            cure="Put its tokenizer.json beside the weights.",
        )
    read = [read_text(path) for path in texts]
    other, unseen = read_text(validation)
    label = " and ".join(Path(one).stem for one, _ in read)
    count = search_windows or (EXAMPLES if answers else max(WINDOWS, len(read)))
    lengths = {"trained_length": trained_length, "target": target, "seed": seed}
    apart = _windows(model, [(other, unseen)], windows, start_char=start_char, **lengths)
    unseen = unseen[start_char:]
    seen = None if answers else _windows(model, read, count, **lengths)
    tasks = [word.strip() for word in (answers or "").split(",") if word.strip()]
    examples = _examples(model, tasks, read, count, target, seed) if answers else []
    others = _examples(model, tasks, [(other, unseen)], EXAMPLES_APART, target, seed + 1) if answers else []
    encode = model.tokenizer.encode
    check_unseen(
        torch.tensor([encode(unseen)]) if answers else apart,  # examples are made of all of it
        (encode(contents) for _, contents in read),
        work="search",
        names=[str(path) for path in texts],
        validation=str(validation or other),
    )
    folder = _folder()
    limit = BUDGET if budget is None and minutes is None else budget
    what = f"loss of the answers of {', '.join(tasks)}" if answers else f"loss beyond {trained_length:,} tokens"
    apart_too = f"{len(others)} {_read(answers)} and " if answers else ""
    console.print(
        f"Search: {what}; {_read(answers)} of {target:,} tokens: {count} of {label}, held out {apart_too}"
        f"{len(apart)} windows of {Path(other).stem}.",
        markup=False,
        soft_wrap=True,
    )
    kept = [0]
    try:
        with _progress(limit, target * count) as (begin, advance):

            def told(number: int, point: str, best: Any) -> None:
                kept[0] = number - 1
                begin(number, point, best)

            result = search(
                model,
                seen,
                trained_length=trained_length,
                target=target,
                budget=budget,
                seconds=None if minutes is None else 60 * minutes,
                seed=seed,
                monotone=monotone,
                unscaled_tokens=unscaled_tokens,
                objective=answer_objective(examples, advance=advance) if answers else None,
                objective_name=f"answers {digest(examples)}" if answers else "text",
                state_path=folder,
                resume=not restart,
                begin=told,
                advance=advance,
            )
        with _progress(len(apart) * (len(result.space.starts) + 1), target, "held out") as (begin, advance):
            found = held_out(
                model,
                result,
                apart,
                text=Path(other).stem,
                state_path=folder,
                resume=not restart,
                begin=begin,
                advance=advance,
            )
        found_answers = None
        if answers:
            with _progress(len(others) * (len(result.space.starts) + 1), target, "answers") as (begin, advance):
                found_answers = held_out_answers(
                    model,
                    result,
                    others,
                    text=Path(other).stem,
                    folder=folder,
                    resume=not restart,
                    begin=begin,
                    advance=advance,
                )
    except KeyboardInterrupt:
        sys.stderr.write(f"\nextend: stopped; {kept[0]} evaluations are kept. The same command goes on from there.\n")
        raise typer.Exit(130) from None
    record = search_record(
        result,
        found,
        model=Path(name).name,
        text=label,
        further={
            "answers": tasks or None,
            "held_out_answers": None if found_answers is None else found_answers.to_json(),
            "seed": seed,
            "budget": limit,
            "minutes": minutes,
            "environment": dict(environment),
        },
    )
    _tell(console, result, found, found_answers, record)
    return Searched(result, record)


def write_record(searched: Searched, path: Path) -> None:
    """The record as `path`, and its figure beside it as .png and .svg where matplotlib is installed."""
    from ropewalk.context.output import write_whole

    write_whole(path, json.dumps(searched.record, indent=1, allow_nan=False) + "\n")
    if find_spec("matplotlib") is not None:
        for kind in ("png", "svg"):
            write_whole(path.with_suffix(f".{kind}"), searched.figure(kind))


def _windows(
    model: Decoder,
    texts: list[tuple[str, str]],
    windows: int | None,
    *,
    trained_length: int,
    target: int,
    seed: int,
    start_char: int = 0,
) -> Tensor:
    """int64 [windows, target]: drawn in each text from `start_char` on, as the doctor takes them; shared out."""
    import torch

    from ropewalk.context.doctor import take_windows
    from ropewalk.context.protocol import Protocol

    assert model.tokenizer is not None
    parts = []
    for index, (name, contents) in enumerate(texts):
        tokens = model.tokenizer.encode(contents[max(start_char, 0) :])
        share = None if windows is None else windows // len(texts) + (index < windows % len(texts))
        if share == 0:
            raise RopeError(
                "extend: there are more texts than windows.",
                facts={"texts": len(texts), "windows": windows},
                cure="Pass --search-windows, at least one for each text.",
            )
        protocol = Protocol.choose(
            trained_length=trained_length,
            text=name,
            target=target,
            windows=share,
            start_char=start_char,
            seed=seed,
            tokens=len(tokens),
        )
        parts.append(take_windows(tokens, protocol))
    return torch.cat(parts)


def _examples(
    model: Decoder, tasks: list[str], texts: list[tuple[str, str]], count: int, target: int, seed: int
) -> list[Example]:
    """Examples of these tasks, their words and passages from the texts."""
    from ropewalk.extend.answers import answer_examples

    assert model.tokenizer is not None
    text = "\n".join(contents for _, contents in texts)
    return answer_examples(model.tokenizer, tasks, text, length=target, count=count, seed=seed)


def _read(answers: object) -> str:
    """What an evaluation reads."""
    return "examples" if answers else "windows"


def _folder() -> Path:
    """Where searches keep their evaluations: the user's cache."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk" / "search"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _tell(
    console: Console,
    result: SearchResult,
    found: HeldOut,
    found_answers: HeldOutAnswers | None,
    record: Mapping[str, Any],
) -> None:
    """The table of losses, and the answer in words."""
    from rich.table import Table

    table = Table(title="Loss, nats per token", title_justify="left")
    asked = {} if found_answers is None else {row["name"]: row["loss"] for row in record["held_out_answers"]["rows"]}
    first = ("search, answers", "held out, answers") if asked else ("search text, beyond",)
    for head in ("", *first, "held out, beyond", "held out, within"):
        table.add_column(head, justify="left" if not head else "right")
    losses = {"searched": result.best.loss, **{row["name"]: row["loss"] for row in record["starts"]}}
    for row in record["held_out"]["rows"]:
        known = losses[row["name"]]
        table.add_row(
            row["name"],
            "not a number" if known is None else f"{known:.4f}",
            *([f"{asked[row['name']]:.4f}"] if asked else []),
            f"{row['beyond']:.4f}",
            f"{row['within']:.4f}",
        )
    console.print(table)
    for method, why in result.space.left_out:
        console.print(f"Left out: {method}: {why}", markup=False)
    console.print(
        f"{len(result.evaluations)} evaluations; on the search {_read(asked) if asked else 'text'} "
        f"{result.best.loss:.4f}, against "
        f"{result.best_start.loss:.4f} of {result.best_start.factors.name}.",
        markup=False,
    )
    for line in (*(found_answers.sentences() if found_answers else ()), *found.sentences()):
        console.print(line, markup=False, soft_wrap=True)


@contextmanager
def _progress(total: int | None, tokens: int, what: str = "") -> Iterator[tuple[Any, Any]]:
    """Callbacks that show the evaluation, the best loss so far and the time: a bar, or a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None if total is None else total * tokens)

        def begin(number: int, name: str, best: Any) -> None:
            step = f"{number}/{total} {what or ''}".strip() if total else str(number)
            said = f"{step} {name}" + ("" if best is None else f", best {best.loss:.4f} ({best.factors.name})")
            bar.update(task, description=said, completed=(number - 1) * tokens)
            if not console.is_terminal and (number <= 10 or number % 10 == 0):
                sys.stderr.write(f"extend: {said}\n")

        yield begin, lambda done: bar.advance(task, done)
