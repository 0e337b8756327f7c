"""The cluster examples: both start the same command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
