"""Golden predictions: our side of a check in a JSON file, to check engines without weights and without torch.

`golden.schema.json`, next to this module, describes the format.
"""

from __future__ import annotations

import base64
import bisect
import json
import platform
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ropewalk.atomic_io import as_path, check_output, finite, read_json, write_output
from ropewalk.errors import RopeError
from ropewalk.progress import Progress, SilentProgress, shown
from ropewalk.rope.values import HORIZON
from ropewalk.verification.adapters import LOCAL, open_engine
from ropewalk.verification.check import MAX_TOKENS, Check
from ropewalk.verification.engine import WAIT, NextTokens, TokenizerTexts
from ropewalk.verification.outcome import Prediction, Verification, distance
from ropewalk.verification.questions import Compared, PromptQuestion, different
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
class RecordedHypothesis:
    """A hypothesis in a golden file, with groups of equal hypotheses instead of positions.

    `groups[i]` is equal for hypotheses that agree on prompts from `lengths[i]` tokens up to the next length.
    """

    name: str
    lengths: tuple[int, ...]
    groups: tuple[int, ...]
    minor: bool
    small: bool

    def at(self, length: int) -> tuple[object, ...]:
        """Return the group for prompts of `length` tokens; hypotheses in one group agree."""
        return (self.groups[max(0, bisect.bisect_right(self.lengths, length) - 1)],)

    @property
    def borders(self) -> set[int]:
        """Return the lengths in tokens after which it may change."""
        return {length - 1 for length in self.lengths}


@dataclass(frozen=True)
class RecordedPrompt(PromptQuestion):
    """A prompt of a golden file, with predictions of `tokens` only. `clear`: tokens with a text of their own."""

    tokens: Sequence[int] = ()
    clear: Collection[int] = ()

    def aligned(self, answer: NextTokens) -> tuple[Mapping[int, float], Mapping[str, Prediction]]:
        """Return the answer and the predictions, limited to values known on both sides.

        An engine returns its likeliest tokens. Every other token has at most the smallest of these log-probabilities;
        both sides are compared as if it had this value. A token of the answer that is not recorded has at most
        `Prediction.least` under a hypothesis; the answer's excess over it counts as a difference. Tokens without a
        difference under any hypothesis are left out.
        """
        floor = min(answer.top.values())
        given = {t: answer.top.get(t, floor) for t in self.tokens if not answer.by_text or t in self.clear}
        others = {token: value for token, value in answer.top.items() if token not in self.tokens}
        values = {}
        for name, prediction in self.predictions.items():
            known = {token: max(prediction.values[token], floor) for token in given}
            beyond = {token: max(min(value, prediction.least), floor) for token, value in others.items()}
            values[name] = known | beyond
        answered = given | others
        tell = [token for token, value in answered.items() if any(one[token] != value for one in values.values())]
        kept = tell or list(answered)
        return (
            {token: answered[token] for token in kept},
            {name: Prediction([(token, one[token]) for token in kept]) for name, one in values.items()},
        )


