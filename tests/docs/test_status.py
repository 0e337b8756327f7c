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


def on_gpu(device: str, day: int, **more: Any) -> dict[str, Any]:
    return {"device": device, "date": f"2026-12-{day:02}T10:00:00Z", **more}


def test_the_sentence_names_every_machine_of_the_records() -> None:
    """Each CPU of a record that pages draw, with its newest day; the GPUs, or that there was none."""
    said = docs_records.status()
    for name in docs_records.TIMED:
        for record in docs_records.lines(name):
            assert record["device"] in said
    assert ("No GPU was at hand" in said) == (not docs_records.lines(docs_records.GPU))


def test_no_page_makes_its_own_statement() -> None:
    """Pages have the sentence of the record."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = docs_records.MARKS.sub("", page.read_text())
        assert not re.search(r"no GPU was at hand|not yet\s+run on a GPU", text), page
    assert docs_records.TABLES["status"]() == docs_records.status()


def test_machines_instructions_and_days(tmp_path: Path) -> None:
    """Instruction sets that were measured, the best first, and the newest day of each machine; the newest first."""

    def cpu(device: str, day: str, instructions: str | None = None) -> dict[str, Any]:
        return {"device": device, "date": day, **({"instructions": instructions} if instructions else {})}

    write(tmp_path, "rotation", cpu("A, 2 cores", "2026-11-01T"), cpu("A, 2 cores", "2026-11-03T", "avx2"))
    write(tmp_path, "forward", cpu("B, 8 cores", "2026-11-04T"), cpu("A, 2 cores", "2026-11-02T", "avx512_bf16"))
    assert docs_records.status(tmp_path) == (
        "CPU times: B, 8 cores (last on 2026-11-04); A, 2 cores (AVX-512 with BF16, AVX2, last on 2026-11-03). "
        "No GPU was at hand: the Triton kernels ran in Triton's interpreter only."
    )


def test_a_gpu_is_named_and_its_last_times_are_drawn(tmp_path: Path) -> None:
    """Nothing without a record."""
    assert docs_records.gpus(tmp_path).startswith("No GPU was at hand")
    assert docs_records.gpu(tmp_path) == ""
    times = [
        {"kind": "sweep", "case": "C", "microseconds": {"ropewalk": {"p50": p50}, "copy": {"p50": 46.3}}}
        for p50 in (99.0, 50.0)
    ]
    write(tmp_path, docs_records.GPU, on_gpu("NVIDIA H100", 3, **times[0]), on_gpu("NVIDIA H100", 5, **times[1]))
    assert docs_records.gpus(tmp_path) == "GPU times: NVIDIA H100 (last on 2026-12-05)."
    drawn = docs_records.gpu(tmp_path)
    assert "| NVIDIA H100 | sweep, C | ropewalk | 0.05 | 1.08 |" in drawn
    assert drawn.count("NVIDIA") == 2
