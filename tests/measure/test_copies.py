"""Copies: questions after a part of a window, where their spans lie, what a known reader gains, and the intervals."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from ropewalk.errors import RopeError
from ropewalk.measure.copies import (
    COST,
    LEAST_GAIN,
    LONG_TARGET,
    SHARE_OF_READING,
    SKIPPED,
    Answers,
    CopyMeasurement,
    SpanDesign,
    WindowSpans,
    combined,
    gather_copies,
)
from ropewalk.measure.losses import run
from ropewalk.measure.plan import LossProtocol, plan
from ropewalk.models.decoder import Decoder
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.loading import as_transformers
from ropewalk.readers.reader import Reader
from ropewalk.readers.transformers import TransformersReader
from ropewalk.report.record import CopiesEntry, _mismatches
from ropewalk.rope.config import RopeConfig
from tests.diagnosis.models import tiny_decoder
from tests.diagnosis.small_runs import Recorder, ledger_at

TRAINED, TARGET = 128, 400
LONGER = RopeConfig(8, interleaved=False, max_position_embeddings=TRAINED)


def protocol_of(trained: int = TRAINED, target: int = TARGET, windows: int = 1, **others: Any) -> LossProtocol:
    """A protocol of one text."""
    return LossProtocol.choose(trained_length=trained, target=target, text="t", windows=windows, **others)


def designed(protocol: LossProtocol) -> SpanDesign:
    """Its questions."""
    design = SpanDesign.choose(protocol)
    assert design is not None
    return design


def ids_of(tokens: int, seed: int = 0, vocab: int = 50) -> list[int]:
    """Random tokens."""
    found: list[int] = np.random.default_rng(seed).integers(0, vocab, tokens).tolist()
    return found


def drawn(protocol: LossProtocol, count: int, seed: int = 0) -> tuple[list[list[int]], tuple[WindowSpans, ...]]:
    """Windows of random tokens, and their spans."""
    windows = [ids_of(protocol.target, 100 + number) for number in range(count)]
    design, elsewhere = designed(protocol), [ids_of(2000, 999)]
    spans = tuple(
        WindowSpans.draw(design, window, elsewhere, seed=(seed, number)) for number, window in enumerate(windows)
    )
    return windows, spans


def live_reader() -> Reader:
    """A small random Llama of transformers."""
    pytest.importorskip("transformers")
    from ropewalk.checkpoints.tokenizer import TextTokenizer
    from ropewalk.readers.transformers import TransformersReader
    from tests.readers.random_models import random_model

    model = random_model("llama", max_position_embeddings=TRAINED)
    return TransformersReader(model, TextTokenizer.bytes(), "llama")


READERS: dict[str, Callable[[], Reader]] = {
    "decoder": lambda: reader_of(tiny_decoder(LONGER)),
    "transformers": live_reader,
}


# The design


@pytest.mark.parametrize("trained", [64, 256, 300, 8192])
@pytest.mark.parametrize("times", [1.01, 1.1, 1.5, 2, 2.7, 4, 16])
def test_designs_of_any_length(trained: int, times: float) -> None:
    """Each has spans at the trained length and at the end of each stretch, all inside the tokens read so far.

    Under every method but plain they cost at most 15 % of a long reading; plain has its control besides.
    """
    protocol = protocol_of(trained, int(times * trained))
    design = SpanDesign.choose(protocol)
    if design is None:
        lengths = np.diff([trained, *protocol.stretch_ends])
        shortest = 32 if protocol.target >= LONG_TARGET else 16
        assert trained < 8 * shortest or not len(lengths) or min(lengths) < 2 * shortest
        return
    assert design.control.length == trained
    assert tuple(stop.length for stop in design.stops) == protocol.stretch_ends
    for stop in (design.control, *design.stops):
        assert stop.ranges
        for part in stop.ranges:
            assert design.span <= part.start < part.stop <= stop.length - design.span - SKIPPED
            assert part.count >= 1
        assert sum(part.count for part in stop.ranges) >= 2
    ends = (trained, *protocol.stretch_ends)
    for number, stop in enumerate(design.stops):
        assert stop.ranges[-1].start == ends[number]  # further back than any stop before
        assert stop.ranges[-1].count >= 2
    assert design.unread >= 2
    assert 0 < design.cue < design.span
    if protocol.target >= LONG_TARGET:
        assert COST[True] * design.tokens <= SHARE_OF_READING * protocol.target
    window = ids_of(protocol.target)
    spans = WindowSpans.draw(design, window, [ids_of(4000, 1)], seed=(0, 0))
    assert design.tokens == design.span * sum(len(spans.read[stop.length]) + len(spans.unread) for stop in design.stops)


@pytest.mark.parametrize(("trained", "target"), [(256, 1024), (300, 733), (8192, 20_000)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_spans_lie_where_their_distance_says(trained: int, target: int, seed: int) -> None:
    """Tokens of the window, so far before the question as is said, inside their range and never the first ones."""
    protocol = protocol_of(trained, target)
    design, window = designed(protocol), list(range(target))
    spans = WindowSpans.draw(design, window, [list(range(10**6, 10**6 + 5000))], seed=(seed, 3))
    for stop in (design.control, *design.stops):
        asked_after = stop.length - design.span
        for ids, distance, number in spans.read[stop.length]:
            assert ids == list(range(asked_after - distance, asked_after - distance + design.span))
            assert stop.ranges[number].start <= distance < stop.ranges[number].stop
            assert ids[0] >= SKIPPED
            assert ids[-1] < asked_after  # it has been read
        counts = [sum(of == number for _, _, of in spans.read[stop.length]) for number in range(len(stop.ranges))]
        assert counts == [part.count for part in stop.ranges]
    assert len(spans.unread) == design.unread
    assert all(min(ids) >= 10**6 and len(ids) == design.span for ids in spans.unread)
    assert spans.stops("plain") == (trained - design.span, *spans.stops("yarn"))
    again = WindowSpans.draw(design, window, [list(range(10**6, 10**6 + 5000))], seed=(seed, 3))
    assert again == spans


def test_spans_that_were_never_read_come_from_the_first_text_that_suffices() -> None:
    """They do not overlap; texts without room for enough of them are refused."""
    design = designed(protocol_of())
    window, near, far = list(range(TARGET)), list(range(1000, 1020)), list(range(5000, 9000))
    spans = WindowSpans.draw(design, window, [near, far, list(range(10**5, 10**5 + 9000))], seed=(1,))
    assert all(1000 <= ids[0] < 9000 for ids in spans.unread)
    assert len(set(itertools.chain(*spans.unread))) == design.unread * design.span
    with pytest.raises(RopeError, match="too short for spans outside the window"):
        WindowSpans.draw(design, window, [near], seed=(1,))


# Asking


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("chunk", [37, 1024])
def test_asking_changes_no_loss_and_no_cache(kind: str, chunk: int) -> None:
    """Losses are those without questions; the same questions twice at a stop, and after others, have equal answers."""
    reader, ids = READERS[kind](), ids_of(TARGET)
    tensor = torch.tensor(ids)
    questions = [(ids[5:9], [ids[9:21]]), (ids_of(6, 7), [ids_of(10, 8)])]
    answers: dict[int, list[list[list[float]]]] = {}

    def ask(stop: int) -> Callable[[Any], None]:
        def called(prefix: Any) -> None:
            assert prefix.tokens == stop
            answers[stop] = [prefix.ask(questions), prefix.ask(questions[::-1])[::-1]]

        return called

    stops = (40, 112, 111, TARGET - 16)
    asked = reader.window_losses(tensor, chunk=chunk, asking={stop: ask(stop) for stop in stops})
    np.testing.assert_allclose(asked, reader.window_losses(tensor, chunk=chunk), rtol=0, atol=1e-5)
    assert sorted(answers) == sorted(stops)
    for stop in stops:
        fresh = reader.prefix(ids[:stop], seq_len=TARGET).ask(questions)
        for found in answers[stop]:
            np.testing.assert_allclose(found, fresh, rtol=0, atol=1e-4)
    assert abs(np.subtract(answers[40][0], answers[112][0])).min() > 0.1  # the questions do see the window


def test_the_cache_is_bit_for_bit_as_it_was() -> None:
    """Keys and values of every layer, and the number of tokens."""
    reader = reader_of(tiny_decoder(LONGER))
    tensor = torch.tensor(ids_of(TARGET))
    held: list[list[torch.Tensor]] = []

    def copy(prefix: Any) -> list[torch.Tensor]:
        assert prefix.cache.get_seq_length() == 100
        return [part.clone() for layer in prefix.cache.layers for part in (layer.keys, layer.values)]

    def ask(prefix: Any) -> None:
        held.append(copy(prefix))
        prefix.ask([([1, 2, 3], [[4, 5, 6]])] * 100)  # several forwards
        held.append(copy(prefix))

    reader.window_losses(tensor, asking={100: ask})
    assert all(torch.equal(before, after) for before, after in zip(*held, strict=True))


@pytest.mark.parametrize("kind", READERS)
def test_a_run_asks_what_a_prefix_answers(kind: str) -> None:
    """Through `run`: plain is asked at the control as well, crop never; alone is each span after its own cue."""
    protocol = protocol_of(windows=2)
    windows, spans = drawn(protocol, 2)
    reader, ledger = READERS[kind](), ledger_at(None)
    work = plan(reader, protocol, ["yarn", "crop"])
    run(reader, torch.tensor(windows), work, ledger, spans=spans)
    design = designed(protocol)
    for window in range(2):
        plain, yarn, crop = (ledger[work.key(name, window)] for name in ("plain", "yarn", "crop"))
        assert list(plain["asked"]) == [str(stop.length) for stop in (design.control, *design.stops)]
        assert list(yarn["asked"]) == [str(stop.length) for stop in design.stops]
        assert (crop["asked"], list(crop["alone"]), list(yarn["alone"])) == ({}, [], [])
        scored = design.span - design.cue
        stop = design.stops[-1].length
        prefix = reader.under(work.positions["yarn"]).prefix(windows[window][: stop - design.span], seq_len=TARGET)
        of_stop = [*(ids for ids, _, _ in spans[window].read[stop]), *spans[window].unread]
        want = [one / scored for [one] in prefix.ask([(ids[: design.cue], [ids[design.cue :]]) for ids in of_stop])]
        assert yarn["asked"][str(stop)] == pytest.approx(want, abs=1e-4)
        pairs = [(ids[: design.cue], ids[design.cue :]) for ids in spans[window].all]
        alone = [one / scored for one, _ in reader.continuation_log_probs(pairs)]
        assert plain["alone"] == pytest.approx(alone, abs=1e-4)


class _Interrupt(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_answers_do_not_depend_on_what_a_run_was_resumed_from(dtype: torch.dtype, tmp_path: Any) -> None:
    """To the bit, losses and answers: whole, resumed after any job, by two workers.

    dca takes plain's first 128 tokens over, which plain reads with a pause for the control's questions.
    """
    protocol = protocol_of(windows=2)
    windows, spans = drawn(protocol, 2)
    reader = reader_of(tiny_decoder(LONGER).to(dtype))
    work = plan(reader, protocol, ["yarn", "dca", "crop"])

    def measured(ledger: Any, **options: Any) -> dict[str, Any]:
        run(reader, torch.tensor(windows), work, ledger, spans=spans, chunk=32, **options)
        keys = [work.key(name, window) for name in work.methods for window in range(2)]
        return {key: {name: ledger[key][name] for name in ("block_sums", "asked", "alone")} for key in keys}

    whole = measured(ledger_at(tmp_path / "whole"))
    assert len(whole) == 8

    class Stopping(Recorder):
        """Stops before a job."""

        def __init__(self, job: int) -> None:
            super().__init__()
            self.job = job

        def begin(self, description: str, tokens: int) -> None:
            super().begin(description, tokens)
            if len(self.begun) == self.job + 1:
                raise _Interrupt

    for job in (1, 2, 3, 6):
        with pytest.raises(_Interrupt):
            measured(ledger_at(tmp_path / str(job)), progress=Stopping(job))
        ledger = ledger_at(tmp_path / str(job))
        assert len(ledger) == job
        assert measured(ledger) == whole
    assert measured(ledger_at(None), workers=2) == whole


@pytest.mark.parametrize("workers", [1, 2])
def test_until_begins_no_further_job(workers: int) -> None:
    """What has begun is finished and kept; what is left stays due."""
    protocol = protocol_of(windows=3)
    windows, _ = drawn(protocol, 3)
    reader, ledger = reader_of(tiny_decoder(LONGER)), ledger_at(None)
    work = plan(reader, protocol, ["yarn"])
    jobs = work.due(ledger)
    run(reader, torch.tensor(windows), work, ledger, workers=workers, until=lambda: len(ledger) >= 2)
    assert 2 <= len(ledger) <= 1 + workers
    assert [job.key for job in work.due(ledger)] == [job.key for job in jobs if job.key not in ledger]
    run(reader, torch.tensor(windows), work, ledger, until=lambda: True)
    assert len(ledger) < len(jobs)
    run(reader, torch.tensor(windows), work, ledger)
    assert not work.due(ledger)


# Gains of a known model


def known(
    gains: dict[str, Callable[[int, int], float]],
    *,
    windows: int = 1,
    noise: float = 0.0,
    target: int = 1024,
    trained: int = 256,
    texts: Sequence[int] | None = None,
) -> CopyMeasurement:
    """The copies of a model whose answers are those alone, plus a known gain (by length and distance) if it was read.

    Each context costs every prediction something besides, which must cancel; `noise` is of each answer.
    """
    protocol = protocol_of(trained, target, windows)
    _, spans = drawn(protocol, windows)
    random, design = np.random.default_rng(5), designed(protocol)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in gains}
    for one in spans:
        alone = random.normal(-3.0, 1.0, len(one.all)).tolist()
        of_unread, begins, begin = alone[-len(one.unread) :], {}, 0
        for length, of_stop in one.read.items():
            begins[length], begin = begin, begin + len(of_stop)
        for name, gain in gains.items():
            asked = {}
            for stop in design.stops_of(name):
                of_stop, cost = one.read[stop.length], -stop.length / 500
                own = alone[begins[stop.length] : begins[stop.length] + len(of_stop)]
                read = [
                    base + cost + gain(stop.length, back) + random.normal(0, noise)
                    for base, (_, back, _) in zip(own, of_stop, strict=True)
                ]
                asked[str(stop.length)] = read + [base + cost + random.normal(0, noise) for base in of_unread]
            results[name].append({"asked": asked, "alone": alone if name == "plain" else []})
    return gather_copies(protocol, spans, results, texts or (0,) * windows)


def up_to(reach: int, gain: float) -> Callable[[int, int], float]:
    """A gain for what lies at most so far back."""
    return lambda length, back: gain if back <= reach else 0.0


def within(gain: float, beyond: float) -> Callable[[int, int], float]:
    """A gain at the trained length of 256, and another one at longer lengths."""
    return lambda length, back: gain if length <= 256 else beyond


def test_a_known_gain_is_found() -> None:
    """Exactly, whatever a span costs alone, and whatever the length costs every prediction."""
    found = known({"plain": within(3.0, 0.0), "far": up_to(10**9, 2.0), "some": up_to(512, 2.5)})
    control = found.control()
    assert control is not None
    assert control[0] == pytest.approx(3.0)
    assert found.bound == pytest.approx(1.0)
    assert found.can_copy
    assert [found.copies("far", stretch) for stretch in range(3)] == ["shown"] * 3
    assert [found.copies("plain", stretch) for stretch in range(3)] == ["refuted"] * 3
    assert [found.copies("some", stretch) for stretch in range(3)] == ["shown", "refuted", "refuted"]
    assert (found.reach("far"), found.reach("some"), found.reach("plain")) == (1024, 512, None)
    for name, near in (("plain", -3.0), ("far", -1.0), ("some", -0.5)):
        apart = found.near(name)
        assert apart is not None
        assert apart[0] == pytest.approx(near)
    beyond = found.beyond_bound("far", 2)
    assert beyond is not None
    assert beyond[0] == pytest.approx(2.0 - 1.0)
    for row in found.rows():
        want = {
            "plain": 3.0 if row.length == 256 else 0.0, "far": 2.0, "some": 2.5 if row.stop <= 512 else 0.0
        }[row.method]  # fmt: skip
        assert row.gain == pytest.approx(want)
        assert row.start <= row.distance < row.stop
        assert row.decides == (row.start >= 256 and row == [
            one for one in found.rows() if (one.method, one.length) == (row.method, row.length)
        ][-1])  # fmt: skip
    (first, *lines) = found.sentences()
    assert "gains 3.00" in first
    assert lines[0] == (
        "plain does not copy tokens more than 256 back, and copies nearer tokens less well than the model does within "
        "256 tokens (by 3.00 nats per token)."
    )
    assert "far copies tokens up to 1,024 back" in lines[1]
    assert "some copies tokens up to 512 back; at 768 it does not" in lines[2]


def test_a_gap_ends_the_reach() -> None:
    """What is copied at the last length only, after one at which it is not, does not count."""
    found = known({"plain": within(3.0, 0.0), "late": lambda length, back: 3.0 if length == 1024 else 0.0})
    assert [found.copies("late", stretch) for stretch in range(3)] == ["refuted", "refuted", "shown"]
    assert found.reach("late") is None


def test_a_method_that_was_given_up_has_its_windows() -> None:
    """Comparisons take as many of plain's windows as the method has."""
    whole = known({"plain": within(3.0, 0.0), "far": up_to(10**9, 2.0)}, windows=4, noise=0.3)
    shorter = dataclasses.replace(whole, answers={**whole.answers, "far": whole.answers["far"][:2]})
    first = dataclasses.replace(whole, answers={name: answers[:2] for name, answers in whole.answers.items()})
    assert shorter.beyond_bound("far", 1) == first.beyond_bound("far", 1)
    assert {row.windows for row in shorter.rows() if row.method == "far"} == {2}


