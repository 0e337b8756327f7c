"""Training over meshes of processes: logits, gradients and whole runs are those of one process."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.attention.extensions import ReRoPE
from ropewalk.checkpoints.load import load
from ropewalk.distributed.mesh import Mesh
from ropewalk.distributed.settings import MeshSettings
from ropewalk.distributed.sharding import check_fits
from ropewalk.errors import RopeError
from ropewalk.training import TrainSettings, train
from ropewalk.training.language_model import check_windows
from tests.launch import mesh_cases
from tests.launch.ranks import run_forked
from tests.training.material import prose, small

EIGHT: list[dict[str, Any]] = [
    {"dp": 8},
    {"tp": 2},
    {"cp": 2},
    {"cp": 2, "cp_layout": "contiguous"},
    {"tp": 2, "cp": 2},
]
RUNS = [EIGHT[0], EIGHT[3], EIGHT[4]]
MODELS = [{"scaling": scaling} for scaling in mesh_cases.SCALINGS] + [{"scaling": "default", "tied": False}]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A text file of 1,200 words."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(prose(1200))
    return str(path)


def of_eight(rank: int, text: str, out: str, table: str, meshes: list[Any], models: list[Any], runs: list[Any]) -> None:
    """Everything that eight processes are asked, in one launch."""
    mesh_cases.compare(rank, meshes, models, table)
    mesh_cases.curves(rank, text, out, runs)


def losses(folder: Path) -> list[float]:
    """Of each update."""
    lines = (folder / "training-log.jsonl").read_text().splitlines()
    return [value for line in map(json.loads, lines) for value in (line["loss"], line.get("validation_loss", 0.0))]


def same_runs(one: Path, other: Path) -> float:
    """Two runs of 20 updates: losses within 1e-4, weights within 1e-4; returns the largest relative difference."""
    pairs = list(zip(losses(one), losses(other), strict=True))
    assert len(pairs) == 40
    worst = max(abs(a - b) / max(a, 1.0) for a, b in pairs)
    assert worst < 1e-4
    weights = zip(load(one).state_dict().items(), load(other).state_dict().values(), strict=True)
    for (name, expected), found in weights:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4, msg=name)
    return worst


def are_one(text: str, folder: Path, meshes: list[Any], models: list[Any], runs: list[Any]) -> None:
    """Eight processes on each mesh compute what one does, and so do runs of 20 updates."""
    out, table = folder / "runs", folder / "table.json"
    run_forked(of_eight, 8, folder, text, str(out), str(table), meshes, models, runs, seconds=800)
    assert len(json.loads(table.read_text())) == 2 * len(meshes) * len(models)
    mesh_cases.run(text, str(folder / "one"))
    for number, _ in enumerate(runs):
        same_runs(folder / "one", out / str(number))


@pytest.mark.thorough
def test_eight_processes_are_one(text, tmp_path):
    """FSDP2, tensor and context parallelism all at once, packed and not."""
    are_one(text, tmp_path, EIGHT[-1:], [{"scaling": "dynamic"}], EIGHT[-1:])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mesh_of_eight_is_one(text, tmp_path):
    """FSDP2, tensor and context parallelism, alone and all at once, for four ropes, packed and not."""
    are_one(text, tmp_path, EIGHT, MODELS, RUNS)


def test_two_processes_are_one(text, tmp_path):
    """Context and tensor parallelism; what is done wrong is refused; a signal to one stops both, and they go on."""
    run_forked(mesh_cases.of_two, 2, tmp_path, text, str(tmp_path / "runs"), str(tmp_path / "table.json"))
    stopped, whole = (load(tmp_path / "runs" / name).state_dict() for name in ("stopped", "whole"))
    for name, expected in whole.items():
        assert torch.equal(stopped[name], expected), name


def of_sizes(**sizes: int) -> Mesh:
    """A mesh that has sizes, and no processes."""
    mesh = Mesh()
    mesh.settings = MeshSettings(**sizes).of(math.prod(sizes.values()))
    mesh.dp, mesh.tp, mesh.cp = mesh.settings.dp or 1, mesh.settings.tp, mesh.settings.cp
    return mesh


def _check(settings: TrainSettings, mesh: Mesh) -> None:
    check_windows(settings, mesh)
    check_fits(settings.decoder_config(9), mesh)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp": 3}, "whole heads"),
        ({"cp": 3}, "equal parts of a window"),
        ({"dp": 3}, "equal part of a batch"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(text, sizes, message):
    """Heads, windows and batches that are no multiples."""
    settings = small(text, heads=4, kv_heads=2)
    with pytest.raises(RopeError, match=message):
        _check(settings, of_sizes(**sizes))


def test_a_method_that_counts_tokens_is_refused_in_parts(text):
    """An extension in attention, and an encoding other than a rope, have whole rows."""
    config = small(text, heads=4, kv_heads=2).decoder_config(9)
    with pytest.raises(RopeError, match="counts each row's tokens"):
        check_fits(replace(config, extension=ReRoPE(window=4)), of_sizes(cp=2))
    alibi = small(text, heads=4, kv_heads=2, encoding="alibi").decoder_config(9)
    for sizes in ({"cp": 2}, {"tp": 2}):
        with pytest.raises(RopeError, match="only models with a rope"):
            check_fits(alibi, of_sizes(**sizes))
    check_fits(alibi, of_sizes(dp=2))


def test_the_mesh_has_the_size_of_the_launch(text, tmp_path):
    """dp is what is left; another product is refused, also in a process without a launcher."""
    assert MeshSettings(tp=2).of(8).dp == 4
    for wrong in (MeshSettings(tp=3), MeshSettings(dp=2, cp=2)):
        with pytest.raises(RopeError, match="must be the number of processes"):
            wrong.of(8)
    with pytest.raises(RopeError, match="at least 1"):
        MeshSettings(cp=0)
    with pytest.raises(RopeError, match="must be the number of processes"):
        train(small(text), tmp_path / "run", mesh=MeshSettings(tp=2))
    assert not (tmp_path / "run").exists()
