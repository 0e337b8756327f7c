"""Retrieval: log-probabilities, what is found within reach, and the run: stopped, resumed, summed up."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.checkpoints.tokenizer import byte_alphabet
from ropewalk.errors import RopeError
from ropewalk.measure import TASKS
from ropewalk.measure import retrieval as module
from ropewalk.measure.answers import (
    Accuracy,
    Answer,
    Cell,
    RetrievalMeasurement,
    RetrievalProtocol,
    accuracy_rows,
    sentences,
)
from ropewalk.measure.questions import Question, QuestionSet, Wanted
from ropewalk.measure.retrieval import (
    RetrievalRun,
    answers_of,
    calibrated,
    candidate_log_probs,
    choose,
    fitting_tasks,
    measure_retrieval,
    score,
)
from ropewalk.models.decoder import Decoder
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.reader import QuestionIds, Reader
from ropewalk.rope.scaling import DynamicNTK
from tests.diagnosis.models import ROPE, under_method
from tests.diagnosis.small_runs import Recorder
from tests.measure.material import TEXT, decoder, tokenizer
from tests.measure.test_questions import held, made, read

ASKED = QuestionSet(
    input_ids=(1, 2, 3),
    questions=tuple(
        Question(
            input_ids=(5,),
            candidates=candidates,
            continuations=tuple((6,) for _ in candidates),
            wanted=(Wanted(answer, others, 0.5, 10),),
        )
        for candidates, answer, others in (((0, 1, 2), 0, (1, 2)), ((0, 1, 2), 1, (0, 2)), ((2, 1), 2, (1,)))
    ),
)


def test_a_candidate_that_is_liked_anywhere_gains_nothing_by_it() -> None:
    """Each candidate less its mean over the questions that have it: number 2 is ever the likeliest, and never found."""
    log_probs = [[-4.0, -6.0, -1.0], [-5.0, -4.0, -1.0], [-1.0, -8.0]]
    fair = calibrated(ASKED, log_probs)
    assert fair[0] == {0: 0.5, 1: 0.0, 2: 0.0}
    assert fair[1] == {0: -0.5, 1: 2.0, 2: 0.0}
    assert fair[2] == {2: 0.0, 1: -2.0}
    answers = answers_of(ASKED, log_probs)
    assert [answer.found for answer in answers] == [True, True, True]
    assert [answer.raw for answer in answers] == [False, False, True]
    assert [answer.choices for answer in answers] == [3, 3, 2]


@given(st.lists(st.floats(-50, 0), min_size=6, max_size=6), st.lists(st.floats(-9, 9), min_size=5, max_size=5))
def test_calibration_forgets_what_depends_on_one_alone(values: list[float], shifts: list[float]) -> None:
    """A number added to a candidate in every question, or to a whole question, changes no difference."""
    asked = dataclasses.replace(ASKED, questions=ASKED.questions[:2])
    rows = [values[:3], values[3:]]
    moved = [[value + shifts[n] + shifts[3 + index] for n, value in enumerate(row)] for index, row in enumerate(rows)]
    for one, other in zip(calibrated(asked, rows), calibrated(asked, moved), strict=True):
        for left, right in itertools.pairwise(one):
            assert one[left] - one[right] == pytest.approx(other[left] - other[right], abs=1e-9)


def test_nan_is_named_in_any_question() -> None:
    """By a question that has it, not left out."""
    with pytest.raises(RopeError, match="not a number"):
        answers_of(ASKED, [[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0], [float("nan"), -1.0]])


def test_the_answer_must_be_above_all_others() -> None:
    """A tie is no find, and a broken model is named."""
    assert choose([-1.0, -1.5, -3.0])
    assert not choose([-1.0, -0.5, -3.0])
    assert not choose([-1.0, -1.0])
    with pytest.raises(RopeError, match="not a number"):
        choose([-1.0, float("nan")])


class KnowingPrefix:
    """Knows the number of a city where its needle lies in the last `reach` tokens of the text and the question.

    There the answer has log-probability 0 and all others -10. Beyond its reach the answer has -20 and all others -5; of
    a needle that it was not given to read it knows nothing: a number of its own for each city and number.
    """

    def __init__(self, ids: Sequence[int], reach: int) -> None:
        self.ids, self.reach = list(ids), reach
        self.needles = held("numbers", read(ids))

    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        return [self._answer(read([*self.ids, *question]), of) for question, of in questions]

    def _answer(self, text: str, continuations: Sequence[Sequence[int]]) -> list[float]:
        [name] = re.findall(r"\nThe number of (\w+) is$", text.rstrip())
        numbers = [read(ids).strip() for ids in continuations]
        if name not in self.needles:
            return [-Random(f"{name} {number}").uniform(5, 9) for number in numbers]
        knows = held("numbers", text[-self.reach :]).get(name) == self.needles[name]
        right, wrong = (0.0, -10.0) if knows else (-20.0, -5.0)
        return [right if {number} == self.needles[name] else wrong for number in numbers]


class KnowingReader:
    """Has nothing but a reach."""

    def __init__(self, reach: int) -> None:
        self.reach = reach

    def digest(self) -> str:
        return f"knows {self.reach}"

    def prefix(self, input_ids: Sequence[int], **more: Any) -> KnowingPrefix:
        return KnowingPrefix(input_ids, self.reach)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 2600), st.integers(0, 99))
def test_found_is_what_lies_within_reach(reach: int, seed: int) -> None:
    """Each answer, by its distance; in any order of the questions."""
    asked = made("numbers", 2500, seed)
    reader: Any = KnowingReader(reach)
    answers = score(reader, asked)
    assert len(answers) == 12
    for answer in answers:
        assert answer.found == answer.raw == (answer.distance <= reach)
    order = list(asked.questions)
    random.Random(seed).shuffle(order)
    mixed = score(reader, dataclasses.replace(asked, questions=tuple(order)))
    assert set(mixed) == set(answers)
    assert len(mixed) == len(answers)


def test_accuracy_ends_where_reach_does() -> None:
    """By distance and by depth, in rows and curves; what crop does not read it does not find, whatever its reach."""
    readers: Any = {"far": KnowingReader(10_000), "near": KnowingReader(2000), "crop": KnowingReader(10_000)}
    found = measure_retrieval(
        readers, tokenizer(), lengths=[4000], samples=4, text=TEXT, crop={"crop": 1000}, trained_length=1000
    )
    answers = {
        method: [one for texts in of_method.values() for text in texts for one in text]
        for method, of_method in found.answers.items()
    }
    for method, reach in (("far", 4000), ("near", 2000)):
        assert [one.found for one in answers[method]] == [one.distance <= reach for one in answers[method]]
        for row in found.details()["by_distance"]:
            if row["method"] == method:
                low, high = row["distances"]
                inside = [one.found for one in answers[method] if low <= one.distance < high]
                assert (row["asked"], row["found"]) == (len(inside), sum(inside))
                assert len(inside) >= 20
    unread = [one.found for one in answers["crop"] if one.distance > 1000]
    assert all(one.found for one in answers["crop"] if one.distance < 950)
    assert sum(unread) / len(unread) < 0.3
    for row in found.rows():
        low, high = row["depths"]
        inside = [one.found for one in answers[row["method"]] if low <= one.depth < high]
        assert (row["asked"], row["found"]) == (len(inside), sum(inside))
        assert (len(inside) >= 20, row["texts"], row["depth"]) == (True, 4, (low + high) / 2)
    assert len(found.rows()) == 3 * 2
    assert [found.effective_length(name) for name in ("far", "near")] == [4000, None]


def by_full_forward(model: Decoder, asked: QuestionSet, seq_len: int) -> list[list[float]]:
    """Each question and candidate as a single prompt in a forward of its own, without a cache."""
    found = []
    for question in asked.questions:
        row = []
        for continuation in question.continuations:
            ids = [*asked.input_ids, *question.input_ids, *continuation]
            with torch.no_grad():
                likely = model(torch.tensor([ids]), seq_len=seq_len)[0].double().log_softmax(-1)
            start = len(ids) - len(continuation) - 1
            row.append(sum(float(likely[start + n, token]) for n, token in enumerate(continuation)))
        found.append(row)
    return found


@pytest.mark.parametrize("method", ["plain", "dynamic", "dca", "streaming", "rerope", "log-n", "drope", "window"])
def test_log_probs_are_those_of_single_prompts(method: str) -> None:
    """At the same length, that of the text with the longest question and candidate; also where it is cropped."""
    model = decoder(ROPE)
    if method == "window":
        model = decoder(ROPE, sliding_window=(24, None))
    elif method == "dynamic":
        model = decoder(dataclasses.replace(ROPE, scaling=DynamicNTK(1.0)))
    elif method != "plain":
        model = under_method(model, method, trained=16, target=512)
    for asked in (made("numbers", 400), made("numbers", 400).cropped(150)):
        found = candidate_log_probs(reader_of(model), asked, chunk=64)
        for one, other in zip(found, by_full_forward(model, asked, asked.tokens), strict=True):
            assert one == pytest.approx(other, abs=2e-4)


GIVEN: dict[str, Any] = {
    "tasks": ["numbers", "passkey"], "lengths": [900, 980], "samples": 2, "text": TEXT,
}  # fmt: skip


def reader(**changes: Any) -> Reader:
    """A small random model."""
    return reader_of(decoder(**changes))


def run(methods: dict[str, Reader] | None = None, **changes: Any) -> RetrievalMeasurement:
    """Two tasks at two lengths."""
    return measure_retrieval(methods or {"plain": reader()}, tokenizer(), **{**GIVEN, **changes})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[QuestionSet]:
    """Every text that is scored; answers whose candidate's number is even are found."""
    seen: list[QuestionSet] = []

    def scored(asked_of: Reader, text: QuestionSet, *, advance: Any = None, **more: Any) -> list[Answer]:
        if advance is not None:
            advance(len(text.input_ids))
        seen.append(text)
        wanted = [one for question in text.questions for one in question.wanted]
        return [
            Answer(one.answer % 2 == 0, one.answer % 2 == 0, 1 + len(one.others), one.depth, one.distance)
            for one in wanted
        ]

    monkeypatch.setattr(module, "score", scored)
    return seen


