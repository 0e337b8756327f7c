"""Golden predictions: our side of a check in a JSON file, to check engines without weights and without torch.

`golden.schema.json`, next to this module, describes the format.
"""

from __future__ import annotations

import base64
import json
import platform
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, partialmethod
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ropewalk.atomic_io import as_path, check_output, read_json, write_output
from ropewalk.errors import RopeError, library_errors
from ropewalk.progress import Progress, SilentProgress, shown
from ropewalk.rope.values import HORIZON
from ropewalk.verification.adapters import LOCAL, open_engine
from ropewalk.verification.check import MAX_TOKENS, Check
from ropewalk.verification.engine import NextTokens
from ropewalk.verification.fit import (
    Compared,
    Prediction,
    Probe,
    PromptQuestion,
    RecordedHypothesis,
    Verification,
    different,
    distance,
)
from ropewalk.version import __version__

if TYPE_CHECKING:
    from ropewalk.verification.verify import OurSide

FORMAT, VERSION = "ropewalk golden predictions", 4
TOKENS = 24  # tokens of a question whose log-probabilities are written: the likeliest under each hypothesis
OWN = 12  # of these, the likeliest under the expected hypothesis
UNIT = 1e-3  # nats: log-probabilities are whole multiples
LEAST = -32_767  # units: the smallest log-probability that is written
CLOSE = 0.3  # nats from the expected prediction: hypotheses for which the longest prompts are computed
NONE = -1  # the row of a hypothesis without a prediction
Kind = Literal["single", "shifted", "round", "confirming", "decoding"]


@dataclass(frozen=True)
class RecordedPrompt(PromptQuestion):
    """A prompt of a golden file, with predictions of `tokens` only. `clear`: tokens with a text of their own."""

    tokens: Sequence[int] = ()
    clear: Collection[int] = ()

    def probe(self, answer: NextTokens) -> Probe:
        """Return the answer and the predictions, limited to values known on both sides.

        An engine returns its likeliest tokens. Every other token has at most the smallest of these log-probabilities;
        both sides are compared as if it had this value. A token of the answer that is not recorded has at most
        `Prediction.least` under a hypothesis; the answer's excess over it counts as a difference. Tokens without a
        difference under any hypothesis are left out.
        """
        floor = min(answer.top.values())
        known = {t: answer.top.get(t, floor) for t in self.tokens if not answer.by_text or t in self.clear}
        answered = known | {token: value for token, value in answer.top.items() if token not in self.tokens}
        values = {
            name: {t: max(one.values.get(t, min(value, one.least)), floor) for t, value in answered.items()}
            for name, one in self.predictions.items()
        }
        tell = [token for token, value in answered.items() if any(one[token] != value for one in values.values())]
        kept = {token: answered[token] for token in tell or answered}
        return self.compared(kept, {name: Prediction(list(one.items())) for name, one in values.items()})


