"""The tables of the pages hold what the records hold, and the records what the pages claim."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

docs_records = pytest.importorskip("docs_records", reason="the source distribution has no scripts/")
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
if not DOCS.exists():
    pytest.skip("the source distribution has neither docs/ nor records", allow_module_level=True)


def rows(name):
    """The cells of a table's rows by its first column; without the head."""
    found = [
        line.strip("| ").split(" | ") for line in docs_records.TABLES[name]().splitlines() if line.startswith("| ")
    ]
    return {" ".join(cells[0].split()): [cell.strip() for cell in cells[1:]] for cells in found[2:]}


PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- /" in page.read_text()], ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_of_its_records(page):
    """`make docs-tables` writes them."""
    text = page.read_text()
    assert docs_records.with_tables(text) == text
    assert text.count("<!-- /") == len(docs_records.MARKS.findall(text))


def test_every_table_has_its_mark():
    """An unknown mark raises."""
    marks = re.findall(r"<!-- record: (.*?) -->", "".join(page.read_text() for page in PAGES))
    assert set(marks) == set(docs_records.TABLES)
    old = "a\n<!-- record: models -->\nold\n<!-- /record -->\nb"
    new = docs_records.with_tables(old)
    assert new == f"a\n<!-- record: models -->\n\n{docs_records.TABLES['models']()}\n\n<!-- /record -->\nb"
    with pytest.raises(KeyError):
        docs_records.with_tables("<!-- record: nothing -->\n<!-- /record -->")


def test_rotation():
    """Ratios of medians; one is above its bound in `benchmarks/rotation.py`, and the page names it."""
    last = docs_records.lines("rotation")[-1]["run"]
    [in_place] = [one["microseconds"] for one in docs_records.lines("rotation")
                  if (one["run"], one["kind"], one.get("dtype")) == (last, "one tensor", "float32")
                  and "ropewalk, in place" in one["microseconds"]]  # fmt: skip
    ratio = in_place["ropewalk, in place"]["p50"] / in_place["copy"]["p50"]
    assert rows("rotation")["in place, float32"][1] == f"{ratio:.2f}"
    line = r"^\| (.+?) \| (.+?) \| ([\d.]+) \| [\d.]* \| ([\d.]+) \|$"
    table = re.findall(line, docs_records.TABLES["rotation"](), re.MULTILINE)
    assert len(table) == 15
    missed = [(name, other) for name, other, ratio, bound in table if float(ratio) > float(bound)]
    assert missed == [("new output, bfloat16", "transformers")]


def test_models():
    """The sentence counts classes and families as the page of models does."""
    head = (DOCS / "models.md").read_text()
    exact, classes, causal, families = re.findall(
        r"\*\*(\d+) of (\d+) rotary classes and (\d+) of (\d+) families", head
    )[0]
    text = docs_records.TABLES["models"]()
    assert text.startswith(f"{exact} of the {classes} rotary classes and {causal} of the {families} causal families")


def test_encodings():
    """The mean loss over the seeds at the trained length; KERPLE reaches further than RoPE."""
    losses = [one["loss"] for one in docs_records.lines("compare")[1:]
              if (one.get("encoding"), one.get("scaling"), one.get("length")) == ("rope", None, 128)]  # fmt: skip
    found = rows("encodings")
    assert found["RoPE"][0] == f"{sum(losses) / len(losses):.3f}"
    assert float(found["KERPLE"][4].split()[0]) < float(found["RoPE"][4].split()[0])


def test_methods():
    """Every method has a row, with the engines that run it."""
    from ropewalk.methods import METHODS
    from ropewalk.serving.engines import ENGINES

    found = {re.match(r"\[`(.+?)`\]", title)[1]: cells for title, cells in rows("methods").items()}
    assert list(found) == list(METHODS)
    assert set(docs_records.TITLES) == set(ENGINES)
    end = 2 + len(ENGINES)
    assert [cell.rstrip("\\*") for cell in found["yarn"][2:end]] == ["yes"] * (len(ENGINES) - 1) + ["no"]
    assert found["dynamic"][2:9] == ["yes\\*", "no", "no", "no", "no", "yes", "no"]
    assert found["resonance"][2:4] == ["yes", "yes"]


def test_every_method_has_its_paragraph():
    """The page of methods has a heading for each, and the table links to it."""
    from ropewalk.methods import METHODS

    page = (DOCS / "methods.md").read_text()
    assert sorted(re.findall(r"^### (.+)$", page, re.MULTILINE)) == sorted(METHODS)


@pytest.mark.parametrize(("name", "servers"), [("verify-servers", 18), ("verify-servers-vllm", 7)])
def test_verify_servers(name, servers):
    """No server of SmolLM2 in llama.cpp or vLLM is undecided or called wrong, and the page has a row for each."""
    runs = json.loads((RESULTS / f"{name}.json").read_text())["servers"]
    assert len(runs) >= servers
    assert all(run["kind"] == run["right"] and run["exit_status"] == (run["kind"] != "as expected") for run in runs)
    assert all(effect["nats"] < effect["noise"] for run in runs for effect in run["not_excluded"])


def test_every_command_has_its_options():
    """Each command of the help stands on the page, also those of groups, with the options that it takes."""
    from docs_reference import commands

    from ropewalk.cli.app import COMMANDS

    text = commands()
    for name in COMMANDS:
        assert f"\n## ropewalk {name}\n" in f"\n{text}"
    assert "### ropewalk extend apply" in text
    for option in ("--target TOKENS", "--windows <int>", "--report PATH", "--methods, --method NAMES"):
        assert f"| `{option}` |" in text.split("## ropewalk extend")[0]


def test_the_evidence_quotes_its_records():
    """The control, and the correlation of facts with a task."""
    page = " ".join((DOCS / "evidence.md").read_text().split())
    league = json.loads((RESULTS / "league.json").read_text())["smollm2"].values()
    found, asked = (sum(run["control"][place] for run in league) for place in (0, 1))
    assert f"finds {found} of {asked} facts" in page
    result = json.loads((RESULTS / "tasks.json").read_text())["result"]
    assert f"correlation of {result['predictors']['margin']['far facts']['mean']:.2f} over nine methods" in page


# --- one sentence says which machine ran what; tables of a GPU only with a GPU


def write(folder: Path, name: str, *records: dict[str, Any]) -> None:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_no_page_makes_its_own_statement() -> None:
    """Pages have the sentence of the record."""
    for page in PAGES:
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