@pytest.mark.parametrize("gain", [0.0, 0.5 * LEAST_GAIN, -1.0])
def test_a_model_that_cannot_copy_says_nothing(gain: float) -> None:
    """No bound, and every result is open, whatever the methods do."""
    found = known({"plain": within(gain, 0.0), "far": up_to(10**9, 2.0)}, windows=2, noise=0.05)
    assert not found.can_copy
    assert (found.bound, found.near("far"), found.beyond_bound("far", 0)) == (None, None, None)
    assert [found.copies(name, stretch) for name in ("plain", "far") for stretch in range(3)] == ["open"] * 6
    assert found.reach("far") is None
    assert {row.result for row in found.rows()} == {"open"}
    assert found.sentences() == [found.sentences()[0]]
    assert "too small or too uncertain" in found.sentences()[0]
    assert found.copies("absent", 0) == "open"


def test_noise_leaves_it_open() -> None:
    """A gain near the bound is neither shown nor refuted by one window."""
    found = known({"plain": within(3.0, 0.0), "near": up_to(10**9, 1.05)}, noise=0.4)
    assert found.can_copy
    assert found.copies("near", 2) == "open"
    beyond = found.beyond_bound("near", 2)
    assert beyond is not None
    assert beyond[1] is not None
    assert beyond[1][0] < 0.05 < beyond[1][1]