class Golden:
    """Our side of a check, from a golden file; see `ropewalk.verification.questions.Side`.

    - `document`: the content of the file.

    **Raises:** `RopeError` if the content has a different format.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            raise RopeError(
                "verify: this is not a file of golden predictions, or it has a different version.",
                facts={"format": document.get("format"), "version": document.get("version")},
                cure=f"Write it again with `ropewalk verify MODEL --write FILE` of ropewalk {__version__}.",
            )
        if finite(document) != document:
            raise RopeError(
                "verify: this file of golden predictions contains NaN or infinity.",
                facts={"model": document.get("model")},
                cure="Write it again with `ropewalk verify MODEL --write FILE`.",
            )
        try:
            self._parse()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RopeError(
                "verify: this file of golden predictions is damaged.",
                facts={"error": f"{type(error).__name__}: {error}"},
                cure="Write it again with `ropewalk verify MODEL --write FILE`.",
            ) from error

    def _parse(self) -> None:
        """Read the content; anything missing raises."""
        document = self.document
        self.model, self.expected = str(document["model"]), str(document["expected"])
        self.trained, self.up_to = int(document["trained_length"]), int(document["up_to"])
        self.left_out = tuple(map(str, document["left_out"]))
        tokenizer = document["tokenizer"]
        self.prefix_ids = [int(token) for token in tokenizer["prefix_ids"]]
        self.sample = str(tokenizer["sample"]["text"]), [int(token) for token in tokenizer["sample"]["ids"]]
        lengths = tuple(map(int, document["lengths"]))
        self.all: Mapping[str, Any] = {
            one["name"]: RecordedHypothesis(
                one["name"],
                lengths,
                tuple(int(group) for _, group in zip(lengths, one["groups"], strict=True)),
                bool(one["minor"]),
                bool(one["small"]),
            )
            for one in document["hypotheses"]
        }
        self.all[document["hypotheses"][0]["name"]]  # there is at least the expected one
        self._questions = [
            (entry["kind"], int(entry["round"]), self._question(entry)) for entry in document["questions"]
        ]
        spans: dict[int, list[int]] = {}
        for kind, number, question in self._questions:
            if kind == "round":
                spans.setdefault(number, []).append(len(question.input_ids))
        self.rounds: Sequence[tuple[int, int]] | None = [
            (min(spans[number]), max(spans[number])) for number in sorted(spans)
        ]

    def _question(self, entry: Mapping[str, Any]) -> RecordedPrompt:
        """Return a prompt and its predictions."""
        whole = [int(token) for token in self.document["passages"][entry["passage"]]["ids"]]
        ids = whole[: entry["length"]]
        tokens = [int(token) for token in entry["tokens"]]
        columns = len(tokens) + 1
        values = np.frombuffer(base64.b64decode(entry["nats"], validate=True), "<i2").reshape(-1, columns) * UNIT
        predictions = {
            name: Prediction(list(zip(tokens, values[row, :-1].tolist(), strict=True)), float(values[row, -1]))
            for name, row in zip(entry.get("names", list(self.all)), entry["rows"], strict=True)
            if row != NONE
        }
        clear = {int(token) for token in self.document["tokens"]}
        return RecordedPrompt(ids, predictions, [int(token) for token in entry["generated"]], tokens, clear)

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
        return cls(json.loads(json.dumps(_Writer(side, progress or SilentProgress()).document())))

    def write(self, path: str | Path) -> None:
        """Write the file, completely or not at all."""
        write_output(path, json.dumps(dict(self.document), ensure_ascii=False, allow_nan=False) + "\n")

    def check(
        self,
        engine: object,
        *,
        model: str | Path | None = None,
        served_name: str | None = None,
        wait: float = WAIT,
        max_tokens: int = MAX_TOKENS,
        progress: Progress | bool | None = None,
    ) -> Verification:
        """Determine which rotary embedding an engine applies, without weights.

        **Arguments:**
        - `engine`: as for `verify`. Those that are started here need `model`.
        - `served_name`, `wait`, `max_tokens`, `progress`: as for `verify`.

        **Raises:** `RopeError` as `verify`.
        """
        begun = time.monotonic()
        if isinstance(engine, str) and engine.partition("@")[0] in LOCAL and model is None:
            raise RopeError(
                f"verify: {engine} needs a checkpoint, and a golden file contains none.",
                facts={"engine": engine},
                cure="Also pass the checkpoint, or pass the URL of a running server.",
            )
        with (
            open_engine(engine, model or "", self, served_name=served_name, wait=wait, max_tokens=max_tokens) as opened,
            shown("verify", progress) as bar,
        ):
            verification = Check(self, max_tokens=max_tokens, progress=bar).run(opened)
        return replace(verification, seconds=time.monotonic() - begun)

    @cached_property
    def by_text(self) -> dict[str, int]:
        """Return the ids of the recorded tokens by text, for engines that return text."""
        return {text: int(token) for token, text in self.document["tokens"].items()}

    # the questions

    def _of(self, *kinds: Kind, number: int | None = None) -> list[RecordedPrompt]:
        return [q for kind, place, q in self._questions if kind in kinds and number in (None, place)]

    def single(self, progress: Progress) -> list[RecordedPrompt]:
        """Return prompts of one token."""
        return self._of("single")

    def questions(
        self, number: int, span: tuple[int, int], alive: Collection[str], best: str, progress: Progress
    ) -> list[RecordedPrompt]:
        """Return the prompts of a round that are short enough, with the remaining hypotheses' predictions."""
        return [
            replace(question, predictions={name: one for name, one in question.predictions.items() if name in alive})
            for question in self._of("round", number=number)
            if len(question.input_ids) <= span[1]
        ]

    def shifted(self, progress: Progress) -> list[RecordedPrompt]:
        """Return prompts, each followed by the same one without its first tokens."""
        return self._of("shifted")

    def confirming(self, last: int, progress: Progress) -> list[RecordedPrompt]:
        """Return prompts of at most `last` tokens that confirm a verdict."""
        return [question for question in self._of("confirming") if len(question.input_ids) <= last]

    def decoding(self, progress: Progress) -> list[RecordedPrompt]:
        """Return prompts with generated tokens."""
        return self._of("decoding")