def cells_of(found: RetrievalMeasurement, method: str = "plain") -> dict[Cell, list[list[bool]]]:
    """What was found, text by text."""
    return {
        cell: [[one.found for one in answers] for answers in texts] for cell, texts in found.answers[method].items()
    }


def lasting(found: RetrievalMeasurement) -> tuple[Any, ...]:
    """All numbers but times."""
    return found.rows(), {name: value for name, value in found.details().items() if name != "seconds"}


def test_every_cell_has_its_texts(asked: list[QuestionSet]) -> None:
    """So many for each task and length; the numbers in JSON are those of the answers."""
    found = run()
    rows = found.rows()
    assert [(row["task"], row["length"], row["texts"], row["depths"]) for row in rows] == [
        (task, length, 2, (0.0, 1.0)) for task in ("numbers", "passkey") for length in (900, 980)
    ]
    assert len(asked) == 8 == len({text.input_ids for text in asked})
    assert sum(row["asked"] for row in rows) == sum(len(text.questions) for text in asked)
    json.dumps([found.rows(), found.details()], allow_nan=False)


def test_methods_are_asked_the_same(asked: list[QuestionSet]) -> None:
    """The same texts in the same order, one method after the other."""
    found = run({"one": reader(), "two": reader()})
    assert asked[:8] == asked[8:]
    assert found.methods == ("one", "two")
    assert found.accuracy("one") == found.accuracy("two")


