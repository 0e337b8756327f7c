"""`extend.search`: a few numbers searched on one text, measured on another, and written if asked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.extend.answers import HeldOutAnswers, answer_objective, answer_texts, held_out_answers
from ropewalk.extend.card import card
from ropewalk.extend.decoder_tuning import tunable
from ropewalk.extend.dpe import DPESpace
from ropewalk.extend.evaluation import Objective
from ropewalk.extend.export import CARD, SEARCH_FIGURE, SEARCH_RECORD, Exported, check_out, export
from ropewalk.extend.factors import FactorSpace
from ropewalk.extend.held_out import SEARCHED, HeldOut, held_out, search_record
from ropewalk.extend.held_out_text import HeldOutText, refuse_seen, shared_windows
from ropewalk.extend.job import Draw
from ropewalk.extend.jobs import search_folder
from ropewalk.extend.outcome import record
from ropewalk.extend.point_search import SearchResult, search_points, text_objective, within_limit
from ropewalk.extend.settings import SearchSettings
from ropewalk.extend.source import Model, SourceModel, reach_of
from ropewalk.extend.spaces import space_named
from ropewalk.launch.processes import current
from ropewalk.measure.questions import QuestionSet
from ropewalk.methods import Reach
from ropewalk.models.precision import dtype_named
from ropewalk.models.tokens import Tokenizer
from ropewalk.optional import need
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.environment import environment_of
from ropewalk.readers.reader import Advance
from ropewalk.training.settings import on_machine

WINDOWS = 4  # of the search text: an evaluation that is not left early reads them all
TEXTS = 4  # where answers are searched on: each is read once and has many of them
TEXTS_APART = 8  # held out: read once for each analytic method, not for each evaluation
WITHIN_WINDOWS = 2  # read to the trained length, where answers are searched on


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A finished search: its result, what it is worth on held-out text and answers, its record, and what was written.

    `protocol` describes what was read in one sentence.
    """

    result: SearchResult
    held_out: HeldOut
    answers: HeldOutAnswers | None
    record: Mapping[str, Any]
    protocol: str
    exported: Exported | None

    @property
    def sentences(self) -> list[str]:
        """The result in words."""
        return [*(self.answers.sentences() if self.answers else ()), *self.held_out.sentences()]


@dataclass(frozen=True, kw_only=True)
class _Material:
    """What a search reads: windows and, for answers, texts with questions to search on; and others to measure on."""

    label: str
    windows: torch.Tensor | None
    asked: list[QuestionSet]
    unseen: HeldOutText
    asked_apart: list[QuestionSet]

    @property
    def count(self) -> int:
        """Windows or texts of an evaluation."""
        return len(self.asked) if self.windows is None or self.asked else len(self.windows)

    def objective(self, reach: Reach, limit: float, advance: Advance) -> Objective:
        """What a point costs, and its loss within the trained length where that is limited."""
        if not self.asked:
            assert self.windows is not None, "a search reads something"
            return text_objective(self.windows, reach, constrained=math.isfinite(limit), advance=advance)
        objective = answer_objective(self.asked, advance=advance)
        return objective if self.windows is None else within_limit(objective, self.windows, reach, advance=advance)


def search(
    model: Model,
    settings: SearchSettings,
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    restart: bool = False,
    folder: Path | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
) -> Searched:
    """Search the few numbers of a rule, or one divisor per pair, on a text, and measure them and methods on another.

    **Arguments:**
    - `model`, `overwrite`, `draw`: as for `apply`. `out`: the folder to write; None writes none.
    - `folder`: where evaluations are kept; None is the user's cache. Stopped, the same call continues; a larger budget
      prolongs it; `restart` throws them away.

    **Returns:** a `Searched`. A KeyboardInterrupt passes through. **Raises:** `RopeError` for settings that do not fit,
    for texts that are missing or too short, and for a held-out text that shares passages with those to search on.
    """
    if settings.over == FactorSpace.over:
        need("cma", extra="search")
    place = _check_output(model, out, settings, overwrite=overwrite)
    device, _ = on_machine(settings.device, "float32")
    opened = SourceModel.open(model, settings.trained_length)
    reach = reach_of(opened.reader, settings)
    source = opened.in_float32(device, dtype_named(settings.precision))
    space = space_named(settings.over, source.reader.positions, reach, monotone=settings.monotone)
    material = _material(settings, source.tokenizer("searched on"), reach)
    shown, kept = progress or SilentProgress(), folder or search_folder()
    resume = not restart
    result = search_points(
        source.reader,
        space,
        material.objective(reach, settings.within, shown.advance),
        budget=settings.budget,
        seconds=None if settings.minutes is None else 60 * settings.minutes,
        seed=settings.seed,
        limit=settings.within,
        halving=settings.halving,
        folder=kept,
        resume=resume,
        progress=shown,
    )
    name, windows = Path(material.unseen.name).stem, material.unseen.windows
    unseen = held_out(source.reader, result, windows, text=name, folder=kept, resume=resume, progress=shown)
    of_answers = None
    if settings.tasks:
        of_answers = held_out_answers(
            source.reader,
            result,
            material.asked_apart,
            text=name,
            folder=kept,
            resume=resume,
            progress=shown,
        )
    more = {
        "answers": list(settings.tasks) or None,
        "held_out_answers": None if of_answers is None else of_answers.to_json(),
        "seed": settings.seed,
        "monotone": settings.monotone,
        "halving": space.halves if settings.halving is None else settings.halving,
        "precision": settings.precision,
        "budget": space.budget if settings.budget is None and settings.minutes is None else settings.budget,
        "minutes": settings.minutes,
        "environment": environment_of(device, source.reader.parameters),
    }
    document = search_record(result, unseen, model=source.name, text=material.label, more=more)
    searched = Searched(
        result=result,
        held_out=unseen,
        answers=of_answers,
        record=document,
        protocol=_protocol_sentence(settings, material, reach.trained, reach.target),
        exported=None,
    )
    if place is None or not current().is_first:
        return searched
    exported = _export(searched, opened, place, settings, overwrite=overwrite, draw=draw)
    return replace(searched, exported=exported)


