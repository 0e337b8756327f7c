"""The exchange test: what is exchanged, which tokens are rare or key, and readers whose gain is known."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import RopeError
from ropewalk.readers.reader import Losses
from ropewalk.use import gather
from ropewalk.use.exchange import exchanged, rare_tokens, shuffled, stretch_start
from ropewalk.use.inputs import Reading, UseText
from ropewalk.use.key_tokens import key_tokens
from ropewalk.use.protocol import ExchangeDesign, UseProtocol
from ropewalk.use.run import UseModel, UseRun
from tests.use.readers import (
    TRAINED,
    WORDS,
    CopyReader,
    byte_tokenizer,
    half_word_tokenizer,
    measured,
    prepared,
    text_of,
)

Ids = st.lists(st.integers(0, 5), min_size=40, max_size=60)


@settings(max_examples=40)
@given(Ids, st.lists(st.integers(0, 5), min_size=60, max_size=60), st.integers(1, 12), st.integers(4, 12))
def test_rare_tokens_are_those_of_a_loop(ids: list[int], other: list[int], scored: int, distance: int) -> None:
    """A token and the one before it: together in the far part, not in the stretch, and not since."""
    design = ExchangeDesign(window=len(ids), scored=scored, distance=distance)
    far, stretch = ids[: design.exchanged], other[-design.exchanged :]
    expected = []
    for token in range(len(ids) - scored, len(ids)):
        pair = ids[token - 1 : token + 1]
        in_far = any(far[at : at + 2] == pair for at in range(len(far) - 1))
        in_stretch = any(stretch[at : at + 2] == pair for at in range(len(stretch) - 1))
        since = any(ids[at : at + 2] == pair for at in range(len(far) - 1, token - 1))
        expected.append(in_far and not in_stretch and not since)
    found = rare_tokens(torch.tensor(ids), design, torch.tensor(other))
    assert found.tolist() == expected


def test_a_rare_token_by_hand() -> None:
    """7 8, 8 3 and 8 2 are far back alone; 3 8 is near as well, 2 1 in the stretch, 0 7 nowhere."""
    ids = torch.tensor([7, 8, 3, 8, 2, 1, 0, 3, 8, 0, 7, 8, 3, 8, 2, 1])
    design = ExchangeDesign(window=16, scored=6, distance=4)
    assert rare_tokens(ids, design, torch.tensor([5, 2, 1, 5, 5, 5])).tolist() == [
        False,
        True,
        True,
        False,
        True,
        False,
    ]


@given(st.integers(20, 300), st.integers(0, 200), st.integers(5, 60), st.integers(1, 60), st.integers(0, 3))
def test_stretches_lie_outside_the_window(tokens: int, start: int, window: int, length: int, seed: int) -> None:
    """Inside the text, beside the window, another window away where there is room; None where nothing fits."""
    if start + window > tokens:
        return
    found = stretch_start(tokens, start, window, length, Random(seed))
    fits = [at for at in range(tokens - length + 1) if at + length <= start or at >= start + window]
    apart = [at for at in fits if at + length <= start - window or at >= start + 2 * window]
    assert (found is None) == (not fits)
    if found is not None:
        assert found in (apart or fits)


def test_windows_are_exchanged_where_they_should_be() -> None:
    """Real, other, shuffled: the same near part and scored tokens; the far part is the text's, another, or mixed."""
    run = prepared(CopyReader(0), shuffled=True)
    inputs, text = run.inputs, run.inputs.texts[0]
    for where, window, distance in (("far", 1024, 256), ("control", 256, 64)):
        design = inputs.exchange(where)  # type: ignore[arg-type]
        assert design == ExchangeDesign(window=window, scored=64, distance=distance)
        for number in range(3):
            start = text.starts[number] + 1024 - window
            real, other, mixed = (
                inputs.ids(Reading(where, "exchange", form), number).tolist()  # type: ignore[arg-type]
                for form in ("real", "other", "shuffled")
            )
            assert real == list(text.tokens[start : start + window])
            kept = distance + 64
            assert real[-kept:] == other[-kept:] == mixed[-kept:]
            assert sorted(mixed[:-kept]) == sorted(real[:-kept])
            assert mixed[:-kept] != real[:-kept] != other[:-kept]
            at = bytes_of(text.tokens).find(bytes_of(other[:-kept]))
            assert at % 4 == 0  # it is a stretch of the same text
            assert not start - 1024 + window - len(other[:-kept]) < at // 4 < start + window


