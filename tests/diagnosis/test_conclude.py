"""From a measurement to a verdict: what a config needs, the command that goes on, and the numbers on the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.diagnosis.document import at_run_time, config_changes
from ropewalk.diagnosis.rules import standings
from ropewalk.diagnosis.run import conclude, doctor_command
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.diagnosis.wording import next_step
from ropewalk.errors import RopeError
from ropewalk.measure.losses import Measurement, WindowResult
from ropewalk.measure.plan import LossProtocol
from ropewalk.methods import METHODS, Reach
from ropewalk.models.config import Positions
from tests.diagnosis.models import ROPE, settings_of

OWN = Positions((ROPE, ROPE), (None, None), (None, None))


def measured(
    beyond: dict[str, float], same_as: dict[str, str] | None = None, *, windows: int = 4, unscaled_tokens: int = 0
) -> Measurement:
    """16 trained tokens of 64 in blocks of 24, the first of which reaches beyond: losses of each method beyond."""
    protocol = LossProtocol.choose(
        trained_length=16, target=64, block=24, windows=windows, text="novel", unscaled_tokens=unscaled_tokens
    )
    reach = Reach(16, 64, unscaled_tokens)

    def result(loss: float, window: int) -> WindowResult:
        within, far = 15 * (3.0 + window / 100), loss + window / 50
        return WindowResult((within + 8 * far, 24 * far, 16 * far), within, 0.25)

    return Measurement(
        protocol=protocol,
        own=OWN,
        positions={name: METHODS[name].positions(OWN, reach) for name in beyond},
        same_as=same_as or {},
        results={name: tuple(result(loss, window) for window in range(windows)) for name, loss in beyond.items()},
        frequencies=tuple(6.0 + window / 9 for window in range(windows)),
    )


LOSSES = {"plain": 6.0, "yarn": 3.0, "crop": 3.5}


def test_the_config_is_that_of_the_method() -> None:
    """Only where the action is to extend, and only where a config can express it."""
    measurement = measured(LOSSES)
    found = conclude(measurement)
    assert (found.action, found.method) == ("extend", "yarn")
    assert found.config == config_changes("yarn", measurement)
    assert found.config["rope_parameters"]["factor"] == 4.0
    assert found.next is None
    assert conclude(measured({**LOSSES, "yarn": 4.0})).config is None
    attention = conclude(measured({"plain": 6.0, "dca": 3.0, "crop": 3.5}))
    assert (attention.method, attention.config) == ("dca", None)
    assert "No config.json can express it; in Python it is model.with_positions(extension=DualChunk(" in (
        attention.sentence
    )
    first = conclude(measured(LOSSES, unscaled_tokens=3))
    assert (first.method, first.config) == ("yarn", None)
    assert "unscaled_tokens=3" in first.sentence


def test_the_time_is_that_of_what_was_measured() -> None:
    """A method that shares another's numbers took none; the windows that would settle it are all measured anew."""
    measurement = measured({"plain": 6.0, "ntk": 3.49, "dynamic": 3.49, "crop": 3.5}, {"dynamic": "ntk"}, windows=2)
    noisy = measurement.results["ntk"][0]
    worse = dataclasses.replace(noisy, block_sums=(noisy.block_sums[0], noisy.block_sums[1] + 2.0, noisy.block_sums[2]))
    measurement.results["ntk"] = measurement.results["dynamic"] = (worse, measurement.results["ntk"][1])
    found = conclude(measurement, available=40, command=lambda windows: f"again {windows}")
    assert found.action == "undecided"
    assert found.next is not None
    assert found.next.seconds == pytest.approx(3 * 0.25 * found.next.windows)
    assert found.next.command == f"again {min(40, found.next.windows)}"
    faster = conclude(measurement, workers=2, further_seconds=1.5)  # as much again as the six losses took
    assert faster.next is not None
    assert faster.next.seconds == pytest.approx(found.next.seconds)
    assert {comparison.method for comparison in found.evidence} == {"plain", "ntk"}


