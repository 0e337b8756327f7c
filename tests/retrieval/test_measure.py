"""The run: every text once, the same for all methods; stopped and resumed; summed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from ropewalk.checkpoints.tokenizer import byte_alphabet
from ropewalk.errors import RopeError
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.reader import Reader
from ropewalk.retrieval import measure, scoring
from ropewalk.retrieval.example import Example
from ropewalk.retrieval.measure import RetrievalRun, fitting_tasks, measure_retrieval
from ropewalk.retrieval.protocol import Cell, RetrievalProtocol
from ropewalk.retrieval.questions import QuestionSet
from ropewalk.retrieval.result import Accuracy, RetrievalMeasurement
from ropewalk.retrieval.scoring import Answer
from ropewalk.retrieval.summary import accuracy_rows, sentences
from ropewalk.retrieval.tasks import TASKS
from tests.diagnosis.small_runs import Recorder
from tests.retrieval.material import TEXT, decoder, tokenizer

GIVEN: dict[str, Any] = {
    "tasks": ["passkey", "cwe"], "lengths": [560, 640], "depths": [0.0, 1.0], "samples": 2, "text": TEXT, "form": "one",
}  # fmt: skip


def reader(**changes: Any) -> Reader:
    """A small random model."""
    return reader_of(decoder(**changes))


def run(methods: dict[str, Reader] | None = None, **changes: Any) -> RetrievalMeasurement:
    """Two tasks, one with a depth, at two lengths."""
    return measure_retrieval(methods or {"plain": reader()}, tokenizer(), **{**GIVEN, **changes})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Example]:
    """Every example that is scored; those whose answer's ids have an even sum are found."""
    seen: list[Example] = []

    def scored(asked_of: Reader, kit: Any, example: Example, *, advance: Any = None, **more: Any) -> list[Answer]:
        if advance is not None:
            advance(len(example.input_ids))
        seen.append(example)
        found = sum(example.answer_ids) % 2 == 0
        [wanted] = QuestionSet.of(example).questions[0].wanted
        return [Answer(found, found, len(example.choices), wanted.depth, wanted.distance)]

    monkeypatch.setattr(measure, "score", scored)
    return seen


def cells_of(found: RetrievalMeasurement, method: str = "plain") -> dict[Cell, list[list[bool]]]:
    """What was found, text by text."""
    return {
        cell: [[one.found for one in answers] for answers in texts] for cell, texts in found.answers[method].items()
    }


def lasting(found: RetrievalMeasurement) -> tuple[Any, ...]:
    """All numbers but times."""
    return found.rows(), {name: value for name, value in found.details().items() if name != "seconds"}


def test_every_cell_has_its_examples(asked: list[Example]) -> None:
    """A task without depth as many as all depths together; the numbers in JSON are those of the answers."""
    found = run()
    rows = found.rows()
    assert [(row["task"], row["length"], row["depth"], row["asked"]) for row in rows] == [
        ("passkey", 560, 0.5, 4), ("passkey", 640, 0.5, 4), ("cwe", 560, None, 4), ("cwe", 640, None, 4),
    ]  # fmt: skip
    depths = [one.depth for cell, texts in found.answers["plain"].items() for answers in texts for one in answers]
    assert depths == [0.0, 0.0, 1.0, 1.0, None, None, None, None] * 2
    assert len(asked) == 16 == len({example.input_ids for example in asked})
    assert sum(row["found"] for row in rows) == sum(sum(example.answer_ids) % 2 == 0 for example in asked)
    json.dumps([found.rows(), found.details()], allow_nan=False)


def test_methods_are_asked_the_same(asked: list[Example]) -> None:
    """The same examples in the same order, one method after the other."""
    found = run({"one": reader(), "two": reader()})
    assert asked[:16] == asked[16:]
    assert found.methods == ("one", "two")
    assert found.accuracy("one") == found.accuracy("two")


def test_the_model_itself_is_asked() -> None:
    """Nothing replaced: outcomes are there, in words as well, and a broken model is named."""
    found = run(samples=1)
    assert found.accuracy("plain").n == 8  # type: ignore[union-attr]
    words = run(samples=1, scoring="generate", lengths=[560])
    assert words.accuracy("plain") == Accuracy.independent(0, 4, 0.0)
    broken = decoder()
    with torch.no_grad():
        broken.norm.weight.fill_(float("nan"))
    with pytest.raises(RopeError, match="not a number"):
        run({"plain": reader_of(broken)}, samples=1)


