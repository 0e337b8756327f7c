"""examples/verify: golden predictions of the built-in model, and llama.cpp's server right and wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.verification.golden import write_golden
from tests.checkpoints.prefixes import OurEngine
from tests.models.material import gguf_of
from tests.verification.conftest import small  # noqa: F401
from tests.verification.fake_server import serving

FOLDER = Path(__file__).parents[2] / "examples/verify"


@pytest.mark.thorough
def test_the_script_runs(tmp_path):
    """From the file alone: the right server passes, the wrong one ends with status 1."""
    pytest.importorskip("xllamacpp", reason="llama.cpp is in the extra llama-cpp")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["bash", str(FOLDER / "golden.sh"), str(gguf_of("tiny", tmp_path / "tiny.gguf"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "As expected" in done.stdout


def test_the_workflow_and_the_action():
    """Their YAML is valid, and the action's inputs are those that the workflow sets."""
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((FOLDER.parents[1] / "action.yml").read_text())
    steps = yaml.safe_load((FOLDER / "workflow.yml").read_text())["jobs"]["verify"]["steps"]
    [step] = [one for one in steps if "golden" in one.get("with", {})]
    assert set(step["with"]) <= set(action["inputs"])
    assert {name for name, one in action["inputs"].items() if one.get("required")} <= set(step["with"])
    run = action["runs"]["steps"][1]["run"]
    assert "${{" not in run  # inputs reach the shell as variables, not as text
    assert "torch" not in action["inputs"]["install"]["default"]


def test_the_action_runs_without_torch(small, tmp_path):  # noqa: F811
    """Its script checks a right server with numpy and scipy, and reports that another one is not reached."""
    yaml = pytest.importorskip("yaml")
    script = yaml.safe_load((FOLDER.parents[1] / "action.yml").read_text())["runs"]["steps"][1]["run"]
    write_golden(small, tmp_path / "golden.json", up_to=64)
    blocked = ("torch", "transformers", "safetensors", "tokenizers", "gguf", "huggingface_hub", "psutil", "jinja2")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\n")
    output, record = tmp_path / "output", tmp_path / "record.json"
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path),
        "GITHUB_ACTION_PATH": str(FOLDER.parents[1]), "GITHUB_OUTPUT": str(output), "RECORD": str(record),
        "GOLDEN": str(tmp_path / "golden.json"), "SERVED_NAME": "", "WAIT": "0",
    }  # fmt: skip

    def run(url):
        output.write_text("")
        done = subprocess.run(
            ["bash", "-e"], input=script, text=True, capture_output=True, check=False, env=environment | {"ENGINE": url}
        )
        return done.returncode, output.read_text(), done.stdout + done.stderr

    with serving(OurEngine(small)) as url:
        status, sentence, printed = run(url)
        assert (status, sentence[:37]) == (0, "sentence=As expected, for prompts of "), printed
    status, sentence, printed = run("http://127.0.0.1:9")
    assert (status, sentence[:40]) == (4, "sentence=No verdict: verify: the server "), printed
    assert json.loads(record.read_text())["verdict"]["exit_status"] == 4