def test_texts_are_wider_than_windows() -> None:
    """Two texts with two windows each are two units."""
    found = known({"plain": within(3.0, 0.0), "far": up_to(10**9, 2.0)}, windows=4, noise=0.5, texts=(0, 1, 0, 1))
    rows = [Answers({256: [1.0, 1.1], 1024: [value, value + 0.1]}, {256: [0.0, 0.1], 1024: [0.0, 0.1]}) for value in
            (0.0, 4.0, 0.0, 4.0)]  # fmt: skip
    values = [[(1.0, one.read[1024]), (-1.0, one.unread[1024])] for one in rows]
    _, of_windows = combined(values, (0, 0, 0, 0))
    _, of_texts = combined(values, (0, 1, 0, 1))
    assert of_windows is not None
    assert of_texts is not None
    assert of_texts[1] - of_texts[0] > 1.1 * (of_windows[1] - of_windows[0])
    assert found.over_texts().beyond_bound("far", 2) != found.beyond_bound("far", 2)


def test_lengths_without_spans() -> None:
    """A note says why; nothing else is known."""
    for protocol, why in (
        (protocol_of(256, 200), "the target lies within the trained length"),
        (protocol_of(256, 270), "too short for the spans"),
    ):
        assert SpanDesign.choose(protocol) is None
        found = gather_copies(protocol, (), {"plain": [{}]}, (0,))
        assert (found.control(), found.bound, found.rows(), found.methods) == (None, None, [], ())
        assert found.copies("plain", 0) == "open"
        assert found.reach("plain") is None
        (sentence,) = found.sentences()
        assert why in sentence
        assert not list(_mismatches(json.loads(json.dumps(found.to_json())), CopiesEntry, ""))


