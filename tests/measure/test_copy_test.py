"""The run: every reading once, kept, resumed, shared with the loss measurement; and what is concluded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.measure.copy_test import Control, UseMeasurement, UseModel, UseRow
from ropewalk.measure.copy_windows import Reading, UseProtocol
from ropewalk.readers.adapters import open_reader
from tests.diagnosis.small_runs import Recorder
from tests.measure.copy_readers import TRAINED, CopyReader, measured, prepared


def test_each_reading_goes_through_the_model_once() -> None:
    """Two readings of a window for each method, two of the control for plain; progress counts what is read."""
    reader, shown = CopyReader(300), Recorder()
    measured(reader, stride=TRAINED // 4, windows=2, progress=shown)
    lengths = [len(ids) for ids in reader.read]
    assert lengths.count(1024) == 2 * 2  # plain
    assert lengths.count(256) == 2 * (2 + 2 * 2)  # control; crop's windows for 128 tokens
    assert sum(shown.tokens) == shown.expected == sum(lengths)
    assert shown.begun[0] == "[1/12] plain, window 1 of 2: copy test, odd blocks present"


def test_a_run_is_resumed(tmp_path: Path) -> None:
    """Stopped in the middle, it goes on where it was; begun again, it reads everything once more."""
    undisturbed = CopyReader(300)
    whole = measured(undisturbed, stride=64, windows=2)

    class Stopping(CopyReader):
        def window_losses(self, *given: Any, **more: Any) -> Any:
            if len(self.read) == 4:
                raise KeyboardInterrupt
            return super().window_losses(*given, **more)

    first = Stopping(300)
    with pytest.raises(KeyboardInterrupt):
        measured(first, stride=64, windows=2, state=tmp_path / "use")
    second = CopyReader(300)
    found = measured(second, stride=64, windows=2, state=tmp_path / "use", resume=True)
    assert [row.to_json() for row in found.rows] == [row.to_json() for row in whole.rows]
    third = CopyReader(300)
    measured(third, stride=64, windows=2, state=tmp_path / "use", resume=True)
    assert third.read == []
    assert first.read + second.read == undisturbed.read
    again = CopyReader(300)
    measured(again, stride=64, windows=2, state=tmp_path / "use")
    assert len(again.read) == len(first.read + second.read)


@pytest.mark.parametrize("change", [{"seed": 1}, {"windows": 2}, {"target": 1100}])
def test_another_run_has_another_ledger(tmp_path: Path, change: dict[str, Any]) -> None:
    """What the readings depend on is in the fingerprint."""
    measured(CopyReader(300), state=tmp_path / "use")
    with pytest.raises(RopeError, match="results of another job"):
        measured(CopyReader(300), state=tmp_path / "use", resume=True, **change)


def test_two_names_for_one_model_are_read_once() -> None:
    """A method whose positions and reading are plain's shares its results."""
    reader = CopyReader(300)
    found = prepared(reader).measure({"plain": UseModel(reader), "as-is": UseModel(reader)}, workers=1)
    assert len(reader.read) == 3 * 4
    by_method = [[row.gain for row in found.rows if row.method == name and not row.control] for name in found.methods]
    assert by_method[0] == by_method[1]


def test_losses_that_are_not_finite_are_refused() -> None:
    """NaN is no measurement."""

    class Broken(CopyReader):
        def window_losses(self, *given: Any, **more: Any) -> Any:
            return np.full_like(super().window_losses(*given, **more), np.nan)

    with pytest.raises(RopeError, match="not a finite number"):
        measured(Broken(300))


def test_plain_must_be_there() -> None:
    """Without it there is no control."""
    reader = CopyReader(300)
    with pytest.raises(RopeError, match="plain reads the control"):
        prepared(reader).measure({"crop": UseModel(reader, 64)})


def test_a_model_needs_a_tokenizer() -> None:
    """Words have to be written in its tokens."""
    mute, tokenizer = CopyReader(300), CopyReader(300).tokenizer
    run = prepared(mute)
    mute.tokenizer = None
    with pytest.raises(RopeError, match="no tokenizer"):
        type(run).prepare(run.inputs.protocol, mute, run.inputs.texts)  # type: ignore[arg-type]
    assert tokenizer is not None