def _check_output(
    model: Model, out: str | os.PathLike[str] | None, settings: SearchSettings, *, overwrite: bool
) -> Path | None:
    """The folder to write, if any; refuses settings of it where there is none."""
    if out is None:
        unused = {"--dtype": settings.dtype, "--native": settings.native, "--overwrite": overwrite}
        unused = {name: value for name, value in unused.items() if value}
        if unused:
            raise RopeError(
                "extend: these options belong to a folder that is written, and would be ignored.",
                facts=unused,
                cure="Pass --out DIR, or leave them out.",
            )
        return None
    settings.check_unscaled_tokens()
    if settings.over == DPESpace.over and not settings.native:
        raise RopeError(
            "extend: DPE acts in attention, which no config.json describes.",
            facts={"over": settings.over},
            cure="Pass --native for a folder that ropewalk alone reads, or search --over yarn.",
        )
    return check_out(out, source=model if isinstance(model, str | os.PathLike) else None, overwrite=overwrite)


def _material(settings: SearchSettings, tokenizer: Tokenizer, reach: Reach) -> _Material:
    """Read the texts, and make what is read of them."""
    texts = [(path, *read_text(Path(path))) for path in settings.text]
    named = [(name, contents) for _, name, contents in texts]
    unseen = HeldOutText.take(
        settings.validation,
        tokenizer,
        reach,
        windows=settings.windows,
        start_char=settings.start_char,
        seed=settings.seed,
    )
    rest = unseen.contents[settings.start_char :]
    asked, others, seen_of = [], [], unseen.windows
    count = settings.search_windows or max(WINDOWS, len(named))
    if settings.tasks:
        joined = "\n".join(contents for _, contents in named)
        how: dict[str, Any] = {"length": reach.target, "beyond": reach.trained}
        asked = answer_texts(
            tokenizer, settings.tasks, joined, count=settings.search_windows or TEXTS, seed=settings.seed, **how
        )
        apart = settings.answer_texts or TEXTS_APART
        others = answer_texts(tokenizer, settings.tasks, rest, count=apart, seed=settings.seed + 1, **how)
        seen_of = torch.tensor([tokenizer.encode(rest)])  # texts are made of all of it
        count = max(settings.within_windows or WITHIN_WINDOWS, len(named))
    windows = None
    if not settings.tasks or math.isfinite(settings.within):
        windows = shared_windows(named, tokenizer, reach, windows=count, seed=settings.seed)
    refuse_seen(
        seen_of,
        [(path, contents) for path, _, contents in texts],
        tokenizer,
        work="search",
        validation=str(settings.validation or unseen.name),
    )
    return _Material(
        label=" and ".join(Path(name).stem for name, _ in named),
        windows=windows,
        asked=asked,
        unseen=unseen,
        asked_apart=others,
    )


def _protocol_sentence(settings: SearchSettings, material: _Material, trained: int, target: int) -> str:
    """What was searched on, and what was held out."""
    tasks = ", ".join(settings.tasks)
    loss = (
        f"loss of the answers of {tasks} that lie further back than {trained:,} tokens"
        if tasks
        else f"loss beyond {trained:,} tokens"
    )
    unit = "texts with questions" if tasks else "windows"
    apart = f"{len(material.asked_apart)} texts and " if tasks else ""
    name = Path(material.unseen.name).stem
    limit = f", at no more than {settings.within:g} nats within" if math.isfinite(settings.within) else ""
    return (
        f"Search over {settings.over}: {loss}{limit}; "
        f"{unit} of {target:,} tokens: {material.count} of {material.label}, held out {apart}"
        f"{len(material.unseen.windows)} windows of {name}."
    )


def _export(
    searched: Searched,
    source: SourceModel,
    place: Path,
    settings: SearchSettings,
    *,
    overwrite: bool,
    draw: Draw | None,
) -> Exported:
    """Write the model under the best point, with the search's record."""
    final, reach = tunable(searched.result.apply(source.reader)), searched.result.space.reach

    def more_files(exported: Exported) -> dict[str, str | bytes]:
        about = record(
            model=source.name,
            method=SEARCHED,
            protocol=None,
            variants=(),
            config=exported.config,
            tuning=None,
            environment=searched.record["environment"],
            unscaled_tokens=reach.unscaled_tokens,
        )
        files: dict[str, str | bytes] = {
            CARD: card(
                about,
                figure=None if draw is None else SEARCH_FIGURE,
                numbers=SEARCH_RECORD,
                results=searched.sentences,
            ),
            SEARCH_RECORD: json.dumps(searched.record, indent=1, allow_nan=False) + "\n",
        }
        return files if draw is None else {**files, SEARCH_FIGURE: draw(searched.record)}

    return export(
        final.to(device="cpu"),
        place,
        method=SEARCHED,
        reach=reach,
        source=source.place,
        dtype=source.stored if settings.dtype is None else dtype_named(settings.dtype),
        overwrite=overwrite,
        native=settings.native,
        more_files=more_files,
    )