def test_the_record_has_its_types() -> None:
    """After a journey through JSON; every answer is kept, one by one."""
    found = known({"plain": within(3.0, 0.0), "far": up_to(10**9, 2.0)}, windows=2, noise=0.2)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert not list(_mismatches(document, CopiesEntry, ""))
    assert document["control"]["windows"] == 2
    assert document["control"]["spans"] == 2 * len(found.ranges[256])
    assert document["bound"] == found.bound
    assert len(document["rows"]) == len(found.rows())
    assert {row["result"] for row in document["rows"] if row["method"] == "far" and row["decides"]} == {"shown"}
    design = found.design
    assert design is not None
    asked = {"plain": (design.control, *design.stops), "far": design.stops}
    assert len(document["spans"]) == 2 * sum(
        design.unread + sum(part.count for part in stop.ranges) for stops in asked.values() for stop in stops
    )
    wrong = {**document, "rows": [{**document["rows"][0], "gain": "much"}]}
    assert list(_mismatches(wrong, CopiesEntry, ""))  # the check can fail


def test_reached_through_a_reader() -> None:
    """The whole way with a model that copies: `run`, the ledger, `gather_copies`; tokens are really seen."""
    protocol = protocol_of(windows=2)
    windows, spans = drawn(protocol, 2)
    reader = Copier(tiny_decoder(LONGER), windows, reach=200)
    work, ledger = plan(reader, protocol, ["yarn"]), ledger_at(None)
    run(reader, torch.tensor(windows), work, ledger, spans=spans)
    results = {name: [ledger[work.key(name, number)] for number in range(2)] for name in ("plain", "yarn")}
    found = gather_copies(protocol, spans, results, (0, 0))
    control = found.control()
    assert control is not None
    assert control[0] == pytest.approx(2.0)
    for row in found.rows():
        distances = [
            back
            for one in found.distances
            for back, number in zip(one[row.length], found.ranges[row.length], strict=True)
            if found.design is not None
            and number == [part.start for part in _stop(found.design, row.length).ranges].index(row.start)
        ]  # fmt: skip
        assert row.gain == pytest.approx(2.0 * np.mean([back <= 200 for back in distances]))
    assert found.copies("yarn", 2) == "refuted"


