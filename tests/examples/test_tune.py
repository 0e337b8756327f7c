"""examples/tune.py on a small Llama: what it trains and writes, alone and sharded over two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.examples.loading import example, prose
from tests.launch.ranks import free_port
from tests.serving.material import TARGET, checkpoint

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.thorough  # importing the Trainer takes seconds
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


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Arguments of a short run on a small checkpoint."""
    text = tmp_path / "text.txt"
    text.write_text(prose(900))
    source = checkpoint(tmp_path / "source")
    return ["--model", str(source), "--text", str(text), "--target", str(TARGET), "--lr", "1e-3"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a folder, as transformers loads them."""
    return dict(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict())


def test_the_doctor_measures_before_and_after(words: list[str], tmp_path: Path) -> None:
    """The weights change, config.json has the method, and the record the losses and both measurements."""
    held_out, out = tmp_path / "held out.txt", tmp_path / "out"
    held_out.write_text(prose(400, 7))
    source = checkpoint(tmp_path / "longer", max_position_embeddings=256)  # facts need room
    words = [*words, "--model", str(source), "--target", "512"]
    losses = example("tune").main([*words, "--steps", "4", "--validation", str(held_out), "--out", str(out)])
    record = json.loads((out / "tuning.json").read_text())
    assert record["loss"] == losses
    assert len(losses) == 4
    assert record["window"] == 512
    assert list(record["doctor"]) == ["0", "4"]
    before, after = record["doctor"].values()
    assert before["within"] != after["within"]
    assert before["beyond"]["asked"] == after["beyond"]["asked"] > 0
    config = json.loads((out / "config.json").read_text())
    assert (config["rope_parameters"]["rope_type"], config["max_position_embeddings"]) == ("yarn", 512)
    before = weights(source)
    assert max(float((before[name] - weight).abs().max()) for name, weight in weights(out).items()) > 1e-4


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_adapters_are_merged(words: list[str], tmp_path: Path) -> None:
    """The folder is a whole model; feed-forward weights are unchanged. config.json has dca by its name."""
    pytest.importorskip("peft")
    words += ["--method", "dca", "--steps", "2", "--rank", "2", "--out", str(tmp_path / "out")]
    with pytest.warns(UserWarning, match=r"rw\.attach\(model\) applies it again"):
        example("tune").main(words)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["attached_method"] == {"method": "dca", "target": TARGET, "trained_length": None}
    assert json.loads((tmp_path / "out" / "tuning.json").read_text())["window"] == TARGET
    before, after = weights(tmp_path / "source"), weights(tmp_path / "out")
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert any("q_proj" in name for name in changed)
    assert any("norm" in name for name in changed)
    assert not any("mlp" in name or "embed" in name for name in changed)


def test_two_sharded_processes_train_as_one(words: list[str], tmp_path: Path) -> None:
    """`accelerate launch` with FSDP2 on gloo: losses within 2e-6, and weights within 1e-4 after four updates."""
    words += ["--steps", "4"]
    one = example("tune").main([*words, "--batch-size", "2", "--out", str(tmp_path / "one")])
    (tmp_path / "fsdp.yaml").write_text(CONFIG.format(port=free_port()))
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "fsdp.yaml")]
    script = str(Path(__file__).with_name("on_cpu.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*launch, script, *words, "--out", str(tmp_path / "two")], capture_output=True, text=True,
                          env=environment, timeout=280, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "two" / "tuning.json").read_text())["loss"] == pytest.approx(one, abs=2e-6)
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert max(float((first[name] - weight).abs().max()) for name, weight in second.items()) < 1e-4
    assert json.loads((tmp_path / "two" / "config.json").read_text())["rope_parameters"]["rope_type"] == "yarn"
