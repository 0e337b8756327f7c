"""A run of `ropewalk train` on a GPU; skipped where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ropewalk.checkpoints.load import load
from ropewalk.training import train
from tests.training.material import EVERY, prose, small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_on_the_gpu_validates_and_continues(precision: str, tmp_path: Path) -> None:
    """Stopped after step 6 and continued: the log of a run that was not stopped; and the CPU's losses, nearly."""
    path = tmp_path / "text.txt"
    path.write_text(prose(1200))
    settings = small(str(path), precision=precision, device="cuda", repeat_share=0.5)

    def stop(event: object) -> None:
        if getattr(event, "kind", "") == "checkpoint" and getattr(event, "step", 0) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", housekeeping=EVERY, report=stop)
    runs = [
        train(settings, tmp_path / "stopped", housekeeping=EVERY, resume=True),
        train(settings, tmp_path / "whole", housekeeping=EVERY),
        train(small(str(path), precision=precision, repeat_share=0.5), tmp_path / "cpu", housekeeping=EVERY),
    ]
    stopped, whole, cpu = (
        [json.loads(line) for line in (run / "training-log.jsonl").read_text().splitlines()] for run in runs
    )
    assert [line["step"] for line in stopped] == [line["step"] for line in whole] == [line["step"] for line in cpu]
    for first, second, third in zip(stopped, whole, cpu, strict=True):
        assert first["loss"] == pytest.approx(second["loss"], abs=1e-3)
        assert second["loss"] == pytest.approx(third["loss"], abs=0.1)  # another generator's dropout
    assert whole[-1]["validation_loss"] == pytest.approx(cpu[-1]["validation_loss"], abs=0.1)
    assert load(runs[1]).num_parameters() == load(runs[2]).num_parameters()