def test_standings_have_the_evidences_intervals() -> None:
    """One interval for one comparison, wherever it is shown; a method that shares numbers has them."""
    measurement = measured({**LOSSES, "dynamic": 3.0}, {"dynamic": "yarn"})
    rows, evidence = standings(measurement), conclude(measurement).evidence
    [gain] = [c for c in evidence if (c.name, c.method) == ("better than plain", "yarn")]
    assert (rows["yarn"].beyond_difference, rows["yarn"].beyond_interval) == (gain.difference, gain.interval)
    assert dataclasses.replace(rows["dynamic"], name="yarn") == rows["yarn"]
    assert rows["plain"].beyond_difference == 0.0
    assert rows["yarn"].affordable


def test_stretches_begin_at_the_trained_length() -> None:
    """The block that reaches over it counts from there on; at most three stretches of whole blocks."""
    measurement = measured(LOSSES)
    assert measurement.stretches() == ((16, 24), (24, 48), (48, 64))
    np.testing.assert_allclose(measurement.by_stretch("yarn"), [[3.0 + w / 50] * 3 for w in range(4)], rtol=1e-12)
    of = LossProtocol.choose(trained_length=256, text="t", windows=1)
    many = dataclasses.replace(measurement, protocol=of)
    assert many.stretches() == ((256, 512), (512, 768), (768, 1024))
    short = dataclasses.replace(measurement, protocol=LossProtocol.choose(trained_length=64, target=40, text="t"))
    assert short.stretches() == ()


def test_what_was_not_counted_is_said() -> None:
    """A measurement without token frequencies has no verdict."""
    with pytest.raises(RopeError, match="token frequencies are not in this measurement"):
        conclude(dataclasses.replace(measured(LOSSES), frequencies=None))


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        ("tiny", {}, "ropewalk doctor tiny --windows 9"),
        ("models/a b", {"target": 64}, "ropewalk doctor 'models/a b' --target 64 --windows 9"),
        (Path("/home/someone/model"), {"text": Path("/home/someone/novel.txt")}, None),
        (
            "tiny",
            {"text": (Path("a.txt"), Path("b.txt"))},
            "ropewalk doctor tiny --text a.txt --text b.txt --windows 9",
        ),
        ("tiny", {"methods": ["yarn", "ntk"]}, "ropewalk doctor tiny --methods yarn,ntk --windows 9"),
        ("tiny", {"resume": True, "state": "s", "minutes": 3.0, "windows": 2}, "ropewalk doctor tiny --windows 9"),
        (object(), {"target": 64}, "rw.doctor(model, target=64, protocol=Protocol(windows=9))"),
        ("tiny", {"text": [("story", "words")]}, "rw.doctor('tiny', text=text, protocol=Protocol(windows=9))"),
        (
            "tiny",
            {"seed": 3, "shard_window": True},
            "ropewalk doctor tiny --windows 9 --shard-window --protocol '{\"seed\": 3}'",
        ),
    ],
)
def test_the_command_measures_the_same(model: object, settings: dict[str, Any], expected: str | None) -> None:
    """With other windows; as the command line takes it, or as Python does; no folder of an absolute path."""
    found = doctor_command(model, settings_of(**settings), windows=9)
    assert found == (expected or "ropewalk doctor model --text novel.txt --windows 9")


def test_a_method_that_no_config_holds_is_put_into_a_live_model_by_attach() -> None:
    """The call is the library's: our decoder's own, or rw.attach for a model that transformers computes."""
    measurement = measured({"rerope": 2.0, "yarn": 2.5})
    assert str(at_run_time("rerope", measurement)).startswith("model.with_positions(extension=ReRoPE(")
    live = at_run_time("rerope", measurement, library="transformers 5.23.0, PhiForCausalLM")
    assert live == 'rw.attach(model, "rerope", target=64, trained_length=16)'
    assert at_run_time("yarn", measurement, library="transformers 5.23.0, PhiForCausalLM") is None
    verdict = Verdict(action="extend", method="rerope")
    assert next_step(verdict, "phi", 64, library="transformers") == 'rw.attach(model, "rerope", target=64)'
    assert str(next_step(verdict, "phi", 64)).startswith("ropewalk extend apply phi --method rerope")
