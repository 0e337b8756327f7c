"""The experiment on windows that skip: its arms, its losses by length, and its figure."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import pytest

from ropewalk.extend.measurement import Variant
from ropewalk.measure.plan import LossProtocol

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pose.py"
if not SCRIPT.exists():
    pytest.skip("the source distribution has no benchmarks", allow_module_level=True)
POSE = runpy.run_path(str(SCRIPT))


def test_what_each_arm_changes() -> None:
    """The last one alone; at full length an update reads as many tokens, at the trained length a run four tenths."""
    options = argparse.Namespace(window=256, batch_size=8, target=1024, trained=512, steps=10)
    longer = {"window": 512, "batch_size": 1, "steps": 16, "activation_checkpointing": True}
    changes = {arm: POSE["changes_of"](arm, options) for arm in POSE["ARMS"]}
    assert changes == {
        "full-length": {"window": None, "batch_size": 2},
        "pose": {},
        "trained-length": longer,
        "trained-length-no-skip": {**longer, "skip_target": 512},
        "trained-length-no-far-answers": {**longer, "repeat_share": 0.0},
        "trained-length-no-method": {**longer, "method": "plain"},
        "no-skip": {"skip_target": 256},
        "no-method": {"method": "plain"},
        "no-far-answers": {"repeat_share": 0.0},
        "no-skip-no-far-answers": {"skip_target": 256, "repeat_share": 0.0},
    }


def test_losses_up_to_a_length() -> None:
    """The blocks between the trained length and it, window by window."""
    protocol = LossProtocol.choose(trained_length=8, text="t", target=32, block=4, windows=2)
    rows = [[float(block) for block in range(8)], [10.0 * block for block in range(8)]]
    variant = Variant(name="tuned", blocks=rows, within=[0.0, 0.0], beyond=None, seconds=1.0)
    assert POSE["beyond"](variant, protocol, 16) == [2.5, 25.0]
    assert POSE["beyond"](variant, protocol, 32) == [4.5, 45.0]


def test_windows_of_several_texts() -> None:
    """Window after window, and the time of all."""
    parts = [
        Variant(name="tuned", blocks=[[float(i)]], within=[i + 0.5], beyond=None if whole else [i + 0.25], seconds=2.0)
        for whole in (True, False)
        for i in (1, 2)
    ]
    assert POSE["joined"](parts[:2]) == Variant(
        name="tuned", blocks=[[1.0], [2.0]], within=[1.5, 2.5], beyond=None, seconds=4.0
    )
    assert POSE["joined"](parts[2:]).beyond == [1.25, 2.25]


def test_pose_against_a_control() -> None:
    """(full - crop) of the one minus that of the other, window by window: by hand -0.5 and -1.5."""
    protocol = LossProtocol.choose(trained_length=8, text="t", target=16, block=8, windows=2)

    def arm(full: list[float], crop: list[float]) -> dict[str, object]:
        losses = {"tuned": full, "tuned crop": crop}
        return {"variants": [{"name": name, "loss_by_window_and_block": [[9.0, loss] for loss in found]}
                             for name, found in losses.items()]}  # fmt: skip

    arms = {"pose": arm([1.0, 2.0], [2.0, 4.0]), "no-skip": arm([3.0, 4.0], [3.5, 4.5])}
    controls = tuple(arm for arm in POSE["ARMS"] if arm.startswith("trained-length-"))
    longer = {"trained-length": arms["pose"], **dict.fromkeys(controls, arms["no-skip"])}
    found = POSE["contrasts"](longer, protocol, [16])
    assert tuple(found) == controls
    assert len({str(rows) for rows in found.values()}) == 1
    (of_longer,) = found[controls[0]]
    ((row,),) = POSE["contrasts"](arms, protocol, [16]).values()
    assert of_longer == {**row, "of": "trained-length"}
    assert (row["of"], row["length"], row["nats"]) == ("pose", 16, -1.0)
    assert row["ci"][0] == pytest.approx(-1.0 - 12.7062047 * 0.5)


def test_figure() -> None:
    """Every arm has a mark at each length, and every model a curve of its copies at the longest."""
    copy = [{"window": 32, "distance": distance, "gain": 1.0} for distance in (8, 16)]
    row = {"interaction": {"nats": -0.1, "ci": (-0.2, 0.0)}}
    arm = {"beyond": [{"length": length, **row} for length in (16, 32)], "copy": [*copy, {"length": 32, "control": {}}]}
    record = {
        "model": "m", "trained_length": 8, "lengths": [16, 32], "protocol": {"windows": 2, "texts": ["a", "b"]},
        "untuned": {"yarn": {"copy": copy}}, "arms": {"pose": arm, "no-skip": arm},
    }  # fmt: skip
    POSE["pose_figure"]({**record, "arms": dict.fromkeys(POSE["ARMS"], arm)})
    figure = POSE["pose_figure"](record)
    left, _ = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["pose", "no-skip"]
    assert len(left.containers) == 4
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["yarn, untuned", "pose", "no-skip"]
    for found in (record["untuned"]["yarn"], arm):
        found["copy"] = []
    assert len(POSE["pose_figure"](record).axes) == 1  # copies were not asked for
