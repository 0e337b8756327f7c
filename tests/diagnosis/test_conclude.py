"""From a measurement to a verdict: what a config needs, the command that goes on, and the numbers on the way."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from ropewalk.diagnosis.document import at_run_time, config_changes
from ropewalk.diagnosis.rules import standings
from ropewalk.diagnosis.run import conclude, doctor_command
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.diagnosis.wording import next_step, python_call
from ropewalk.errors import RopeError
from ropewalk.measure.losses import Measurement, WindowResult
from ropewalk.measure.plan import LossProtocol
from ropewalk.methods import METHODS, Reach
from ropewalk.models.config import Positions
from tests.cli.doctor_runs import write_checkpoint
from tests.diagnosis.models import ROPE, settings_of

OWN = Positions((ROPE, ROPE), (None, None), (None, None))


def measured(beyond: dict[str, float], same_as: dict[str, str] | None = None, *, windows: int = 4) -> Measurement:
    """16 trained tokens of 64 in blocks of 4: losses of each method beyond; within 3 nats, of token frequencies 6."""
    protocol = LossProtocol.choose(trained_length=16, target=64, block=4, windows=windows, text="novel")
    reach = Reach(16, 64)
    weights, inside = protocol.weights, protocol.blocks_within

    def result(loss: float, window: int) -> WindowResult:
        means = [3.0 + window / 100] * inside + [loss + window / 50] * (len(weights) - inside)
        return WindowResult(tuple(mean * weight for mean, weight in zip(means, weights, strict=True)), 0.25)

    return Measurement(
        protocol=protocol,
        own=OWN,
        positions={name: METHODS[name].positions(OWN, reach) for name in beyond},
        same_as=same_as or {},
        results={name: tuple(result(loss, window) for window in range(windows)) for name, loss in beyond.items()},
        frequencies=tuple((6.0 + window / 9,) * inside for window in range(windows)),
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
    assert "No config.json can express it, so no engine can serve it; it works in Python." in attention.sentence
    assert str(attention.call).startswith('rw.attach(model, "dca", target=')


def test_the_config_states_the_length_that_is_shown() -> None:
    """Not the target, where a stretch fails."""
    measurement = measured(LOSSES)
    [*_, last] = measurement.protocol.stretches
    worse = tuple(
        dataclasses.replace(
            one, block_sums=tuple(total * (1 + (number >= last[0])) for number, total in enumerate(one.block_sums))
        )
        for one in measurement.results["yarn"]
    )
    found = conclude(dataclasses.replace(measurement, results={**measurement.results, "yarn": worse}))
    assert (found.action, found.length) == ("extend", 48)
    assert found.config is not None
    assert found.config["max_position_embeddings"] == 48
    assert found.config["rope_parameters"]["factor"] == 4.0  # as it was measured


def test_standings_have_the_evidences_intervals() -> None:
    """One interval for one comparison, wherever it is shown; a method that shares numbers has them."""
    measurement = measured({**LOSSES, "dynamic": 3.0}, {"dynamic": "yarn"})
    rows, evidence = standings(measurement), conclude(measurement).evidence
    [gain] = [c for c in evidence if (c.name, c.method) == ("better than plain", "yarn")]
    assert (rows["yarn"].beyond_difference, rows["yarn"].beyond_interval) == (gain.difference, gain.interval)
    assert dataclasses.replace(rows["dynamic"], name="yarn") == rows["yarn"]
    assert rows["plain"].beyond_difference == 0.0
    assert rows["yarn"].affordable


def test_what_was_not_counted_is_said() -> None:
    """A measurement without token frequencies has no verdict."""
    with pytest.raises(RopeError, match="does not contain the losses of token frequencies"):
        conclude(dataclasses.replace(measured(LOSSES), frequencies=None))


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        ("tiny", {}, "ropewalk doctor tiny --windows 9 --resume"),
        ("models/a b", {"target": 64}, "ropewalk doctor 'models/a b' --target 64 --windows 9 --resume"),
        (
            Path("/home/someone/model"),
            {"text": Path("/home/someone/novel.txt")},
            "ropewalk doctor /home/someone/model --text /home/someone/novel.txt --windows 9 --resume",
        ),
        (
            "tiny",
            {"text": (Path("a.txt"), Path("b.txt"))},
            "ropewalk doctor tiny --text a.txt --text b.txt --windows 9 --resume",
        ),
        ("tiny", {"methods": ["yarn", "ntk"]}, "ropewalk doctor tiny --methods yarn,ntk --windows 9 --resume"),
        (
            "tiny",
            {"resume": True, "state": "s", "minutes": 3.0, "windows": 2},
            "ropewalk doctor tiny --minutes 3 --windows 9 --resume --state s",
        ),
        ("tiny", {"engine": "vllm", "measure": "loss"}, "ropewalk doctor tiny --engine vllm --measure loss --windows 9 "
         "--resume"),
        (object(), {"target": 64}, "rw.doctor(model, target=64, protocol=Protocol(windows=9))"),
        ("tiny", {"text": [("story", "words")]}, "rw.doctor('tiny', text=text, protocol=Protocol(windows=9))"),
        (
            "tiny",
            {"seed": 3, "device_map": "auto"},
            "ropewalk doctor tiny --windows 9 --device-map auto --protocol '{\"seed\": 3}' --resume",
        ),
    ],
)  # fmt: skip
def test_the_command_measures_the_same(model: object, settings: dict[str, Any], expected: str) -> None:
    """With other windows, from what was saved; as the command line takes it, or as Python does."""
    assert doctor_command(model, settings_of(**settings), windows=9) == expected


def test_the_command_is_never_the_one_that_was_run() -> None:
    """The same windows, minutes or texts; files that were asked for are kept, and other texts are not resumed."""
    settings = settings_of(windows=9, minutes=5.0, text="novel.txt")
    assert doctor_command("tiny", settings) is None
    assert doctor_command("tiny", settings, windows=9) is None
    assert doctor_command("tiny", settings_of(windows=9), default_texts=True) is None
    found = doctor_command("tiny", settings, minutes=6.0, default_texts=True, kept=["--json", "a b.json"])
    assert found == "ropewalk doctor tiny --minutes 6 --windows 9 --json 'a b.json'"
    assert shlex.split(found)[-1] == "a b.json"


def test_a_call_without_folders_asks_no_hub(tmp_path: Path) -> None:
    """`from_pretrained` downloads what a bare name names."""
    folder = write_checkpoint(tmp_path / "model", dataclasses.replace(ROPE, max_position_embeddings=32))
    assert "from_pretrained('./model')" in python_call(str(folder), "dca", 64)
    assert "from_pretrained('owner/name')" in python_call("owner/name", "dca", 64)
    assert "from_pretrained(files(\"ropewalk.builtin\") / 'tiny')" in python_call("tiny", "dca", 1024)


def test_a_stopped_run_keeps_its_minutes() -> None:
    """They are those of the whole next run, so fewer would stop it too early; 10 are the default."""
    for given, needed, shown in (
        (20.0, 3, "--minutes 20 "),
        (None, 3, ""),
        (None, 12, "--minutes 12 "),
        (5, 7, "--minutes 7 "),
    ):
        command = doctor_command("tiny", settings_of(minutes=given), minutes=needed)
        assert command == f"ropewalk doctor tiny {shown}--resume"


def test_a_method_that_no_config_holds_is_put_into_a_live_model_by_attach() -> None:
    """With its target and the trained length."""
    measurement = measured({"rerope": 2.0, "yarn": 2.5})
    assert at_run_time("rerope", measurement) == 'rw.attach(model, "rerope", target=64, trained_length=16)'
    assert at_run_time("yarn", measurement) is None
    verdict = Verdict(action="extend", method="rerope", length=64)
    assert "rw.attach(model, 'rerope', target=64)" in str(next_step(verdict, "owner/phi", 64))