def _stop(design: SpanDesign, length: int) -> Any:
    """The stop at a length."""
    return next(stop for stop in (design.control, *design.stops) if stop.length == length)


class Copier(TransformersReader):
    """A reader whose answers are -5 for a token, and -3 for those of spans that it has read at most `reach` back."""

    def __init__(self, model: Decoder, windows: Sequence[Sequence[int]], reach: int) -> None:
        super().__init__(*as_transformers(model), "copier")
        self.windows, self.reach = windows, reach

    def continuation_log_probs(self, pairs: Any, **options: Any) -> Any:
        """The same for every span alone."""
        return [(-5.0 * len(continuation), False) for _, continuation in pairs]

    def window_losses(self, input_ids: Any, *, asking: Any = None, **options: Any) -> Any:
        """Real losses, made-up answers."""
        for stop, ask in (asking or {}).items():
            ask(Told(input_ids[:stop].tolist(), self.reach))
        return super().window_losses(input_ids, **options)


class Told:
    """A prefix that finds a span in its own tokens."""

    def __init__(self, ids: list[int], reach: int) -> None:
        self.ids, self.reach = ids, reach

    def ask(self, questions: Any) -> list[list[float]]:
        """Answer by looking."""
        return [[self._answer([*cue, *rest], len(rest))] for cue, [rest] in questions]

    def _answer(self, span: list[int], count: int) -> float:
        starts = range(max(0, len(self.ids) - self.reach), len(self.ids) - len(span) + 1)
        seen = any(self.ids[start : start + len(span)] == span for start in starts)
        return (-3.0 if seen else -5.0) * count