def test_within_the_trained_length_there_is_the_control_alone() -> None:
    """A target that is no extension: nothing lies beyond, so nothing is said of it."""
    found = measured(CopyReader(300), trained=1024, target=512)
    assert {row.control for row in found.rows} == {True}
    assert {row.window for row in found.rows} == {512}
    assert found.shows_use("plain") is None
    assert "within the trained length" in found.notes[0]


@pytest.mark.parametrize(
    ("lengths", "note"),
    [
        ({"trained": 64, "target": 256}, "too short for its blocks"),
        ({"different": 60}, "fewer than 100 different words"),
    ],
)
def test_what_does_not_fit_is_absent_and_says_why(lengths: dict[str, int], note: str) -> None:
    """Lengths without room for blocks, and a text with too few words."""
    found = measured(CopyReader(300), **lengths)
    assert found.rows == ()
    assert found.shows_use("plain") is None
    assert note in found.notes[0]


def test_a_window_draws_the_same_whatever_the_number_of_methods() -> None:
    """Readings follow from the seed, the window and the test alone."""
    one, two = prepared(CopyReader(300)), prepared(CopyReader(300))
    for reading in one.inputs.readings("far"):
        assert torch.equal(one.inputs.ids(reading, 2), two.inputs.ids(reading, 2))
    assert not torch.equal(one.inputs.ids(Reading("far", "odd"), 0), one.inputs.ids(Reading("far", "odd"), 1))


def rows_of(test: str, intervals: dict[int, Any]) -> tuple[UseRow, ...]:
    """One row for each distance."""
    return tuple(
        UseRow(method="yarn", test=test, distance=distance, gain=sum(interval or (0, 0)) / 2, interval=interval,
               window=8192, control=False, windows=3, tokens=100)
        for distance, interval in intervals.items()
    )  # fmt: skip


WORKS = {"copy": Control(6.0, (5.0, 7.0))}
GOOD, POOR, OPEN = (4.0, 8.0), (-1.0, 2.0), (1.0, 5.0)


@pytest.mark.parametrize(
    ("intervals", "controls", "reach", "uses"),
    [
        ({1024: GOOD, 4096: GOOD}, WORKS, 4096, True),
        ({4096: GOOD, 1024: GOOD, 7168: POOR}, WORKS, 4096, True),
        ({1024: GOOD, 2048: GOOD, 4096: POOR}, WORKS, 2048, False),
        ({1024: GOOD, 4096: OPEN}, WORKS, 1024, None),
        ({1024: GOOD, 3000: POOR, 4096: OPEN}, WORKS, 1024, None),
        ({1024: OPEN, 4096: GOOD}, WORKS, None, True),
        ({1024: GOOD, 3000: POOR, 4096: GOOD}, WORKS, 1024, True),
        ({1024: POOR, 4096: POOR}, WORKS, None, False),
        ({1024: GOOD}, WORKS, 1024, None),
        ({1024: None, 4096: None}, {"copy": Control(6.0, None)}, None, None),
        ({1024: GOOD, 4096: GOOD}, {"copy": Control(6.0, (2.9, 9.1))}, None, None),  # too noisy
        ({1024: GOOD, 4096: GOOD}, {"copy": Control(0.05, (0.04, 0.06))}, None, None),  # cannot copy
        ({1024: POOR, 4096: POOR}, {}, None, None),
    ],
)
def test_what_is_concluded_of_the_copy_test(intervals: Any, controls: Any, reach: int | None, uses: Any) -> None:
    """Use: half of the control's gain at a distance beyond; reach: at every nearer one too; a poor control: nothing."""
    found = UseMeasurement(trained_length=2048, target=8192, rows=rows_of("copy", intervals), controls=controls)
    assert found.reach("yarn") == reach
    assert found.shows_use("yarn") is uses
    assert found.shows_use("crop") is None


def test_json_holds_every_row() -> None:
    """Method, test, distance, gain, interval and more; finite or null."""
    rows = measured(CopyReader(300), windows=1).to_json()
    assert {"method", "test", "distance", "gain", "interval", "control", "window"} <= set(rows[0])
    assert all(row["interval"] is None for row in rows)
    json.dumps(rows, allow_nan=False)