def test_a_broken_model_is_named() -> None:
    """Nothing replaced."""
    broken = decoder()
    with torch.no_grad():
        broken.norm.weight.fill_(float("nan"))
    with pytest.raises(RopeError, match="not a number"):
        run({"plain": reader_of(broken)}, samples=1, tasks=["numbers"])


class _Interrupt(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("stop_at", [1, 7, 8, 15])
def test_a_stopped_run_resumes_to_the_same_numbers(tmp_path: Path, asked: list[QuestionSet], stop_at: int) -> None:
    """Stopped inside any example; those scored are not asked again."""
    methods = {"one": reader(), "two": reader()}
    whole = run(methods)
    del asked[:]

    class Stopping(Recorder):
        def advance(self, tokens: int) -> None:
            if len(asked) == stop_at:
                raise _Interrupt

    with pytest.raises(_Interrupt):
        run(methods, state=tmp_path, progress=Stopping())
    shown = Recorder()
    found = run(methods, state=tmp_path, resume=True, progress=shown)
    assert len(asked) == 16
    assert lasting(found) == lasting(whole)
    numbers = [step.split("] ")[0] for step in shown.begun]
    assert numbers == [f"[{number}/{len(numbers)}" for number in range(1, len(numbers) + 1)]
    lengths = [int(step.partition(", ")[2].split()[0]) for step in shown.begun]
    assert len(lengths) == 16 - stop_at
    assert shown.expected == sum(lengths)
    assert list((tmp_path / "leases").iterdir()) == []


def test_a_resumed_run_may_ask_for_more(tmp_path: Path, asked: list[QuestionSet]) -> None:
    """More samples, tasks and methods: only what is missing is asked; fewer are taken from what is there."""
    path = tmp_path / "state"
    first = run(state=path, tasks=["passkey"])
    del asked[:]
    more = run({"plain": reader(), "two": reader()}, state=path, resume=True, samples=3)
    assert len(asked) == 2 * 12 - 4
    for cell, outcome in cells_of(first).items():
        assert cells_of(more)[cell][:2] == outcome
    del asked[:]
    assert lasting(run(state=path, resume=True, tasks=["passkey"])) == lasting(first)
    assert asked == []


def test_a_state_of_another_run_is_refused(tmp_path: Path, asked: list[QuestionSet]) -> None:
    """Another seed, text or haystack; a folder that is something else is not thrown away."""
    path = tmp_path / "state"
    run(state=path)
    for change in ({"seed": 1}, {"text": ("other", TEXT[1] + " More.")}, {"haystack": "text"}):
        with pytest.raises(RopeError, match="results of a different job"):
            run(state=path, resume=True, **change)
    (tmp_path / "ledger.json").write_text('{"of": "somebody"}')
    for resume in (True, False):
        with pytest.raises(RopeError, match="contains other files"):
            run(state=tmp_path, resume=resume)


def test_another_model_or_crop_is_another_job(tmp_path: Path, asked: list[QuestionSet]) -> None:
    """Under the same method's name: it is measured, and what was there is kept."""
    run(state=tmp_path)
    for change in (
        {"methods": {"plain": reader(initializer_range=0.2)}},
        {"crop": {"plain": 200}},
        {"crop": {"plain": 300}},
    ):
        del asked[:]
        run(state=tmp_path, resume=True, **change)
        assert len(asked) == 8
    del asked[:]
    run(state=tmp_path, resume=True)
    run(state=tmp_path, resume=True, crop={"plain": 200, "another": 300})
    assert asked == []


def test_a_state_of_another_tokenizer_is_refused(tmp_path: Path, asked: list[QuestionSet]) -> None:
    """Also where it differs in digits alone, of which the text has none; the same one, made again, goes on."""
    path = tmp_path / "state"
    run(state=path)
    del asked[:]
    run(state=path, resume=True)
    assert asked == []
    alphabet = byte_alphabet()
    pair = tokenizers.models.BPE(vocab={**alphabet, "12": 300}, merges=[("1", "2")])
    other = tokenizer()
    other.tokenizer.model = pair
    assert other.encode(TEXT[1]) == tokenizer().encode(TEXT[1])
    assert other.encode("12") != tokenizer().encode("12")
    with pytest.raises(RopeError, match="results of a different job"):
        measure_retrieval({"plain": reader()}, other, state=path, resume=True, **GIVEN)


def test_a_run_begun_anew_forgets_the_state(tmp_path: Path, asked: list[QuestionSet]) -> None:
    """Without resume."""
    path = tmp_path / "state"
    run(state=path)
    run(state=path)
    assert len(asked) == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": [100, 500]}, "does not fit"),
        ({"tasks": []}, "`tasks` must not be empty"),
        ({"lengths": [500, 500]}, "`lengths` must not be empty or contain duplicates"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"chat": True}, "no chat template"),
        ({"tasks": ["hay"]}, "unknown task"),
    ],
)
def test_what_cannot_be_measured_is_refused_first(
    asked: list[QuestionSet], change: dict[str, Any], message: str
) -> None:
    """Before any model is asked."""
    with pytest.raises(RopeError, match=message):
        run(**change)
    with pytest.raises(RopeError, match="`methods` is empty"):
        measure_retrieval({}, tokenizer(), lengths=[500], text=TEXT)
    assert asked == []


