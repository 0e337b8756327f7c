"""Checkpoints of several processes: whole or not there, read on any mesh, by one process too; never a pickle."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SHARDS = ["shard-00001-model-00001-of-00001.safetensors", "shard-00002-model-00001-of-00001.safetensors"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of `tests.training.sharded_ranks`, and what it said."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-W", "error", "-m", "tests.training.sharded_ranks", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_saved_in_the_background_and_read_on_other_meshes(ranks) -> None:
    """Training goes on while a save is in hand; what is read is what was there when it began, on any mesh."""
    _, said = ranks
    for name in ("dp2", "tp2"):
        assert said[f"{name} saved"] == said[f"{name} resharded"] == [0, 0]
        assert said[f"{name} left"] == ["step-00000002"]  # keep=1


def test_a_checkpoint_is_safetensors_and_json(ranks) -> None:
    """No file in it can hold code."""
    folder, _ = ranks
    files = {
        str(path.relative_to(folder / "tp2" / "checkpoints")) for path in folder.glob("tp2/**/*") if path.is_file()
    }
    assert files == {"step-00000002/state.json", *(f"step-00000002/shards/{name}" for name in SHARDS)}
    state = json.loads((folder / "tp2" / "checkpoints" / "step-00000002" / "state.json").read_text())
    assert (state["step"], state["note"], list(state["shards"])) == (2, 0, SHARDS)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_torn_checkpoint_is_a_leftover(ranks, victim: int) -> None:
    """Killed between the shards and the commit, and before a shard: the one before it is the last, the rest goes."""
    _, said = ranks
    assert said[f"torn {victim}"][victim] == 9
    assert said[f"torn {victim} left"] == [".step-00000002.shards", "step-00000001"]
    assert said[f"torn {victim} cleaned"] == ["step-00000001"]


def test_a_shard_that_cannot_be_written_is_every_ranks_error(ranks) -> None:
    """A full disk at rank 1: both raise, and the checkpoint before it is the last."""
    _, said = ranks
    assert said["full disk"] == [0, 0]
    assert [name for name in said["full disk left"] if not name.startswith(".")] == ["step-00000001"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("other model", r"holds other tensors[^$]*exp_avg.1.bias +'\(3,\) -> \(4,\)'"),
        ("shard gone", "shard-00001[^ ]* +'[0-9]+ bytes -> None'"),
        ("shard cut", "shards of it are missing or cut short"),
        ("shard spoiled", "cannot be read.\n"),
    ],
)
def test_a_damaged_checkpoint_is_refused(ranks, what: str, message: str) -> None:
    """Another model's, and shards that were lost or damaged after the commit."""
    assert re.search(message, ranks[1][what]), ranks[1][what]
