"""Attached models that FSDP2 shards: two processes on gloo, compared with one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.ranks import free_port, run_all

ROOT = Path(__file__).parents[2]
LAUNCH = [
    sys.executable, "-m", "accelerate.commands.launch", "--use_fsdp", "--fsdp_version", "2", "--num_processes", "2",
    "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
]  # fmt: skip
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
EXACT = 2e-6  # gradients of the largest gradient, and losses of about 5: rounding alone


def launched(folder: Path, *command: str) -> str:
    """What `accelerate launch` of a module or script prints; it must end well."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = subprocess.run(
        [*LAUNCH, "--main_process_port", str(free_port()), *command],
        env={**os.environ, **QUIET, "PYTHONPATH": paths, "HF_HOME": str(folder / "hf")},
        capture_output=True, text=True, timeout=280, cwd=folder,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-4000:]
    return found.stdout


@pytest.mark.thorough
def test_two_processes_give_what_one_does(tmp_path):
    """By accelerate's FSDP2, and by the Trainer on transformers' own: gradients, losses, shifts, saved folders."""
    from tests.attachment.sharded_ranks import CASES, STEPS, TRAINED

    code = f"import os; os.environ.update({QUIET!r}); from tests.attachment.sharded_ranks import main; main()"
    run_all(code, 2, tmp_path, str(tmp_path))
    for rank in range(2):
        found: dict[str, dict[str, Any]] = json.loads((tmp_path / f"rank{rank}.json").read_text())
        rows = {name: row for name, row in found.items() if name.startswith("accelerate")}
        assert len(rows) == len(CASES)
        for name, row in rows.items():
            assert row["class"] == "FSDPLlamaForCausalLM", name
            assert row["sharded"], name
            assert row["gradients"] < EXACT, (name, row)
            assert row["losses"] < EXACT, (name, row)
            assert row["fall"] > 0.05, (name, row)  # of the loss: the steps were taken
            assert row["shift"] < 1e-4, (name, row)
        assert found["bfloat16 dca"]["weights"] == "torch.float32"
        assert found["bfloat16 dca"]["difference"] is not None  # the check of bfloat16 was passed
        for method in TRAINED:
            row = found[f"trainer {method}"]
            assert row["class"] == "FSDPLlamaForCausalLM"
            assert row["attached"]
            assert row["steps"] == STEPS
            assert row["losses"] < EXACT, (method, row)  # off by 0.02 where attach left the head's weights gathered
        assert [found[f"trainer {method}"]["rope"] for method in TRAINED] == list(TRAINED)
        assert max(found[f"trainer {method}"]["saved"] for method in TRAINED) < 1e-4