class Golden:
    """Our side of a check, from a golden file; see `OurSide`.

    - `document`: the content of the file.

    **Raises:** `RopeError` if the content has a different format.
    """

    progress: Progress = SilentProgress()

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        cure = f"Write it again with `ropewalk verify MODEL --write FILE` of ropewalk {__version__}."
        written = {"format": document.get("format"), "version": document.get("version")}
        if written != {"format": FORMAT, "version": VERSION}:
            rule = "verify: this is not a file of golden predictions, or it has a different version."
            raise RopeError(rule, facts=written, cure=cure)
        with library_errors("verify: this file of golden predictions is damaged.", facts={}, cure=cure):
            json.dumps(document, allow_nan=False)
            self._parse()

    def _parse(self) -> None:
        """Read the content; anything missing raises."""
        document = self.document
        self.model, self.expected = str(document["model"]), str(document["expected"])
        self.trained, self.up_to = int(document["trained_length"]), int(document["up_to"])
        self.left_out = tuple(map(str, document["left_out"]))
        tokenizer = document["tokenizer"]
        self.prefix_ids = _whole(tokenizer["prefix_ids"])
        self.sample = str(tokenizer["sample"]["text"]), _whole(tokenizer["sample"]["ids"])
        self.by_text = {str(text): int(token) for token, text in document["tokens"].items()}
        lengths = tuple(_whole(document["lengths"]))
        self.all: Mapping[str, RecordedHypothesis] = {
            one["name"]: RecordedHypothesis(
                one["name"],
                lengths,
                tuple(int(group) for _, group in zip(lengths, one["groups"], strict=True)),
                bool(one["minor"]),
                bool(one["small"]),
            )
            for one in document["hypotheses"]
        }
        next(iter(self.all.values()))  # the expected one
        self._questions = [
            (entry["kind"], int(entry["round"]), self._question(entry)) for entry in document["questions"]
        ]
        spans: dict[int, list[int]] = {}
        for kind, number, question in self._questions:
            if kind == "round":
                spans.setdefault(number, []).append(len(question.input_ids))
        self.rounds: Sequence[tuple[int, int]] | None = [
            (min(lengths), max(lengths)) for _, lengths in sorted(spans.items())
        ]

    def _question(self, entry: Mapping[str, Any]) -> RecordedPrompt:
        """Return a prompt and its predictions."""
        ids = _whole(self.document["passages"][entry["passage"]]["ids"])[: entry["length"]]
        tokens = _whole(entry["tokens"])
        columns = len(tokens) + 1
        values = np.frombuffer(base64.b64decode(entry["nats"], validate=True), "<i2").reshape(-1, columns) * UNIT
        predictions = {
            name: Prediction(list(zip(tokens, values[row, :-1].tolist(), strict=True)), float(values[row, -1]))
            for name, row in zip(entry.get("names", list(self.all)), entry["rows"], strict=True)
            if row != NONE
        }
        return RecordedPrompt(ids, predictions, _whole(entry["generated"]), tokens, set(self.by_text.values()))

    @classmethod
    def read(cls, path: str | Path) -> Golden:
        """Return the predictions of a file.

        **Raises:** `RopeError` if it cannot be read or has a different format.
        """
        cure = "Pass a file that `ropewalk verify MODEL --write FILE` has written."
        return cls(read_json(as_path(path, "verify"), "verify", cure))

    @classmethod
    def of(cls, side: OurSide, *, progress: Progress | None = None) -> Golden:
        """Compute the predictions of a model for every hypothesis."""
        return cls(json.loads(json.dumps(_document(side, progress or SilentProgress()))))

    def check(
        self,
        engine: object,
        *,
        model: str | Path | None = None,
        max_tokens: int = MAX_TOKENS,
        progress: Progress | bool | None = None,
        **options: Any,
    ) -> Verification:
        """Determine which rotary embedding an engine applies, without weights.

        **Arguments:**
        - `engine`: as for `verify`. Those that are started here need `model`.
        - `max_tokens`, `progress`, `options`: as for `verify` (`served_name`, `wait`).

        **Raises:** `RopeError` as `verify`.
        """
        begun = time.monotonic()
        if isinstance(engine, str) and engine.partition("@")[0] in LOCAL and model is None:
            raise RopeError(
                f"verify: {engine} needs a checkpoint, and a golden file contains none.",
                facts={"engine": engine},
                cure="Also pass the checkpoint, or pass the URL of a running server.",
            )
        opening = open_engine(engine, model or "", self, max_tokens=max_tokens, **options)
        with opening as opened, shown("verify", progress) as bar:
            verification = Check(self, max_tokens=max_tokens, progress=bar).run(opened)
        return replace(verification, seconds=time.monotonic() - begun)

    # prompts, as those of `OurSide`

    def _of(self, kind: Kind) -> list[RecordedPrompt]:
        return [question for one, _, question in self._questions if one == kind]

    single = partialmethod(_of, "single")
    shifted = partialmethod(_of, "shifted")
    decoding = partialmethod(_of, "decoding")

    def questions(self, number: int, span: tuple[int, int], alive: Collection[str], best: str) -> list[RecordedPrompt]:
        """Return the prompts of a round that are short enough, with the remaining hypotheses' predictions."""
        return [
            replace(question, predictions={name: one for name, one in question.predictions.items() if name in alive})
            for kind, place, question in self._questions
            if (kind, place) == ("round", number) and len(question.input_ids) <= span[1]
        ]

    def confirming(self, last: int) -> list[RecordedPrompt]:
        """Return prompts of at most `last` tokens that confirm a verdict."""
        return [question for question in self._of("confirming") if len(question.input_ids) <= last]


def _whole(numbers: Sequence[Any]) -> list[int]:
    return [int(number) for number in numbers]


def _document(side: OurSide, progress: Progress) -> dict[str, Any]:
    """Return the content of a golden file."""
    side.all = different(side.all, side.up_to)
    passages = list[list[int]]()
    entries = list(_entries(side, Check(side, max_tokens=max(side.up_to, 2), progress=progress), passages))
    shown = {token for entry in entries for token in (*entry["tokens"], *entry["generated"])}
    reader, (text, ids) = side.predictions.reader, side.sample
    borders = {border for one in side.all.values() for border in one.borders if border < HORIZON}
    lengths = sorted({1, 2, HORIZON, *(e["length"] for e in entries), *(border + 1 for border in borders)})
    groups = _groups(list(side.all.values()), lengths)
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": side.model,
        "library": reader.library,
        "dtype": str(reader.dtype).removeprefix("torch."),
        "weights": reader.digest(),
        "versions": {"ropewalk": __version__, "torch": version("torch"), "python": platform.python_version()},
        "expected": side.expected,
        "trained_length": side.trained,
        "up_to": side.up_to,
        "tokenizer": {"prefix_ids": side.prefix_ids, "sample": {"text": text, "ids": ids}},
        "lengths": lengths,
        "hypotheses": [
            {"name": one.name, "minor": one.minor, "small": one.small, "groups": row}
            for one, row in zip(side.all.values(), groups, strict=True)
        ],
        "left_out": list(side.left_out),
        "unit_nats": UNIT,
        "passages": [{"ids": ids} for ids in passages],
        "tokens": {str(token): text for text, token in side.tokenizer.by_text.items() if token in shown},
        "questions": entries,
    }