def measured(counts: dict[tuple[str, int], int]) -> RetrievalMeasurement:
    """Ten texts of one question at each length, so many found."""
    lengths = tuple(sorted({length for _, length in counts}))
    protocol = RetrievalProtocol(tasks=("passkey",), lengths=lengths, text="t", trained_length=512)
    answers: dict[str, dict[Cell, list[list[Answer]]]] = {}
    for (method, length), right in counts.items():
        cell = Cell(task="passkey", length=length)
        of_cell = [[Answer(n < right, n < right, 8, 0.5, length // 2)] for n in range(10)]
        answers.setdefault(method, {})[cell] = of_cell  # type: ignore[assignment]
    return RetrievalMeasurement(protocol=protocol, answers=answers)


def test_the_effective_length_ends_where_the_accuracy_first_falls() -> None:
    """Not at a later length that is good again; None where the shortest is below."""
    counts = {"a": (10, 9, 5, 10), "b": (8, 10, 10, 10), "c": (9, 9, 10, 9)}
    found = measured({(m, 256 * 2**at): right for m, row in counts.items() for at, right in enumerate(row)})
    assert [found.effective_length(name) for name in "abc"] == [512, None, 2048]
    assert found.effective_length("b", threshold=0.8) == 2048
    assert found.details()["effective_length"] == {"threshold": 0.856, "methods": {"a": 512, "b": None, "c": 2048}}


def test_intervals_are_wilson_s() -> None:
    """By his formula, written out (1927; z of 95 %)."""
    z = 1.959963984540054
    for right, n in ((0, 10), (9, 10), (37, 100), (20, 20)):
        middle = (right + z * z / 2) / (n + z * z)
        half = z / (n + z * z) * (right * (n - right) / n + z * z / 4) ** 0.5
        assert Accuracy.independent(right, n, 0.1).interval == pytest.approx((middle - half, middle + half), abs=1e-12)


def test_the_summary_says_reach_and_chance() -> None:
    """One row a method, one column a length; guessing is named."""
    found = measured({("a", 256): 10, ("a", 512): 2, ("b", 256): 3, ("b", 512): 9})
    assert accuracy_rows(found) == (
        ["method", "256", "512"],
        [["a", "1.00 (0.72 to 1.00)", "0.20 (0.06 to 0.51)"], ["b", "0.30 (0.11 to 0.60)", "0.90 (0.60 to 0.98)"]],
    )
    assert list(sentences(found)) == [
        "Guessing finds 12.5%.",
        "a finds 85.6% or more up to 256 tokens; calibrated 0.20 (0.06 to 0.51) and raw 0.20 (0.06 to 0.51) at 512, "
        "not distinguishable from guessing.",
        "b finds 85.6% or more at no measured length; calibrated 0.90 (0.60 to 0.98) "
        "and raw 0.90 (0.60 to 0.98) at 512.",
    ]


def test_the_protocol_says_what_was_done() -> None:
    """Texts, lengths, seed, chance and the frame."""
    said = RetrievalProtocol(tasks=("numbers",), lengths=(512, 4096), text="t", chat=True).to_json()["sentence"]
    for part in ("seed 0", "4 texts of at most 512, 4,096 tokens", "spread evenly", "chat template",
                 "minus the candidate", "resampling", "Wilson"):  # fmt: skip
        assert part in said


def test_the_tasks_that_fit() -> None:
    """The longer the text, the more of them."""
    assert fitting_tasks(tokenizer(), 600, text=TEXT) == ("numbers",)
    assert fitting_tasks(tokenizer(), 4000, text=TEXT) == TASKS


def test_crop_reads_the_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tokens of the very texts that the others read, room for question and answer kept."""
    seen: list[QuestionSet] = []

    def log_probs(reader: Any, asked: QuestionSet, **more: Any) -> list[list[float]]:
        seen.append(asked)
        return [[-float(n) for n in question.candidates] for question in asked.questions]

    monkeypatch.setattr(module, "candidate_log_probs", log_probs)
    run({"plain": reader(), "crop": reader()}, crop={"crop": 300}, tasks=["numbers"])
    whole, ends = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert whole
    for one, end in zip(whole, ends, strict=True):
        assert end.tokens == 300
        assert end.input_ids == one.input_ids[-len(end.input_ids) :]
        assert end.questions == one.questions
    assert whole[0].cropped(10_000) == whole[0]


def test_many_questions_are_asked_of_one_text(tmp_path: Path) -> None:
    """Nothing replaced: one prefill for each text, a cluster of answers, kept and taken up by the shortest length."""
    model = reader()
    found = run({"plain": model}, tasks=["numbers"], lengths=[560, 640], state=tmp_path)
    rows = found.rows()
    assert [(row["length"], row["asked"], row["texts"], row["chance"]) for row in rows] == [
        (560, 8, 2, 0.25), (640, 8, 2, 0.25),
    ]  # fmt: skip
    assert all(row["depths"] == (0.0, 1.0) and row["interval"] is not None for row in rows)
    one = run({"plain": model}, tasks=["numbers"], lengths=[560, 640], samples=1)
    assert [row["interval"] for row in one.rows()] == [None, None]
    assert "gives no interval" in " ".join(sentences(one))
    shown = Recorder()
    again = run({"plain": model}, tasks=["numbers"], lengths=[560, 640], state=tmp_path, resume=True, progress=shown)
    assert (lasting(again), shown.begun) == (lasting(found), [])
    assert again.seconds == found.seconds
    # with another shortest length a question may have other candidates
    run({"plain": model}, tasks=["numbers"], lengths=[640], state=tmp_path, resume=True, progress=shown)
    assert shown.begun == [f"[{number}/2] plain: numbers, 640 tokens, text {number} of 2" for number in (1, 2)]


def test_some_methods_may_be_asked_alone() -> None:
    """Of a run that was prepared for more; what they answer is what they answer in the whole run."""
    protocol = RetrievalProtocol(tasks=("numbers",), lengths=(560,), samples=1, text=TEXT[0])
    readers = {"one": reader(), "two": reader(initializer_range=0.2)}
    given: dict[str, Any] = {"crop": {}, "state": None, "resume": False}
    whole = RetrievalRun.prepare(protocol, readers, tokenizer(), TEXT[1], **given).measure()
    prepared = RetrievalRun.prepare(protocol, readers, tokenizer(), TEXT[1], **given)
    part = prepared.measure(methods=["two"])
    assert part.methods == ("two",)
    assert cells_of(part, "two") == cells_of(whole, "two")
    assert {job.method for job in prepared.due()} == {"one"}


def test_answers_are_kept_and_paired_with_crop() -> None:
    """Each answer of each text is in the details; the share found more than crop is paired by question."""
    found = measured({("yarn", 512): 9, ("crop", 512): 4})
    details = found.details()
    kept = {(row["method"], row["length"]): row["texts"] for row in details["answers"]}
    assert details["answer_fields"] == ["found", "raw", "choices", "depth", "distance"]
    assert [text[0][0] for text in kept["crop", 512]] == [True] * 4 + [False] * 6
    assert kept["yarn", 512][0] == [[True, True, 8, 0.5, 256]]
    [row] = details["more_than_crop"]
    assert (row["method"], row["asked"], row["difference"]) == ("yarn", 10, 0.5)
    low, high = row["interval"]
    assert 0 < low < 0.5 < high < 1
    assert measured({("yarn", 512): 9}).details()["more_than_crop"] == []
    same = measured({("yarn", 512): 9, ("crop", 512): 9}).more_than("yarn", "crop", length=512, task="passkey")
    assert same is not None
    assert same.interval is not None
    assert same.interval[0] < -0.1 < 0.1 < same.interval[1]  # equal answers do not make an interval of width 0
    assert all("found_raw" in one for one in details["by_distance"])
