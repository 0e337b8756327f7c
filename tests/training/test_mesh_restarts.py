"""Training over a mesh whose processes are killed: restarted, it ends in the bits of a run that was left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.killed import checkpoints, digest
from tests.training.material import prose

ROOT = Path(__file__).parents[2]
QUIET = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def said_by(module: str, *arguments: object) -> Any:
    """The JSON that a module of this folder prints, run in a process of its own."""
    command = [sys.executable, "-W", "error", "-m", f"tests.training.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=QUIET, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("mesh", "attempts"),
    [
        pytest.param("2 1 1", 1, marks=pytest.mark.thorough),
        pytest.param("2 1 1", 5, marks=pytest.mark.slow),
        pytest.param("2 2 1", 3, marks=pytest.mark.slow),
        pytest.param("1 1 2", 3, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_line_a_mesh_resumes_bit_for_bit(tmp_path: Path, mesh: str, attempts: int) -> None:
    """SIGKILL of any rank at random lines, the second time in a save: the third start ends as the run left alone."""
    text = tmp_path / "text.txt"
    text.write_text(prose(1200), encoding="utf-8")
    answer = said_by("ranks_killed", text, tmp_path, attempts, 0, *mesh.split())
    assert len(answer["kills"]) >= attempts
    for number, killed in enumerate(answer["killed"]):
        assert killed == answer["whole"], f"attempt {number}"
        assert answer["left"][number] == ["step-00000009", "step-00000012"]


@pytest.mark.thorough
def test_a_run_goes_on_on_other_meshes(tmp_path: Path) -> None:
    """dp 2, then one process that no launcher has started, then tp 2: within 1e-6 of dp 2 throughout.

    Each phase is stopped by Ctrl-C at one rank, which all obey at the same step, and leaves a checkpoint of its kind.
    """
    text = tmp_path / "text.txt"
    text.write_text(prose(1200), encoding="utf-8")
    said = said_by("resharded_run", text, tmp_path)
    assert said["ended"] == [[0, 0], [0, 0], [0], [0, 0]]
    assert [names for ((_, names),) in said["left"]] == [
        ["shards", "state.json"],
        ["model", "optimizer.safetensors", "state.json"],
        ["shards", "state.json"],
    ]
    assert [name for ((name, _),) in said["left"]] == ["step-00000004", "step-00000008", "step-00000012"]
    assert said["difference"] <= 1e-6
    assert said["largest"] > 0.5


@pytest.mark.slow
def test_torchrun_restarts_what_was_killed_while_saving(tmp_path: Path) -> None:
    """By torchrun itself: rank 1 dies before its shard, then rank 0 between the shards and the commit."""
    text = tmp_path / "text.txt"
    text.write_text(prose(1200), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "5", "-m", "tests.training.torchrun_killed", str(text)]
    for name, hurt in (("whole", "0"), ("killed", "1")):
        done = subprocess.run(
            [*command, str(tmp_path / name), hurt], cwd=ROOT, env=QUIET, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "kills").read_text() == "rank 1: write_data\nrank 0: finish\n"
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
    assert checkpoints(tmp_path / "killed") == ["step-00000009", "step-00000012"]
