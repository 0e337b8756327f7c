"""Which frequencies the weights know: `tiny`, whose training is known, described in ways that do not say it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.builtin.texts import read_text
from ropewalk.diagnosis import Protocol
from ropewalk.errors import RopeError
from ropewalk.measure.scaling import ScalingReading, settle_reading
from ropewalk.models.decoder import Decoder
from ropewalk.readers.adapters import reader_of
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import ABF, Linear, Scaling, YaRN
from tests.diagnosis.models import tiny_decoder, window_losses

TEXT = read_text(None)[1][100_000:160_000]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier version left in the user's cache is not read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    """The built-in model: trained to 256 tokens at its own theta, without a scaling."""
    found = rw.load("tiny")
    assert isinstance(found, Decoder)
    return found


def described(model: Decoder, scaling: Scaling | None, **changes: Any) -> Decoder:
    """The same weights under a config that says something else of the rope."""
    rope = next(rope for rope in model.config.ropes if rope is not None)
    return model.with_positions(rope=dataclasses.replace(rope, scaling=scaling, **changes))


def settle(model: Decoder, **options: Any) -> tuple[RopeConfig, ScalingReading | None]:
    """The rope that the doctor goes on with, and what was measured."""
    assert model.tokenizer is not None
    reader, found = settle_reading(reader_of(model), [model.tokenizer.encode(TEXT)], **options)
    return reader.positions.present_ropes[0], found


@pytest.mark.parametrize("scaling", [Linear(4.0), YaRN(16.0, 128)])
def test_an_option_for_inference_is_found(tiny: Decoder, scaling: Scaling) -> None:
    """The weights know the plain frequencies: the scaled reading loses."""
    rope, found = settle(described(tiny, scaling))
    assert found is not None
    assert found.with_scaling is False
    assert found.difference[0] > 0.01
    assert (rope.scaling_is_trained, rope.as_trained().scaling) == (False, None)
    assert rope.trained_length == found.trained_length == rope.original_length
    assert "The weights were trained without the" in found.sentence


def test_a_scaling_that_belongs_to_the_model_is_found(tiny: Decoder) -> None:
    """A config with another theta, which a rule puts right: the weights know the scaled frequencies."""
    theta = tiny.config.positions.present_ropes[0].theta
    rope, found = settle(described(tiny, ABF(theta), theta=300.0))
    assert found is not None
    assert found.with_scaling is True
    assert (rope.scaling_is_trained, rope.as_trained()) == (True, rope)
    assert "were trained with the abf scaling to 256 tokens" in found.sentence
    assert found.to_json()["interval"][1] < 0


def test_its_numbers_are_the_losses_of_both_readings(tiny: Decoder) -> None:
    """Eight windows within the length before the scaling, the same tokens for both."""
    scaled = described(tiny, Linear(2.0))
    _, found = settle(scaled, seed=3)
    assert found is not None
    assert (found.length, len(found.scaled), len(found.unscaled)) == (256, 8, 8)
    ids = np.array(tiny.tokenizer.encode(TEXT))  # type: ignore[union-attr]
    drawn = np.random.default_rng([3, 0])
    gaps = np.sort(drawn.integers(0, len(ids) - 8 * 256 + 1, 8))
    third = drawn.permutation(8)[2]
    window = rw_ids(ids[gaps[third] + third * 256 :][:256])
    assert found.scaled[2] == pytest.approx(window_losses(scaled, window).mean(), abs=1e-5)
    assert found.unscaled[2] == pytest.approx(window_losses(tiny, window).mean(), abs=1e-5)


def test_every_text_counts(tiny: Decoder) -> None:
    """Of five texts two windows each: eight, rounded up to whole rounds."""
    reader = reader_of(described(tiny, Linear(2.0)))
    ids = tiny.tokenizer.encode(TEXT)  # type: ignore[union-attr]
    _, found = settle_reading(reader, [ids[start : start + 100] for start in range(0, 500, 100)])
    assert found is not None
    assert (found.length, len(found.scaled)) == (50, 10)


def rw_ids(ids: np.ndarray) -> Any:
    """int64 [tokens]."""
    import torch

    return torch.from_numpy(ids.copy())


def test_a_stated_length_settles_it_unmeasured(tiny: Decoder) -> None:
    """Beyond the length before the scaling: with it."""
    yarn = described(tiny, YaRN(4.0, 64), max_position_embeddings=256)
    for length, expected in ((64, False), (256, True)):
        rope, found = settle(yarn, trained_length=length)
        assert (rope.scaling_is_trained, found) == (expected, None)


def test_what_is_known_is_not_measured(tiny: Decoder) -> None:
    """No scaling: the reader comes back as it was."""
    reader = reader_of(tiny)
    assert settle_reading(reader, [[1] * 1000]) == (reader, None)


def test_random_weights_leave_it_open() -> None:
    """They know neither: the interval holds 0, and the scaling is taken for an option."""
    model = tiny_decoder(RopeConfig(8, interleaved=False, max_position_embeddings=64, scaling=YaRN(1.01, 16)))
    tokens = np.random.default_rng(0).integers(0, 50, 400).tolist()
    reader, found = settle_reading(reader_of(model), [tokens])
    assert found is not None
    assert found.with_scaling is None
    assert "is open" in found.sentence
    assert reader.positions.present_ropes[0].scaling_is_trained is False


def test_a_stopped_reading_goes_on(tiny: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loss is kept; what was measured is not measured again, and the numbers are the same."""
    model = described(tiny, Linear(4.0))
    whole = settle(model)[1]
    steps: list[str] = []

    class Stop:
        """Ctrl-C at the third piece."""

        def begin(self, description: str, tokens: int) -> None:
            steps.append(description)
            if len(steps) == 3:
                raise KeyboardInterrupt

        def advance(self, tokens: int) -> None:
            """Nothing."""

    with pytest.raises(KeyboardInterrupt):
        settle(model, folder=tmp_path, progress=Stop())
    rest: list[str] = []
    monkeypatch.setattr(Stop, "begin", lambda self, description, tokens: rest.append(description))
    assert settle(model, folder=tmp_path, progress=Stop())[1] == whole
    assert len(rest) == 14


def test_a_text_too_short_to_measure_on_is_refused(tiny: Decoder) -> None:
    """With what to do."""
    with pytest.raises(RopeError, match=r"(?s)too short to measure it.*--trained-length"):
        settle_reading(reader_of(described(tiny, Linear(4.0))), [[1] * 20])


def test_the_doctor_measures_it_and_says_so(tiny: Decoder) -> None:
    """In its sentences and its JSON; the methods start from what was found."""
    model = described(tiny, Linear(4.0))
    one = Protocol(windows=1)
    found = rw.doctor(model, target=512, methods="pi", text=[("whale", TEXT)], progress=False, protocol=one)
    assert found.sentences()[0].startswith("The weights were trained without the linear scaling to 256 tokens")
    content = found.to_json()
    assert content["scaling_reading"]["with_scaling"] is False
    assert content["trained_length"] == content["scaling_reading"]["trained_length"] == 256
    plain = next(rope for rope in found.measurement.positions["plain"].ropes if rope is not None)
    assert plain.scaling is None
    assert found.audits[0].trained_length == 256
