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


def on_gpu(key: str, *, status: str = "done", place: str = "NVIDIA H100", day: int = 3, **more: Any) -> dict[str, Any]:
    return {"key": key, "status": status, "place": place, "interpreter": place == "interpreter",
            "date": f"2026-12-{day:02}T10:00:00Z", **more}  # fmt: skip


def test_the_sentence_names_every_machine_of_the_records() -> None:
    """Each CPU of a record that pages draw, with its newest day; the GPUs, or that there was none."""
    said = docs_records.status()
    for name in docs_records.TIMED:
        for record in docs_records.lines(name):
            assert record["device"] in said
    real = [one for step in docs_records.STEPS for one in docs_records.lines(f"gpu-{step}") if not one["interpreter"]]
    assert ("No GPU was at hand" in said) == (not real)
    assert not any(one["interpreter"] for step in docs_records.STEPS for one in docs_records.lines(f"gpu-{step}")), (
        "records of the interpreter belong to build/"
    )


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
    write(tmp_path, "decode", cpu("B, 8 cores", "2026-11-04T"), cpu("A, 2 cores", "2026-11-02T", "avx512_bf16"))
    assert docs_records.status(tmp_path) == (
        "CPU times: B, 8 cores (last on 2026-11-04); A, 2 cores (AVX-512 with BF16, AVX2, last on 2026-11-03). "
        "No GPU was at hand: the Triton kernels ran in Triton's interpreter only."
    )


def test_a_gpu_is_named_with_its_failures(tmp_path: Path) -> None:
    """Interpreted records and stopped jobs do not count; failing tests do, until they pass."""
    write(tmp_path, "gpu-rotation", on_gpu("a", place="interpreter"), on_gpu("b", status="stopped"))
    assert docs_records.gpus(tmp_path).startswith("No GPU was at hand")
    bad = on_gpu("tests/gpu", status="wrong", bad=["x", "y"], outcomes={"failed": 2, "passed": 5})
    write(tmp_path, "gpu-tests", bad)
    write(tmp_path, "gpu-decode", on_gpu("c", status="crashed", day=4))
    assert docs_records.gpus(tmp_path) == "GPU times: NVIDIA H100 (last on 2026-12-04; 3 checks failed)."
    write(tmp_path, "gpu-tests", bad, on_gpu("tests/gpu", bad=[], outcomes={"passed": 7}, day=5),
          on_gpu("tests/gpu", status="stopped", day=6))  # fmt: skip
    write(tmp_path, "gpu-decode", on_gpu("c", status="crashed", day=4), on_gpu("c", model="m", microseconds={
        "ropewalk": {"p50": 900.0}, "transformers": {"p50": 2000.0}}, day=5))  # fmt: skip
    assert docs_records.gpus(tmp_path) == "GPU times: NVIDIA H100 (last on 2026-12-05)."
    drawn = docs_records.gpu(tmp_path)
    assert "`tests/gpu`: 7 passed." in drawn
    assert "| NVIDIA H100 | c, m | ropewalk | 0.9 | 0.45 |" in drawn


def test_what_jobs_record_is_drawn(tmp_path: Path) -> None:
    """Records as the jobs of rotation make them; nothing without records."""
    assert docs_records.gpu(tmp_path) == ""
    write(tmp_path, "gpu-rotation", on_gpu("sweep, C",
          microseconds={"ropewalk, new output": {"p50": 50.0}, "copy": {"p50": 46.3}}))  # fmt: skip
    verdict = {"verdict": {"sentence": "Extend."}}
    write(tmp_path, "gpu-doctor", on_gpu("doctor", model="SmolLM2", target=32768, result=verdict))
    drawn = docs_records.gpu(tmp_path)
    for line in (
        "| NVIDIA H100 | sweep, C | ropewalk, new output | 0.05 | 1.08 |",
        "Doctor on SmolLM2 at 32,768 tokens, NVIDIA H100: Extend.",
    ):  # fmt: skip
        assert line in drawn, line
