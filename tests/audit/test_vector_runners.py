"""The three runners in vectors/: they pass every case, and fail for a wrong tensor and for a wrong engine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.audit.vector_engine import NAMES, VECTORS

TOOLS = {"run.py": sys.executable, "run.mjs": "node", "run.cpp": "g++"}
MINUS = {"run.py": "a * cos - b * sin", "run.mjs": "f(a * c) - f(b * s)", "run.cpp": "a * c - b * s"}
ROTATING = {"prefill", "decode", "chunks", "context_parallel", "packed", "left_padded"}
Verdicts = dict[tuple[str, str], str]


@pytest.fixture(params=list(TOOLS), scope="module")
def runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[int, Verdicts]]:
    """Run a runner's source on files; its exit status, and the verdict on each case of each file."""
    name: str = request.param
    if shutil.which(TOOLS[name]) is None:
        pytest.skip(f"{TOOLS[name]} is missing: {name} is not tested here")
    folder = tmp_path_factory.mktemp("runner")

    def run(*files: Path, change: bool = False) -> tuple[int, Verdicts]:
        source, text = folder / f"{change}_{name}", (VECTORS / name).read_text()
        assert text.count(MINUS[name]) == 1
        source.write_text(text.replace(MINUS[name], MINUS[name].replace(" - ", " + ")) if change else text)
        command = [TOOLS[name], str(source)]
        if name == "run.cpp":
            command = [str(folder / f"{change}_run")]
            warnings = ["-Wall", "-Wextra", "-Werror"]
            if not Path(*command).exists():
                subprocess.run(["g++", "-std=c++17", "-O1", *warnings, str(source), "-o", *command], check=True)
            files = tuple(file.with_suffix(".safetensors") for file in files)
        ended = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
        assert not ended.stderr
        lines = [line.partition(":")[0].split("  ") for line in ended.stdout.splitlines()]
        return ended.returncode, {(Path(file).stem, case): verdict for verdict, file, case in lines}

    return run


def test_passes_every_config(runner: Callable[..., tuple[int, Verdicts]]) -> None:
    """Exit status 0; only frequencies of scaling rules that the runner lacks are not run."""
    status, verdicts = runner(*(VECTORS / f"{name}.json" for name in NAMES))
    assert status == 0
    assert {name for name, _ in verdicts} == {Path(name).stem for name in NAMES}
    left_out = {case for (_, case), verdict in verdicts.items() if verdict != "pass"}
    assert all(".inv_freq" in case for case in left_out)
    assert sum(verdict == "pass" for verdict in verdicts.values()) >= 370


def test_fails_for_a_wrong_tensor(runner: Callable[..., tuple[int, Verdicts]], tmp_path: Path) -> None:
    """One number that is off by 1e-5 fails its case only."""
    shutil.copy(VECTORS / "llama_2_7b.json", tmp_path)
    path = VECTORS / "llama_2_7b.safetensors"
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors["rope.packed.k"] = tensors["rope.packed.k"].copy()
    tensors["rope.packed.k"][3, 0, 5] += np.float64(1e-5)
    save_file(tensors, tmp_path / path.name, metadata=metadata)
    status, verdicts = runner(tmp_path / "llama_2_7b.json")
    assert status == 1
    assert [case for (_, case), verdict in verdicts.items() if verdict == "FAIL"] == ["rope.packed"]


def test_fails_for_a_wrong_engine(runner: Callable[..., tuple[int, Verdicts]]) -> None:
    """A plus in place of the minus of the rotation fails every case that rotates."""
    status, verdicts = runner(VECTORS / "llama_2_7b.json", change=True)
    assert status == 1
    assert {case for (_, case), verdict in verdicts.items() if verdict == "FAIL"} == {f"rope.{k}" for k in ROTATING}
