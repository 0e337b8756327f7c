"""Engines in a process of their own: what is missing or wrong is said; mlx-lm, if `make engines` has installed it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ropewalk.errors import RopeError
from ropewalk.verification.adapters import StartedEngine
from ropewalk.verification.engine import EngineError
from ropewalk.verification.verify import verify
from tests.serving.material import checkpoint

MLX = Path(__file__).parents[2] / "build" / "engines" / "mlx" / "bin" / "python"


def test_an_engine_that_is_not_installed(tmp_path: Path) -> None:
    """The command that installs it, or the other Python; a .gguf file is refused before."""
    with pytest.raises(RopeError, match="mlx-lm is not installed") as raised:
        verify("tiny", f"mlx@{sys.executable}")
    assert "pip install mlx-lm" in raised.value.cure
    with pytest.raises(RopeError, match="Python cannot be started"):
        verify("tiny", "vllm@no/such/python")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    with pytest.raises(RopeError):
        verify(file, "onnx")


def test_an_engine_that_ends() -> None:
    """Its last words are in the error."""
    with StartedEngine("mlx", "/bin/false") as engine, pytest.raises(EngineError, match="mlx-lm ended"):
        engine.generate([1], 1)


@pytest.mark.skipif(not MLX.is_file(), reason="make engines ENGINES=mlx installs it")
def test_mlx(tmp_path: Path) -> None:
    """A folder with both spellings is applied as it says; without the former one its scaling is ignored."""
    block = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    folder = checkpoint(tmp_path / "model", rope_parameters=block, max_position_embeddings=256)
    file = folder / "config.json"
    content = json.loads(file.read_text())
    found = verify(folder, f"mlx@{MLX}", max_tokens=200)
    assert found.verdict.applied == ("no scaling",)
    file.write_text(json.dumps({**content, "rope_theta": 1e4, "rope_scaling": block}))
    found = verify(folder, f"mlx@{MLX}", max_tokens=200)
    assert found.verdict.kind == "as expected"
    with StartedEngine("mlx", MLX) as engine:
        steps = engine.load(folder).generate([5, 6, 7], 3)
        tokens = [step.token for step in steps]
        assert tokens == [max(step.top, key=lambda token: step.top[token]) for step in steps]
        assert engine.generate([5, 6, 7, *tokens[:2]], 1)[0].top == pytest.approx(steps[2].top, abs=1e-4)