def test_intervals_hold_for_all_distances_at_once() -> None:
    """The simultaneous intervals of one method are wider than each alone, by Bonferroni's factor of Student's t."""
    from scipy import stats

    reader = CopyReader(300, gain=lambda same: 3.0, cue=1)
    found = measured(reader, windows=4, different=120)
    run = prepared(reader, windows=4, different=120)
    rows = found.of("plain", "copy")
    gains = np.array(
        [
            [
                np.mean(
                    [
                        (other - one)[block.start - 896 + 4 : block.start - 896 + 16].mean()
                        for block in run.inputs.blocks("far", window)
                        for one, other in [[losses[block.half], losses["even" if block.half == "odd" else "odd"]]]
                        if block.distance == row.distance
                    ]
                )
                for row in rows
            ]
            for window in range(4)
            for losses in [
                {
                    half: reader.window_losses(run.inputs.ids(Reading("far", half), window), first=896)
                    for half in ("odd", "even")
                }
            ]
        ]
    )
    half = stats.t.ppf(1 - 0.05 / 2 / 4, 3) * gains.std(0, ddof=1) / 2
    for row, mean, width in zip(rows, gains.mean(0), half, strict=True):
        assert row.gain == pytest.approx(mean, abs=1e-5)
        assert row.interval == pytest.approx((mean - width, mean + width), abs=1e-5)


def test_the_built_in_model_can_be_measured() -> None:
    """The default text and a real tokenizer, two windows."""
    from ropewalk.builtin.texts import read_text
    from ropewalk.measure.copy_test import UseRun
    from ropewalk.measure.copy_windows import UseText

    reader = open_reader("tiny", name="tiny")
    name, contents = read_text(None)
    contents = contents[30_000:60_000]
    assert reader.tokenizer is not None
    tokens = reader.tokenizer.encode(contents)
    protocol = UseProtocol.choose(trained_length=128, target=320, texts=(name,), windows=2)
    run = UseRun.prepare(protocol, reader, [UseText(name, contents, tokens, (0, 2000))])
    found = run.measure({"plain": UseModel(reader), "crop": UseModel(reader, 32)}, workers=1)
    assert {(row.test, row.method, row.control) for row in found.rows} == {
        ("copy", "plain", False), ("copy", "crop", False), ("copy", "plain", True),
    }  # fmt: skip
    assert found.notes == ()


def test_sentences_say_what_is_shown_and_no_more() -> None:
    """Use with its reach, no use, and a control that shows nothing."""
    found = measured(CopyReader(464, gain=lambda same: 5.0), stride=64)
    lines = found.sentences()
    assert lines[0].startswith("Copy test: within the trained length a block of random words gains +5.000 [+5.000, ")
    assert lines[1] == (
        "plain uses tokens more than 256 back: at least half of that gain is shown at every distance up to 464 tokens "
        "back."
    )
    assert (
        lines[2] == "crop is not shown to use tokens more than 256 back: the gain from them is less than half of that."
    )
    assert len(lines) == 3
    blind = measured(CopyReader(0)).sentences()
    assert blind[0].startswith("Copy test: not measured.")
    assert not any("uses" in line for line in blind)
    rows = rows_of("copy", {1024: GOOD, 4096: OPEN})
    unsure = UseMeasurement(trained_length=2048, target=8192, rows=rows, controls=WORKS).sentences()
    assert unsure[1] == (
        "yarn: 3 windows do not tell whether it uses tokens more than 2,048 back; half of that gain is shown at "
        "every distance up to 1,024 tokens back."
    )
    rows = rows_of("copy", {1024: POOR, 2000: OPEN, 4096: GOOD, 7000: GOOD})
    [_, line] = UseMeasurement(trained_length=2048, target=8192, rows=rows, controls=WORKS).sentences()
    assert line == (
        "yarn uses tokens more than 2,048 back: at least half of that gain is shown at 4,096 and 7,000 tokens back, "
        "not at 1,024 and 2,000."
    )