class _Interrupt(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("stop_at", [1, 3, 7, 16, 17, 30])
def test_a_stopped_run_resumes_to_the_same_numbers(tmp_path: Path, asked: list[Example], stop_at: int) -> None:
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
    assert len(asked) == 32
    assert lasting(found) == lasting(whole)
    numbers = [step.split("] ")[0] for step in shown.begun]
    assert numbers == [f"[{number}/{len(numbers)}" for number in range(1, len(numbers) + 1)]
    examples = [int(step.rpartition("(")[2].split()[0]) for step in shown.begun]
    lengths = [int(step.partition(", ")[2].split()[0]) for step in shown.begun]
    assert sum(examples) == 32 - stop_at
    assert shown.expected == sum(count * length for count, length in zip(examples, lengths, strict=True))
    assert list((tmp_path / "leases").iterdir()) == []


def test_a_resumed_run_may_ask_for_more(tmp_path: Path, asked: list[Example]) -> None:
    """More samples, lengths, tasks and methods: only what is missing is asked; fewer are taken from what is there."""
    path = tmp_path / "state"
    first = run(state=path, lengths=[560], tasks=["passkey"])
    del asked[:]
    more = run({"plain": reader(), "two": reader()}, state=path, resume=True, samples=3)
    assert len(asked) == 2 * 24 - 4
    for cell, outcome in cells_of(first).items():
        wider = Cell(task=cell.task, length=cell.length, depth=cell.depth, examples=3)
        assert cells_of(more)[wider][:2] == outcome
    del asked[:]
    assert lasting(run(state=path, resume=True, lengths=[560], tasks=["passkey"])) == lasting(first)
    assert asked == []


def test_a_state_of_another_run_is_refused(tmp_path: Path, asked: list[Example]) -> None:
    """Another seed, text, haystack or scoring; a folder that is something else is not thrown away."""
    path = tmp_path / "state"
    run(state=path)
    for change in ({"seed": 1}, {"text": ("other", TEXT[1] + " More.")}, {"haystack": "text"}, {"scoring": "generate"}):
        with pytest.raises(RopeError, match="results of another job"):
            run(state=path, resume=True, **change)
    (tmp_path / "ledger.json").write_text('{"of": "somebody"}')
    for resume in (True, False):
        with pytest.raises(RopeError, match="holds something else"):
            run(state=tmp_path, resume=resume)


def test_another_model_or_crop_is_another_job(tmp_path: Path, asked: list[Example]) -> None:
    """Under the same method's name: it is measured, and what was there is kept."""
    run(state=tmp_path)
    for change in (
        {"methods": {"plain": reader(initializer_range=0.2)}},
        {"crop": {"plain": 200}},
        {"crop": {"plain": 300}},
    ):
        del asked[:]
        run(state=tmp_path, resume=True, **change)
        assert len(asked) == 16
    del asked[:]
    run(state=tmp_path, resume=True)
    run(state=tmp_path, resume=True, crop={"plain": 200, "another": 300})
    assert asked == []


def test_a_state_of_another_tokenizer_is_refused(tmp_path: Path, asked: list[Example]) -> None:
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
    with pytest.raises(RopeError, match="results of another job"):
        measure_retrieval({"plain": reader()}, other, state=path, resume=True, **GIVEN)


def test_a_run_begun_anew_forgets_the_state(tmp_path: Path, asked: list[Example]) -> None:
    """Without resume."""
    path = tmp_path / "state"
    run(state=path)
    run(state=path)
    assert len(asked) == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": [100, 500]}, "does not fit"),
        ({"lengths": [560, 20_000]}, "too few different words"),
        ({"tasks": []}, "`tasks` must be given"),
        ({"lengths": [500, 500]}, "`lengths` must be given, each once"),
        ({"depths": [1.5]}, "depths from 0 to 1"),
        ({"samples": 0}, "samples are at least 1"),
        ({"scoring": "guess"}, "unknown scoring"),
        ({"form": "some"}, "unknown form"),
        ({"form": "many", "scoring": "generate"}, "answered by choice"),
        ({"form": "one", "chat": True}, "a chat frames many"),
        ({"form": "many", "chat": True}, "no chat template"),
        ({"tasks": ["hay"]}, "unknown task"),
    ],
)
def test_what_cannot_be_measured_is_refused_first(asked: list[Example], change: dict[str, Any], message: str) -> None:
    """Before any model is asked."""
    with pytest.raises(RopeError, match=message):
        run(**change)
    with pytest.raises(RopeError, match="no method"):
        measure_retrieval({}, tokenizer(), lengths=[500], text=TEXT)
    assert asked == []


