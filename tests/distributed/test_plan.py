"""The plan of a rank against sums written out by hand, and the page and the examples that come with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.distributed.plan import LLAMA_3, plan_rank
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig
from ropewalk.rope.config import RopeConfig

ROOT = Path(__file__).parents[2]
SMALL = DecoderConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=4,
    rope=RopeConfig(8, interleaved=False),
    tie_word_embeddings=False,
)


@pytest.mark.parametrize(("dp", "cp", "tp"), [(1, 2, 1), (2, 4, 2), (2, 2, 4)])
def test_parts_and_traffic_by_hand(dp, cp, tp):
    """Matrices are cut by tp and by dp x cp, norms by dp x cp alone."""
    plan = plan_rank(SMALL, 1024, dp=dp, cp=cp, tp=tp)
    of_layer = (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128) // tp + 2 * 64
    whole = 3 * of_layer + 2 * 512 * 64 // tp + 64
    assert plan.parameters == plan.gradients == plan.states // 2 == 4 * whole // (dp * cp)
    assert plan.unsharded == 2 * max(2 * of_layer, 512 * 64 // tp)
    assert plan.keys_and_values == 2 * 1024 * 32 // tp * 2
    rows = 1024 // cp
    assert plan.traffic["fsdp"] == whole * (2 + 2 + 4) * (dp * cp - 1) // (dp * cp)
    assert plan.traffic["tp"] == 3 * (2 + 2 + 2) * 2 * (tp - 1) * rows * 64 * 2 // tp
    assert plan.traffic["cp"] == 3 * 3 * plan.keys_and_values * (cp - 1) // cp
    assert plan.activations > 3 * rows * 64 * 4
    assert plan.ranks == dp * cp * tp


def test_llama_has_the_published_number_of_parameters():
    """8.03 and 70.55 billion."""
    held = {name: plan_rank(config, 8192, dp=1, cp=1, tp=1).parameters / 4 for name, config in LLAMA_3.items()}
    assert {name: round(count / 1e9, 2) for name, count in held.items()} == {"Llama-3-8B": 8.03, "Llama-3-70B": 70.55}


def test_a_mesh_that_does_not_fit():
    """More ranks than key-value heads, and a sequence that the ranks do not divide."""
    with pytest.raises(RopeError, match="whole heads"):
        plan_rank(SMALL, 1024, dp=1, cp=1, tp=8)
    with pytest.raises(RopeError, match="equal parts"):
        plan_rank(SMALL, 1001, dp=1, cp=2, tp=1)


@pytest.mark.thorough
def test_the_page_is_what_the_script_writes():
    """docs/scale.md holds the tables of this code."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "plan_scale.py", "--check"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_clusters_start_the_same_command():
    """The Slurm script is bash, the JobSet is YAML, and both end in the same doctor under the same torchrun."""
    yaml = pytest.importorskip("yaml")
    script = ROOT / "examples" / "doctor.slurm"
    subprocess.run(["bash", "-n", str(script)], check=True)
    jobset = yaml.safe_load((ROOT / "examples" / "doctor-jobset.yaml").read_text())
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    words = job["template"]["spec"]["containers"][0]["command"]
    slurm = script.read_text().replace("\\\n", " ").split("srun ", 1)[1].replace("--device ", "--device=").split()
    options = {word.partition("=")[0] for word in slurm if word.startswith("--")}
    assert options == {word.partition("=")[0] for word in words if word.startswith("--")}
    assert [word for word in slurm if word in ("torchrun", "-m", "ropewalk", "doctor")] == [
        word for word in words if word in ("torchrun", "-m", "ropewalk", "doctor")
    ]
    assert job["parallelism"] == job["completions"] == 4
    assert "--nnodes=1:4" in words


def test_training_on_a_cluster_restarts():
    """The Slurm script is bash, and torchrun starts its training again."""
    script = ROOT / "examples" / "train.slurm"
    subprocess.run(["bash", "-n", str(script)], check=True)
    words = script.read_text().replace("\\\n", " ").split("srun ", 1)[1].split()
    assert words[0] == "torchrun"
    assert "--max-restarts=3" in words
    assert words[words.index("-m") : words.index("-m") + 3] == ["-m", "ropewalk", "train"]