# The interval


def oracle(windows: Any, texts: Sequence[int], confidence: float) -> tuple[float, float]:
    """The mean and the half-width, written once more with numpy arrays: [window][kind][span] of equal numbers."""
    factors = np.array([[factor for factor, _ in window] for window in windows])
    by_kind = [np.array([window[kind][1] for window in windows]) for kind in range(factors.shape[1])]
    value = sum(factors[:, kind] * by_kind[kind].mean(1) for kind in range(len(by_kind)))
    pooled = np.array([np.mean(np.var(values, axis=1, ddof=1)) for values in by_kind])
    degrees = sum(values.size - len(values) for values in by_kind)
    sampling = sum(factors[:, kind] ** 2 * pooled[kind] / by_kind[kind].shape[1] for kind in range(len(by_kind)))
    groups = np.unique(texts, return_inverse=True)[1] if len(set(texts)) > 1 else np.arange(len(texts))
    units = np.array([value[groups == group].mean() for group in range(groups.max() + 1)])
    own = np.array(
        [sampling[groups == group].sum() / (groups == group).sum() ** 2 for group in range(groups.max() + 1)]
    )
    count, prior = len(units), min(8, degrees) if len(units) < 16 else 0
    between = np.var(units, ddof=1) if count > 1 else 0.0
    variance = (prior * 1.25**2 * own.mean() + (count - 1) * between) / (prior + count - 1)
    quantile = student.ppf(1 - (1 - confidence) / 2, prior + count - 1)
    return float(units.mean()), float(quantile * np.sqrt(variance / count))