def bytes_of(ids: Any) -> bytes:
    return np.array(ids, dtype="<i4").tobytes()


@pytest.mark.parametrize("reach", [0, 255, 2000])
def test_known_gain_is_found(reach: int) -> None:
    """A reader that gains 3 nats where a pair of tokens occurred at most `reach` before: rare tokens gain that."""
    found = measured(CopyReader(reach, gain=lambda same: 3.0, cue=1), different=120, windows=4)
    [row] = found.of("plain", "exchange-rare")
    assert row.tokens >= 4
    assert row.gain == pytest.approx(3.0 if reach > 1000 else 0.0, abs=1e-5)
    [row] = found.of("plain", "exchange")
    assert (row.distance, row.tokens) == (256, 4 * 64)
    if reach < 256:
        assert (row.gain, row.interval) == (0.0, (0.0, 0.0))
    controls = {row.test: row for row in found.rows if row.control}
    assert controls["exchange"].distance == 64
    assert controls["exchange-rare"].gain == pytest.approx(3.0 if reach else 0.0, abs=1e-5)


def test_all_tokens_gain_what_a_loop_says() -> None:
    """The mean over all scored tokens, from the readings themselves."""
    reader = CopyReader(2000, cue=1)
    run = prepared(reader, different=120)
    found = run.measure({"plain": UseModel(reader)}, workers=1)
    apart = []
    for window in range(3):
        real, other = (run.inputs.ids(Reading("far", "exchange", form), window) for form in ("real", "other"))
        apart += [reader.window_losses(other)[-64:] - reader.window_losses(real)[-64:]]
    [row] = found.of("plain", "exchange")
    assert row.gain == pytest.approx(float(np.mean(apart)), abs=1e-5)