def measured(counts: dict[tuple[str, int], int]) -> RetrievalMeasurement:
    """Ten passkeys at each length, so many found."""
    lengths = tuple(sorted({length for _, length in counts}))
    protocol = RetrievalProtocol(
        tasks=("passkey",), lengths=lengths, depths=(0.5,), text="t", trained_length=512, form="one"
    )
    answers: dict[str, dict[Cell, list[list[Answer]]]] = {}
    for (method, length), right in counts.items():
        cell = Cell(task="passkey", length=length, depth=0.5, examples=10)
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
        "Chance finds 12.5%.",
        "a finds 85.6% or more up to 256 tokens; 0.20 (0.06 to 0.51) at 512, not distinguishable from guessing.",
        "b finds 85.6% or more at no measured length; 0.90 (0.60 to 0.98) at 512.",
    ]


def test_the_protocol_says_what_was_done() -> None:
    """Scoring, chance, seed and the tasks without a depth."""
    said = measured({("a", 256): 1}).protocol.to_json()["sentence"]
    for part in ("seed 0", "at most 256 tokens", "depths 0.5", "higher log-probability", "as many tokens", "Wilson"):
        assert part in said
    words = RetrievalProtocol(tasks=("vt",), lengths=(512,), text="t", scoring="generate", form="one").sentence()
    assert "greedy completion" in words
    assert "20 for each length of a task without a depth" in words
    many = RetrievalProtocol(tasks=("numbers",), lengths=(512, 4096), text="t", chat=True).sentence()
    for part in (
        "4 texts of at most 512, 4,096 tokens",
        "spread evenly",
        "chat template",
        "less the mean",
        "resampled",
    ):
        assert part in many


def test_the_tasks_that_fit() -> None:
    """The longer the text, the more of them."""
    assert fitting_tasks(tokenizer(), 600, text=TEXT, form="one") == (
        "numbers", "passkey", "niah_single", "niah_multikey", "cwe",
    )  # fmt: skip
    assert fitting_tasks(tokenizer(), 600, text=TEXT) == ("numbers", "niah_single", "niah_multikey", "cwe")
    for form in ("one", "many"):
        assert fitting_tasks(tokenizer(), 4000, text=TEXT, form=form) == TASKS


def test_crop_reads_the_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tokens of the very texts that the others read, room for question and answer kept."""
    seen: list[QuestionSet] = []

    def log_probs(reader: Any, asked: QuestionSet, **more: Any) -> list[list[float]]:
        seen.append(asked)
        return [[-float(n) for n in question.candidates] for question in asked.questions]

    monkeypatch.setattr(scoring, "candidate_log_probs", log_probs)
    for form in ("one", "many"):
        del seen[:]
        run({"plain": reader(), "crop": reader()}, crop={"crop": 300}, form=form, tasks=["numbers"])
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
    found = run({"plain": model}, form="many", tasks=["numbers"], state=tmp_path)
    rows = found.rows()
    assert [(row["length"], row["asked"], row["texts"], row["chance"]) for row in rows] == [
        (560, 8, 2, 0.25), (640, 8, 2, 0.25),
    ]  # fmt: skip
    assert all(row["depths"] == (0.0, 1.0) and row["interval"] is not None for row in rows)
    one = run({"plain": model}, form="many", tasks=["numbers"], samples=1)
    assert [row["interval"] for row in one.rows()] == [None, None]
    assert "gives no interval" in " ".join(sentences(one))
    shown = Recorder()
    again = run({"plain": model}, form="many", tasks=["numbers"], state=tmp_path, resume=True, progress=shown)
    assert (lasting(again), shown.begun) == (lasting(found), [])
    assert again.seconds == found.seconds
    # with another shortest length a question may have other candidates
    run({"plain": model}, form="many", tasks=["numbers"], lengths=[640], state=tmp_path, resume=True, progress=shown)
    assert shown.begun == ["[1/1] plain: numbers, 640 tokens (2 texts)"]


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
    assert {job.method for job in prepared.due} == {"one"}
