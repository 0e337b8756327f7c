"""The tables that the site draws hold what the records hold, and the records what the pages claim."""

from __future__ import annotations

import json
import re
from pathlib import Path

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


def test_rotation_and_attention():
    """Ratios of medians; one is above its bound in `benchmarks/rotation.py`, and the page names it."""
    last = docs_records.lines("rotation")[-1]["run"]
    [in_place] = [one["microseconds"] for one in docs_records.lines("rotation")
                  if (one["run"], one["kind"], one.get("dtype")) == (last, "one tensor", "float32")
                  and "ropewalk, in place" in one["microseconds"]]  # fmt: skip
    found = rows("rotation")
    ratio = in_place["ropewalk, in place"]["p50"] / in_place["copy"]["p50"]
    assert found["in place, float32"][1] == f"{ratio:.2f}"
    line = r"^\| (.+?) \| (.+?) \| ([\d.]+) \| [\d.]* \| ([\d.]+) \|$"
    table = re.findall(line, docs_records.TABLES["rotation"](), re.MULTILINE)
    assert len(table) == 15
    missed = [(name, other) for name, other, ratio, bound in table if float(ratio) > float(bound)]
    assert missed == [("new output, bfloat16", "transformers")]
    text = docs_records.TABLES["attention"]()
    for one in docs_records.lines("attention"):
        times = one["microseconds"]
        assert f"| {times['ropewalk']['p50'] / times['sdpa']['p50']:.2f} |" in text
        assert one["over_sdpa"] < 1


def test_whole_models():
    """Seconds of a forward."""
    text = docs_records.TABLES["forward"]()
    column = {head.strip().removesuffix(" tokens"): at for at, head in enumerate(text.splitlines()[0].split("|"))}
    cells = {row.split("|")[1].strip(): row.split("|") for row in text.splitlines()[2:] if row.startswith("|")}
    for one in {one["tokens"]: one for one in docs_records.lines("forward")}.values():
        for name in ("ropewalk float32", "transformers float32"):
            assert float(cells[name][column[f"{one['tokens']:,}"]]) == round(one["median_seconds"][name], 1)


def test_models():
    """The sentence counts classes and families as the page of models does."""
    head = (DOCS / "models.md").read_text()
    exact, classes, causal, families = re.findall(
        r"\*\*(\d+) of (\d+) rotary classes and (\d+) of (\d+) families", head
    )[0]
    text = docs_records.TABLES["models"]()
    assert text.startswith(f"{exact} of the {classes} rotary classes and {causal} of the {families} causal families")


def test_encodings_and_texts():
    """Mean loss at the trained length, recomputed; scores of the classifiers with their intervals."""
    first, *measured = docs_records.lines("compare")
    found = rows("encodings")
    for name, title in (("rope", "RoPE"), ("alibi", "ALiBi")):
        losses = [one["loss"] for one in measured
                  if (one.get("encoding"), one.get("scaling"), one.get("length")) == (name, None, 128)]  # fmt: skip
        assert len(losses) == len(first["settings"]["seeds"])
        assert found[title][0] == f"{sum(losses) / len(losses):.3f}"
    assert float(found["KERPLE"][4].split()[0]) < float(found["RoPE"][4].split()[0])
    record = json.loads((RESULTS / "classifier-banking77.json").read_text())
    for who, title in (("classifier", "encoder from scratch"), ("linear", "linear model")):
        low, high = record[who]["interval"]
        assert rows("classification")[title][0] == f"{record[who]['accuracy']:.3f} ({low:.3f} to {high:.3f})"


def test_methods():
    """Every method has a row: the text of its record, ratios of medians to plain's, and the engines that run it."""
    from ropewalk.methods import METHODS, Reach
    from ropewalk.serving.engines import ENGINES
    from ropewalk.serving.plan import ServeConfig, serving_plan
    from ropewalk.serving.served import Served

    record = json.loads((RESULTS / "method-costs.json").read_text())
    plain, lines = record["methods"]["plain"], docs_records.TABLES["methods"]().splitlines()
    heads, _, *table = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|"))
    end = 3 + len(ENGINES)  # of the columns of engines
    titles = docs_records.TITLES
    assert (set(titles), list(titles.values())) == (set(ENGINES), heads[3:end])
    assert heads[1:3] + heads[end:] == [
        "effect", "in config.json", "decode", "prefill", "memory", "arXiv",
    ]  # fmt: skip
    found = {re.match(r"\[`(.+?)`\]\(#\1\)", title)[1]: cells for title, *cells in table}
    assert list(found) == list(METHODS)
    for name, method in METHODS.items():
        assert found[name][:2] == [method.changes, method.config or "none"]
        runs = dict(zip(heads[3:end], (cell.rstrip("\\*") for cell in found[name][2 : end - 1]), strict=True))
        for engine in ENGINES:
            reach = Reach(256, 1024 if method.extends else 256)
            answer = serving_plan(Served.open("tiny", None), engine, name, reach)
            assert runs[titles[engine]] == ("yes" if isinstance(answer, ServeConfig) else "no")
        one = record["methods"].get(name)
        if one is None:
            assert found[name][end - 1 : end + 2] == ["", "", ""]
            continue
        measured = [one[kind]["p50"] / plain[kind]["p50"] for kind in ("decode", "prefill")]
        memory = sum(one[key] for key in ("cache_bytes", "temporary_bytes"))
        measured.append(memory / (plain["cache_bytes"] + plain["temporary_bytes"]))
        assert [float(cell) for cell in found[name][end - 1 : end + 2]] == pytest.approx(measured, abs=0.006)
        assert found[name][end + 2] == (
            f"[{method.source}](https://arxiv.org/abs/{method.source})" if method.source else ""
        )
    assert [cell.rstrip("\\*") for cell in found["yarn"][2 : end - 1]] == ["yes"] * (len(ENGINES) - 1) + ["no"]
    assert found["dynamic"][2:9] == ["yes\\*", "no", "no", "no", "no", "yes", "no"]
    assert found["resonance"][2:4] == ["yes", "yes"]


def test_every_method_has_its_paragraph():
    """The page of methods has a heading for each, and the table links to it."""
    from ropewalk.methods import METHODS

    page = (DOCS / "methods.md").read_text()
    assert sorted(re.findall(r"^### (.+)$", page, re.MULTILINE)) == sorted(METHODS)


def test_verify():
    """Every check is counted once, and the bounds that the page states hold."""
    record = json.loads((RESULTS / "verify-confusion.json").read_text())
    runs, found = record["each"], rows("verify")
    keys = {tuple(str(run.get(key)) for key in ("model", "kind", "expect", "applied", "noise")) for run in runs}
    assert len(keys) == len(runs) >= 2000
    assert len({run["model"] for run in runs}) >= 7
    passed = [run for run in runs if (run["truth"], run["verdict"]) == ("other", "as expected")]
    assert len(passed) == record["false_as_expected"]["checks"]
    assert {run["verdict"] for run in runs if run["truth"] == "as expected"} <= {"as expected", "undecided"}
    assert all(run["applied"].startswith("unknown") for run in passed)  # the page: no hypothesis passed
    assert record["false_as_expected"]["upper_95"] < 0.01
    assert record["false_as_expected"]["upper_95_of_pairs"] < 0.025
    assert {run["kind"] for run in runs} == {"ours", "llama.cpp"}
    assert sum(int(cells[0]) for name, cells in found.items() if name != "all") == int(found["all"][0]) == len(runs)
    assert found["all"][5] == str(len(passed))


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
