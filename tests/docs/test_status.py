"""One sentence says which machine ran what: pages and README have it from the records; GPU tables only with a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

docs_records = pytest.importorskip("docs_records", reason="the source distribution has no scripts/")
ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").exists():
    pytest.skip("the source distribution has neither docs/ nor records", allow_module_level=True)


def write(folder: Path, name: str, *records: dict[str, Any]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_no_page_makes_its_own_statement() -> None:
    """Pages have the sentence of the record."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = docs_records.MARKS.sub("", page.read_text())
        assert not re.search(r"no GPU was at hand|not yet\s+run on a GPU", text), page
    assert docs_records.TABLES["status"]() == docs_records.status()


def test_machines_instructions_and_days(tmp_path: Path) -> None:
    """Instruction sets that were measured, the best first, and the newest day of each machine; the newest first."""
    cpu = {"device": "A, 2 cores", "date": "2026-11-03T"}
    others = [{"device": "B, 8 cores", "date": "2026-11-04T"}, {**cpu, "date": "2026-11-01T"}]
    better = {**cpu, "date": "2026-11-02T", "instructions": "avx512_bf16"}
    write(tmp_path, "rotation", *others, {**cpu, "instructions": "avx2"}, better)
    assert docs_records.status(tmp_path) == (
        "CPU times: B, 8 cores (last on 2026-11-04); A, 2 cores (AVX-512 with BF16, AVX2, last on 2026-11-03). "
        "No GPU was at hand: the Triton kernels ran in Triton's interpreter only."
    )


def test_a_gpu_is_named_and_its_last_times_are_drawn(tmp_path: Path) -> None:
    """Nothing without a record."""
    assert docs_records.gpus(tmp_path).startswith("No GPU was at hand")
    assert docs_records.gpu(tmp_path) == ""
    case = {"kind": "sweep", "case": "C", "device": "NVIDIA H100"}
    times = [
        {**case, "date": f"2026-12-0{day}T", "microseconds": {"ropewalk": {"p50": p50}, "copy": {"p50": 46.3}}}
        for day, p50 in ((3, 99.0), (5, 50.0))
    ]
    write(tmp_path, docs_records.GPU, *times)
    assert docs_records.gpus(tmp_path) == "GPU times: NVIDIA H100 (last on 2026-12-05)."
    drawn = docs_records.gpu(tmp_path)
    assert "| NVIDIA H100 | sweep, C | ropewalk | 0.05 | 1.08 |" in drawn
    assert drawn.count("NVIDIA") == 2
