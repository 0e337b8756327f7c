"""What is printed to be pasted, run by a real shell: a hostile name is one argument, and nothing else runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ropewalk.checkpoints.sources import find
from ropewalk.cli.app import main
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.serving.engines import ENGINES
from ropewalk.serving.serve import setting_command
from tests.models.material import gguf_of

NAMES = [
    "-new\nline 'quote'; touch RAN; \"",
    "$(touch RAN) `touch RAN` && touch RAN \\",
    "END\ntouch RAN\n\x1b[201~\r~ *  \\é",
]
PROGRAMS = ("ropewalk", "vllm", "python", "llama-server", "mlx_lm.server", "ollama", "hf")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and stand-ins on the path that record their arguments."""
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        stand_in = tmp_path / "bin" / name
        stand_in.write_text(f"#!/bin/bash\nprintf '%s\\0' {name} \"$@\" >> '{tmp_path}/log'\n")
        stand_in.chmod(0o755)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def arguments(place: Path, printed: str) -> list[str]:
    """The arguments of all programs that a shell runs for what was printed."""
    (place / "log").unlink(missing_ok=True)
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", printed], check=True, env={"PATH": path, "HOME": "/nowhere"}, timeout=30)
    assert not list(place.rglob("RAN"))
    return (place / "log").read_bytes().decode().split("\0") if (place / "log").exists() else []


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_is_one_argument(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a folder and of a .gguf file, relative and absolute, under every engine; a Modelfile cannot name them all."""
    shutil.copytree(find("tiny"), name)
    file = gguf_of("tiny", place / f"{name}.gguf")
    for source in (name, str(file)):
        relative = os.path.relpath(source)
        for engine in ENGINES:
            for method in ("as-is", "ntk" if engine == "onnx" else "yarn"):
                with pytest.raises(SystemExit) as ended:
                    main(["serve-config", "--engine", engine, "--method", method, "--", source])
                shown = capsys.readouterr()
                if ended.value.code == 2:
                    assert "Modelfile" in shown.err
                    assert engine == "ollama"
                    continue
                given = arguments(place, shown.out.partition("\nChecked for")[0])
                assert not any(word.startswith("-touch") for word in given), "an option"
                words = {os.path.relpath(word) for word in given if "/" in word or word == source}
                scripted = any(Path(one).exists() for one in ("serve.py", "Modelfile"))
                assert relative in words or scripted
                for one in ("serve.py", "Modelfile"):
                    Path(one).unlink(missing_ok=True)
        for engine in (None, *ENGINES):
            given = arguments(place, setting_command(engine, source, "yarn", target=1024, record=Path(name, "a.json")))
            assert {os.path.abspath(source), os.path.abspath(f"{name}/a.json")} <= {*given}
        command = DoctorSettings(text=name).command(source, kept=["--json", name], resume=True)
        given = arguments(place, command)
        named = [os.path.relpath(given[place]) for place in (2, 4, 7)]
        assert (given[3], given[5:7], named) == ("--text", ["--resume", "--json"], [relative, name, name])