SHAPES = st.tuples(st.integers(1, 18), st.lists(st.integers(2, 5), min_size=1, max_size=4), st.integers(1, 3))


@st.composite
def samples(draw: Any) -> tuple[list[list[tuple[float, list[float]]]], list[int]]:
    """Windows with the same kinds of samples, and the text of each."""
    count, sizes, several = draw(SHAPES)
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    factors = random.normal(size=len(sizes)).tolist()
    windows = [
        [(factor, random.normal(1.0, 2.0, size).tolist()) for factor, size in zip(factors, sizes, strict=True)]
        for _ in range(count)
    ]
    return windows, [number % several for number in range(count)]


@given(samples(), st.sampled_from([0.9, 0.95, 0.98]))
def test_combined_is_the_moderated_t(given_samples: Any, confidence: float) -> None:
    """As an independent computation with arrays has it, and symmetric."""
    windows, texts = given_samples
    mean, interval = combined(windows, texts, confidence=confidence)
    assert interval is not None
    want, half = oracle(windows, texts, confidence)
    assert mean == pytest.approx(want)
    assert interval == pytest.approx((want - half, want + half))


@given(samples(), st.floats(0.01, 100), st.floats(-50, 50), st.integers(0, 10**6))
def test_combined_follows_scale_shift_and_order(given_samples: Any, scale: float, shift: float, seed: int) -> None:
    """Of values and of factors; a shift of all values moves the mean by the factors' sum; no order matters."""
    windows, texts = given_samples
    mean, interval = combined(windows, texts)
    assert interval is not None
    half = (interval[1] - interval[0]) / 2
    for larger in (
        [[(factor, [scale * value for value in values]) for factor, values in window] for window in windows],
        [[(scale * factor, values) for factor, values in window] for window in windows],
    ):
        found, ends = combined(larger, texts)
        assert ends is not None
        assert found == pytest.approx(scale * mean, abs=1e-9 * scale)
        assert ends[1] - ends[0] == pytest.approx(2 * scale * half, rel=1e-6)
    moved = [[(factor, [value + shift for value in values]) for factor, values in window] for window in windows]
    found, ends = combined(moved, texts)
    assert ends is not None
    assert found == pytest.approx(mean + shift * sum(factor for factor, _ in windows[0]), abs=1e-9)
    assert ends[1] - ends[0] == pytest.approx(2 * half, rel=1e-6)
    random = np.random.default_rng(seed)
    order = random.permutation(len(windows))
    shuffled = [[(factor, random.permutation(values).tolist()) for factor, values in windows[at]] for at in order]
    found, ends = combined(shuffled, [texts[at] for at in order])
    assert ends is not None
    assert found == pytest.approx(mean, abs=1e-9)
    assert ends[1] - ends[0] == pytest.approx(2 * half, rel=1e-6)


def test_single_spans_show_no_deviation() -> None:
    """One span in each window has none of its own; many windows have theirs."""
    assert combined([[(1.0, [2.0])]], [0]) == (2.0, None)
    values = np.random.default_rng(0).normal(size=16)
    mean, interval = combined([[(1.0, [value])] for value in values], [0] * 16)
    half = student.ppf(0.99, 15) * values.std(ddof=1) / 4
    assert interval == pytest.approx((mean - half, mean + half))


@pytest.mark.parametrize("windows", [1, 2, 8])
def test_intervals_cover(windows: int) -> None:
    """Of normal spans whose windows vary by half as much again, 98 % intervals hold in at least 97 of 100 draws."""
    random, held = np.random.default_rng(windows), 0
    for _ in range(1000):
        spans = [random.normal(random.normal(0, 0.75 * math.sqrt(1 / 6 + 1 / 4)), 1.0, 6) for _ in range(windows)]
        rows = [[(1.0, list(values)), (-1.0, list(random.normal(0, 1.0, 4)))] for values in spans]
        _, interval = combined(rows, [0] * windows)
        assert interval is not None
        held += interval[0] < 0 < interval[1]
    assert held >= 965
