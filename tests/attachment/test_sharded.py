"""Attached models that FSDP2 shards: two processes on gloo, compared with one process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.launch.ranks import run_main

QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
EXACT = 2e-6  # gradients of the largest gradient, and losses of about 5: rounding alone


@pytest.mark.thorough
def test_two_processes_give_what_one_does(tmp_path):
    """By accelerate's FSDP2, and by the Trainer on transformers' own: gradients, losses, shifts, saved folders."""
    from tests.attachment.sharded_ranks import CASES, STEPS, TRAINED

    run_main("tests.attachment.sharded_ranks", 2, tmp_path, str(tmp_path), **QUIET)
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
