"""`accelerate launch -m ropewalk extend tune`: two processes on gloo, sharded by FSDP2, against one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extend.material import TARGET, checkpoint
from tests.extend.test_tuning import other, weights

pytestmark = pytest.mark.thorough
CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
num_machines: 1
num_processes: 2
use_cpu: true
mixed_precision: "no"
main_process_port: {port}
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: FULL_STATE_DICT
"""
SETTINGS = 'precision = "float32"\ndevice = "cpu"\nmeasure = false\nbatch_size = 1\ntokens_per_step = 32\n'


def tuned(source: Path, text: str, out: Path, train: str, *, launched: bool) -> list[float]:
    """The losses of a run of the command; sharded over two processes, or in one."""
    (out.parent / "s.toml").write_text(SETTINGS)
    words = ["-m", "ropewalk", "extend", "tune", str(source), "--out", str(out), "--text", text, "--train", train]
    words += ["--target", str(TARGET), "--steps", "4", "--lr", "1e-3", "--settings", str(out.parent / "s.toml")]
    before = [sys.executable]
    if launched:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (out.parent / "fsdp.yaml").write_text(CONFIG.format(port=port))
        before += ["-m", "accelerate.commands.launch", "--config_file", str(out.parent / "fsdp.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*before, *words], capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((out / "extend.json").read_text())["tuning"]
    assert record["sharded"] == launched
    assert record["processes"] == 1 + launched
    return [float(entry["loss"]) for entry in record["log"]]


@pytest.mark.parametrize(("family", "train"), [("llama", "full"), ("qwen3", "lora+norms"), ("Gemma3", "lora+norms")])
def test_two_sharded_processes_train_as_one(text: str, tmp_path: Path, family: str, train: str) -> None:
    """Losses within 2e-6, and weights within 1e-4 after four updates of AdamW."""
    source = (checkpoint if family.islower() else other)(tmp_path / "source", family)
    losses = [tuned(source, text, tmp_path / f"{two}", train, launched=two) for two in (False, True)]
    assert losses[1] == pytest.approx(losses[0], abs=2e-6)
    one, two = (weights(tmp_path / name) for name in ("False", "True"))
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-4
    assert max(float((one[name] - weight).abs().max()) for name, weight in weights(source).items()) > 1e-4