def _entries(side: OurSide, check: Check, passages: list[list[int]]) -> Iterator[dict[str, Any]]:
    """Yield each question with its predictions; add its ids to `passages`."""
    first, done, names = side.first.name, 0, list(side.all)
    written = partial(_written, every=names, passages=passages)
    yield from written("single", 0, side.single())
    for number, span in enumerate(check.rounds()):
        if span[1] <= done:
            break
        done = span[1]
        questions = side.questions(number, span, names, first)
        yield from written("round", number, questions)
        if number:  # a check ends before if an engine does not apply what is expected, or something similar
            pairs = {n: [distance(q.predictions[first], q.predictions[n]) for q in questions] for n in names}
            names = [name for name in names if np.mean(pairs[name]) < CLOSE]
    for question in side.shifted():
        yield from written("shifted", 0, [question])
    yield from written("confirming", 0, side.confirming(side.up_to))
    yield from written("decoding", 0, side.decoding())


def _written(
    kind: Kind, number: int, questions: Sequence[PromptQuestion], *, every: list[str], passages: list[list[int]]
) -> Iterator[dict[str, Any]]:
    """Yield questions as entries of the document; those of one round share a passage."""
    for question in sorted(questions, key=lambda one: -len(one.input_ids)):
        names, ids = list(question.predictions), list(question.input_ids)
        tokens = _tokens(question.predictions)
        values = np.stack([_columns(question.predictions[name], tokens) for name in names])
        units = np.clip(np.rint(values / UNIT), LEAST, 0).astype("<i2")
        unique, rows = np.unique(units, axis=0, return_inverse=True)
        passage = next((n for n, known in enumerate(passages) if known[: len(ids)] == ids), len(passages))
        if passage == len(passages):
            passages.append(ids)
        entry: dict[str, Any] = {
            "kind": kind,
            "round": number,
            "passage": passage,
            "length": len(ids),
            "generated": list(question.generated),
            "tokens": tokens,
            "rows": rows.ravel().tolist(),
            "nats": base64.b64encode(unique.tobytes()).decode(),
        }
        yield entry if names == every else entry | {"names": names}


def _tokens(predictions: Mapping[str, Prediction]) -> list[int]:
    """Return the tokens to record: the likeliest as expected, then those that are likely under most hypotheses."""
    chosen = next(iter(predictions.values())).likeliest[:OWN]
    votes: Counter[int] = Counter()
    for prediction in predictions.values():
        votes.update({token: OWN - place for place, token in enumerate(prediction.likeliest[:OWN])})
    others = [token for token, _ in votes.most_common() if token not in chosen]
    return chosen + others[: TOKENS - len(chosen)]


def _groups(hypotheses: Sequence[Compared], lengths: Sequence[int]) -> list[list[int]]:
    """Return a number for each hypothesis and length; hypotheses with equal numbers agree at this length."""
    rows: list[list[int]] = [[] for _ in hypotheses]
    for length in lengths:
        numbers: dict[object, int] = {}
        for row, hypothesis in zip(rows, hypotheses, strict=True):
            row.append(numbers.setdefault(hypothesis.at(length), len(numbers)))
    return rows


def _columns(prediction: Prediction, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the log-probabilities of these tokens, and that of the likeliest other token."""
    others = [value for token, value in prediction.values.items() if token not in tokens]
    return np.append(prediction.of(tokens), max(others, default=prediction.least))


def write_golden(
    model: str | Path | Any, path: str | Path, *, progress: Progress | bool | None = None, **options: Any
) -> Golden:
    """Write the golden predictions of a model, and return them.

    **Arguments:**
    - `model`, `options`: as for `verify` (`expect`, `up_to`, `text`, `trained_length`, `state`, `device`).
    - `path`: the file.

    **Raises:** `RopeError` if the model cannot be read.
    **Numerics:** log-probabilities are rounded to 0.001 nats.

    >>> import tempfile
    >>> from ropewalk.checkpoints.opening import open_reader
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     golden = write_golden("tiny", Path(folder) / "golden.json", up_to=64)
    >>> golden.check(open_reader("tiny").model).verdict.kind
    'as expected'
    """
    from ropewalk.verification.verify import OurSide

    check_output(path)
    with shown("verify", progress) as bar:
        golden = Golden.of(OurSide(model, **options), progress=bar)
    write_output(path, json.dumps(golden.document, ensure_ascii=False, allow_nan=False) + "\n")
    return golden