class _Writer:
    """The computation of a golden file's content."""

    def __init__(self, side: OurSide, progress: Progress) -> None:
        self.side, self.progress = side, progress
        self.token_texts = TokenizerTexts(side.tokenizer)
        self.passages: list[list[int]] = []

    def document(self) -> dict[str, Any]:
        """Return the content of the file."""
        side = self.side
        side.all = different(side.all, side.up_to)
        entries = list(self._entries())
        shown = {token for entry in entries for token in (*entry["tokens"], *entry["generated"])}
        reader, (text, ids) = side.predictions.reader, side.sample
        lengths = sorted(
            {1, 2, *(e["length"] for e in entries), *(b + 1 for one in side.all.values() for b in one.borders)}
        )
        lengths = [length for length in lengths if length <= HORIZON] + [HORIZON]
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
                {"name": one.name, "minor": one.minor, "small": one.small, "groups": groups}
                for one, groups in zip(side.all.values(), _groups(list(side.all.values()), lengths), strict=True)
            ],
            "left_out": list(side.left_out),
            "unit_nats": UNIT,
            "passages": [{"ids": ids} for ids in self.passages],
            "tokens": {str(token): side.tokenizer.decode([token]) for token in sorted(shown & self._clear)},
            "questions": entries,
        }

    def _entries(self) -> Iterator[dict[str, Any]]:
        """Yield each question with its predictions."""
        side, progress = self.side, self.progress
        yield from self._written("single", 0, side.single(progress))
        check = Check(side, max_tokens=max(side.up_to, 2), progress=progress)
        first, done, names = side.first.name, 0, list(side.all)
        for number, span in enumerate(check.rounds()):
            if span[1] <= done:
                break
            done = span[1]
            questions = side.questions(number, span, names, first, progress)
            yield from self._written("round", number, questions)
            if number:  # a check ends before if an engine does not apply what is expected, or something similar
                pairs = {n: [distance(q.predictions[first], q.predictions[n]) for q in questions] for n in names}
                names = [name for name in names if np.mean(pairs[name]) < CLOSE]
        for question in side.shifted(progress):
            yield from self._written("shifted", 0, [question])
        yield from self._written("confirming", 0, side.confirming(side.up_to, progress))
        yield from self._written("decoding", 0, side.decoding(progress))

    def _written(self, kind: Kind, number: int, questions: Sequence[PromptQuestion]) -> Iterator[dict[str, Any]]:
        """Yield questions as entries of the document; those of one round share a passage."""
        for question in sorted(questions, key=lambda one: -len(one.input_ids)):
            names = list(question.predictions)
            tokens = self._tokens(question.predictions)
            values = np.stack([_columns(question.predictions[name], tokens) for name in names])
            units = np.clip(np.rint(values / UNIT), LEAST, 0).astype("<i2")
            rows, unique = _distinct(units)
            ids = list(question.input_ids)
            passage = next((n for n, known in enumerate(self.passages) if known[: len(ids)] == ids), len(self.passages))
            if passage == len(self.passages):
                self.passages.append(ids)
            entry: dict[str, Any] = {
                "kind": kind,
                "round": number,
                "passage": passage,
                "length": len(ids),
                "generated": list(question.generated),
                "tokens": tokens,
                "rows": rows,
                "nats": base64.b64encode(unique.tobytes()).decode(),
            }
            if names != list(self.side.all):
                entry["names"] = names
            yield entry

    def _tokens(self, predictions: Mapping[str, Prediction]) -> list[int]:
        """Return the tokens to record: the likeliest as expected, then those that are likely under most hypotheses."""
        chosen = next(iter(predictions.values())).likeliest[:OWN]
        votes: Counter[int] = Counter()
        for prediction in predictions.values():
            for place, token in enumerate(prediction.likeliest[:OWN]):
                votes[token] += OWN - place
        chosen += [token for token, _ in votes.most_common() if token not in chosen][: TOKENS - len(chosen)]
        return chosen

    @cached_property
    def _clear(self) -> set[int]:
        return set(self.token_texts.by_text.values())


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


def _distinct(units: npt.NDArray[np.int16]) -> tuple[list[int], npt.NDArray[np.int16]]:
    """Return the number of the distinct row that each row equals, and the distinct rows in order of appearance."""
    known: dict[bytes, int] = {}
    rows = [known.setdefault(row.tobytes(), len(known)) for row in units]
    return rows, units[[rows.index(number) for number in range(len(known))]]


def write_golden(
    model: str | Path | Any, path: str | Path, *, progress: Progress | bool | None = None, **options: Any
) -> Golden:
    """Write the golden predictions of a model, and return them.

    **Arguments:**
    - `model`, `options`: as for `verify` (`expect`, `up_to`, `text`, `trained_length`, `state`, `device_map`).
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
    from ropewalk.verification.verify import our_side

    check_output(path, new_folder=True)
    with shown("verify", progress) as bar:
        golden = Golden.of(our_side(model, **options), progress=bar)
    golden.write(path)
    return golden