def test_crop_gains_nothing_from_what_it_never_sees() -> None:
    """Everything beyond the trained length is out of crop's sight: exactly 0."""
    found = measured(CopyReader(2000, cue=1), different=120, stride=TRAINED // 4)
    [row] = found.of("crop", "exchange")
    assert (row.gain, row.interval) == (0.0, (0.0, 0.0))


def test_shuffling_only_describes() -> None:
    """It has its row, and no part in what is concluded."""
    found = measured(CopyReader(2000, cue=1), different=120, shuffled=True)
    [row] = found.of("plain", "shuffled")
    assert row.tokens == 3 * 64
    assert "shuffled" not in found.controls


def test_windows_weigh_by_their_tokens() -> None:
    """The ratio of the sums, and a spread about it; windows without such tokens add nothing to either sum."""
    values = gather.ratio_values([4.0, 0.0, 2.0], [2, 0, 1])
    assert values is not None
    assert np.mean(values) == pytest.approx(6.0 / 3)
    assert np.ptp(values) == pytest.approx(0.0)
    assert gather.ratio_values([0.0], [0]) is None


class Evaluator(CopyReader):
    """Knows a token where the same one occurred in what it reads: 0.5 nats, else 5."""

    def __init__(self, tokenizer: Any = None, label: str = "evaluator") -> None:
        super().__init__(0, tokenizer=tokenizer, label=label)

    def window_losses(self, input_ids: Any, *, first: int = 1, **more: Any) -> Losses:
        ids = input_ids.tolist()
        self.read.append(ids)
        return np.array([0.5 if ids[at] in ids[:at] else 5.0 for at in range(first, len(ids))])


DESIGN = ExchangeDesign(window=12, scored=4, distance=3)  # five tokens are far
SENTENCE = [WORDS[number] for number in (0, 1, 2, 3, 4, 5, 6, 7, 2, 6, 9, 4)]
EXPECTED = [True, False, False, True]  # words 2 and 4 occur far back alone, 6 near, 9 nowhere


def spans_of_words(words: list[str]) -> list[tuple[int, int]]:
    """The characters of each word in a text with single spaces."""
    ends = np.cumsum([len(word) + 1 for word in words])
    return [(int(end) - len(word) - 1, int(end) - 1) for word, end in zip(words, ends, strict=True)]


def test_key_tokens_with_the_same_tokenizer() -> None:
    """A token is key where the evaluator needs the far part: read whole, and without it."""
    evaluator = Evaluator()
    ids = [WORDS.index(word) for word in SENTENCE]
    text, spans = " ".join(SENTENCE), spans_of_words(SENTENCE)
    found = key_tokens(evaluator, DESIGN, text=text, spans=spans, input_ids=ids)  # type: ignore[arg-type]
    assert found.tolist() == EXPECTED
    assert evaluator.read == [ids, ids[5:]]


def test_key_tokens_with_another_tokenizer() -> None:
    """The evaluator has a token for each half of a word: a word is key where either half of it is."""
    evaluator = Evaluator(half_word_tokenizer())
    spans = spans_of_words(SENTENCE)
    found = key_tokens(evaluator, DESIGN, text=" ".join(SENTENCE), spans=spans)  # type: ignore[arg-type]
    ids = half_word_tokenizer().encode(" ".join(SENTENCE))
    full, short = ids, ids[10:]  # five words of two halves are far
    assert evaluator.read == [full, short]
    expected = []
    for word in range(8, 12):
        parts = (2 * word, 2 * word + 1)
        expected.append(any(ids[at] in full[:at] and ids[at] not in short[: at - 10] for at in parts))
    assert found.tolist() == expected
    assert expected != [True] * 4


def test_a_whole_run_has_its_row_of_key_tokens() -> None:
    """The evaluator chooses in each window and control; without one the row is absent, and a sentence says why."""
    reader = CopyReader(2000, cue=1)
    evaluator = Evaluator()
    run = prepared(reader, different=120, evaluator=evaluator)
    found = run.measure({"plain": UseModel(reader)}, workers=1)
    [row] = found.of("plain", "exchange-key")
    expected = 0
    for window in range(3):
        ids = run.inputs.real("far", window).tolist()
        expected += sum(ids[at] in ids[:at] and ids[at] not in ids[704:at] for at in range(960, 1024))
    assert row.tokens == expected > 0
    assert len(evaluator.read) == 3 * 4
    assert not any("key" in note for note in found.notes)
    without = measured(reader)
    assert without.of("plain", "exchange-key") == []
    assert any("--evaluator" in note for note in without.notes)


def test_text_and_spans_are_those_of_the_window() -> None:
    """The characters of each token of a window, in the window's own text, under a real tokenizer."""
    tokenizer = byte_tokenizer()
    contents = text_of(4000)
    protocol = UseProtocol.choose(trained_length=256, target=512, texts=("t",), windows=2)
    text = UseText("t", contents, tokenizer.encode(contents), (100, 900))
    run = UseRun.prepare(protocol, CopyReader(0, tokenizer=tokenizer), [text])  # type: ignore[arg-type]
    for where, start, length in (("far", 900, 512), ("control", 1156, 256)):
        found, spans = run.inputs.window_text(where, 1)  # type: ignore[arg-type]
        assert found == contents[start : start + length]
        assert spans == [(at, at + 1) for at in range(length)]


@pytest.mark.parametrize(
    ("evaluator", "message"),
    [
        (Evaluator(label="copier"), "must not be the model"),
        (type("Short", (Evaluator,), {"trained_length": 512})(), "trained to the target"),
        (
            type("Mute", (Evaluator,), {"tokenizer": property(lambda self: None, lambda self, given: None)})(),
            "no tokenizer",
        ),
    ],
)
def test_unfit_evaluators_are_refused(evaluator: Any, message: str) -> None:
    """The model itself, one with a shorter context, one that knows no text."""
    with pytest.raises(RopeError, match=message):
        prepared(CopyReader(0), evaluator=evaluator)


def test_exchange_and_shuffle_keep_lengths() -> None:
    """Both give whole windows."""
    design, ids = ExchangeDesign(window=20, scored=4, distance=6), torch.arange(20)
    assert exchanged(ids, design, torch.arange(100, 115)).tolist() == [*range(105, 115), *range(10, 20)]
    assert sorted(shuffled(ids, design, Random(0)).tolist()) == list(range(20))
