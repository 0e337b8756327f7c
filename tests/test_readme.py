"""The README's code runs, and the numbers that it quotes are those of the records."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from ropewalk.bench.record import last_run
from ropewalk.bench.rows import judge, rows_for
from ropewalk.diagnosis.next_step import next_step
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.report.use import used_span

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_five_lines(tmp_path, monkeypatch):
    """The python blocks run as they stand, on a published config."""
    (tmp_path / "path" / "to").mkdir(parents=True)
    shutil.copy(ROOT / "tests/fixtures/configs/llama_3_1_8b.json", tmp_path / "path/to/config.json")
    monkeypatch.chdir(tmp_path)
    first, *others = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(first, names)
    assert names["q"].shape == (1, 16, 32, 128)
    for block in others:
        exec(block, names)


def test_the_quoted_answer_is_the_record():
    """What the doctor says of the built-in model: its sentence, every row of its table, and the next command."""
    record = json.loads((ROOT / "benchmarks/results/doctor-tiny.json").read_text())
    block = re.search(r"```console\n\$ ropewalk doctor tiny .*?```", README, re.DOTALL)[0]
    command, *lines = block.splitlines()[1:]
    assert command == f"$ {record['environment']['command']}"
    said = " ".join(" ".join(lines).split(" ... ")[0].split())
    assert f"tiny: {record['verdict']['sentence']}".startswith(said)
    assert len(said) > 300
    beyond = {
        method["name"]: np.array(method["loss_by_window_and_block"])[:, 4:].mean(1) for method in record["methods"]
    }
    for method in record["methods"]:
        name, gain, ends = method["name"], method["difference_beyond"], method["difference_beyond_ci"]
        row = next(line.split() for line in lines if line.split()[:1] == [name])
        assert row[1:3] == [f"{method['loss_within']:.3f}", f"{method['loss_beyond']:.3f}"]
        if name != "plain":
            assert row[3:5] == [f"{gain:+.3f}", f"±{(ends[1] - ends[0]) / 2:.3f}"]
        if name != "crop":
            assert f"{(beyond[name] - beyond['crop']).mean():+.3f}" in row
        span = used_span(record, name)
        assert " ".join(row).endswith(span)
        assert (name in ("dca", "crop")) == bool(span)
    following = next_step(Verdict(action="extend", method=record["verdict"]["method"]), "tiny", record["target"])
    assert lines[-2].strip() == following


def test_the_quoted_table_is_the_record():
    """Every number of the SmolLM2 table is the recorded one, rounded, and the verdict is the record's."""
    record = json.loads((ROOT / "benchmarks/results/doctor-smollm2-135m-first.json").read_text())
    readme = " ".join(README.split())
    differences = {one["method"]: one for one in record["verdict"]["evidence"] if one["against"] == "crop"}
    for method in record["methods"]:
        name = method["name"]
        copied = [row["gain"] for row in record["use"] if (row["method"], row["test"]) == (name, "copy")
                  and row["distance"] in (8864, 11456, 14816)]  # fmt: skip
        found = [row for row in record["retrieval"] if (row["method"], row["length"]) == (name, 16384)]
        halves = [row["found"] for row in found if row["depth"] is not None]
        against = "" if name == "crop" else f"{differences[name]['difference']:+.3f} "
        cells = [
            f"{method['loss_within']:.3f}", f"{method['loss_beyond']:.3f}", against.strip(),
            *(f"{gain:+.2f}" for gain in copied), str(sum(halves)), str(halves[0]),
        ]  # fmt: skip
        assert f"| {name} | {' | '.join(cells)} |".replace("|  |", "| |") in README
    assert record["verdict"]["action"] == "extend"
    assert record["verdict"]["method"] == "dca"
    for test, distance in (("copy", 8864), ("copy", 14816), ("exchange", 8192)):
        of_dca = [row for row in record["use"] if (row["method"], row["test"]) == ("dca", test)]
        [row] = [row for row in of_dca if row["distance"] == distance]
        digits = 2 if test == "copy" else 3
        low, high = row["interval"]
        assert f"({row['gain']:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}])" in readme
    quoted = re.findall(r"[+-]\d\.\d{3} \[[+-]\d\.\d{3}, [+-]\d\.\d{3}\]", record["verdict"]["sentence"])
    assert all(part in readme for part in quoted[:2])


def test_the_quoted_long_window_is_the_record():
    """Losses, memory and speed at 32,768 tokens; the memory is below the four gigabytes that were asked for."""
    record = json.loads((ROOT / "benchmarks/results/doctor-smollm2-135m-32k.json").read_text())
    rows = {method["name"]: method for method in record["methods"]}
    best = rows[record["recommended"]]
    assert f"holds {best['loss_beyond']:.2f} nats beyond" in README
    assert f"where plain has {rows['plain']['loss_beyond']:.2f}" in README
    assert f"in {best['peak_rss_bytes'] / 1e9:.2f} GB" in README
    assert best["peak_rss_bytes"] < 4e9
    assert f"at {record['target'] / best['seconds']:.0f} tokens a second" in README


QUOTED = {  # a row of the table: contender and what it is held against, as the record names them
    "in place, `y.copy_(x)`": ("in place", "copy"),
    "into a given tensor, `y.copy_(x)`": ("given output", "copy"),
    "into a new tensor, `x.clone()`": ("new output", "clone"),
    "into a given tensor, onnxruntime's RotaryEmbedding": ("given output", "onnxruntime"),
    "into a new tensor, transformers' eager function": ("new output", "transformers"),
    "into a new tensor, the same under torch.compile": ("new output", "torch.compile"),
    "one decoded token (32 query heads, 8 of keys), transformers' eager function": (
        "one decoded token",
        "transformers",
    ),
    "`qk_norm_rotate`, our norm and rotation one after the other": ("qk_norm_rotate", "ropewalk, norm then rotate"),
}


def test_the_quoted_speeds_are_the_record():
    """Every ratio of the table is the recorded one, rounded; none is left out."""
    outcomes = judge(rows_for("cpu"), last_run(ROOT / "benchmarks/results/rotation.jsonl"))
    quoted = re.findall(r"^\| (.+) \| (0\.\d\d)? ?\| (0\.\d\d)? ?\|$", README, re.MULTILINE)
    assert [name for name, *_ in quoted] == list(QUOTED)
    for name, *ratios in quoted:
        contender, against = QUOTED[name]
        for dtype, ratio in zip(("float32", "bfloat16"), ratios, strict=True):
            found = [
                outcome.value for outcome in outcomes
                if against in outcome.row.against and outcome.row.dtype == dtype
                and (outcome.row.kind == contender or outcome.row.name == f"{contender}, {dtype}")
            ]  # fmt: skip
            assert [f"{value:.2f}" for value in found] == [ratio] * bool(ratio), (name, dtype)


def test_the_classifiers_scores_are_the_records():
    """Accuracy and macro-F1 of both sets, ours and the baseline's, with their intervals."""
    for name, title in (("banking77", "banking77"), ("polarity", "sentence polarity")):
        record = json.loads((ROOT / f"benchmarks/results/classify-{name}.json").read_text())
        for who, key in (("classifier", "test"), ("TF-IDF + logistic regression", "baseline")):
            scores = (record[key][score] for score in ("accuracy", "macro_f1"))
            cells = (f"{s['value']:.3f} ({s['interval'][0]:.3f} to {s['interval'][1]:.3f})" for s in scores)
            assert f"| {title} | {who} | {' | '.join(cells)} |" in README
        if name == "banking77":
            assert f"took {record['training']['cpu_seconds'] / 60:.1f} minutes of one core" in README


def test_the_comparisons_table_is_the_records():
    """Mean loss at the trained length, rise and half its interval beyond it, of every encoding shown."""
    from ropewalk.comparison import summarise
    from ropewalk.comparison.record import read_record

    first, lines = read_record(ROOT / "benchmarks/results/compare.jsonl")
    trained = first["settings"]["seq_len"]
    rows = {(row.encoding, row.scaling, row.length): row for row in summarise(lines, trained)}
    titles = {"sinusoidal": "sinusoidal", "learned": "learned table", "rope": "RoPE", "t5": "T5 bias",
              "alibi": "ALiBi", "kerple": "KERPLE"}  # fmt: skip
    assert set(titles) == set(first["settings"]["encodings"])
    for (name, scaling), title in [*(((name, None), title) for name, title in titles.items()),
                                   (("rope", "yarn"), "RoPE, YaRN when tested")]:  # fmt: skip
        cells = [f"{rows[name, None, trained].loss:.3f}"]
        for multiple in first["settings"]["multiples"][1:]:
            row = rows[name, scaling, multiple * trained]
            low, high = row.rise_interval or (0.0, 0.0)
            cells.append("none" if row.rise is None else f"{round(row.rise, 3) + 0.0:+.3f} ±{(high - low) / 2:.3f}")
        assert f"| {title} | {' | '.join(cells)} |" in README


@pytest.mark.parametrize("name", ["doctor", "inspect", "generate", "train", "compare", "classify", "figure"])
def test_every_command_is_in_the_readme(name):
    """Each command has a line that shows it."""
    assert re.search(rf"^\$ ropewalk {name}", README, re.MULTILINE)


def test_the_quoted_forwards_are_the_record():
    """Seconds, ratios and the share of a matrix product's rate at 16,384 tokens: the last such line of the record."""
    lines = map(json.loads, (ROOT / "benchmarks/results/forward.jsonl").read_text().splitlines())
    record = [line for line in lines if line["tokens"] == 16_384][-1]
    ours = "ropewalk bfloat16"
    ratios = {(one["of"], one["over"]): one["ratio"] for one in record["ratios"]}
    readme = " ".join(README.split())
    for said in (
        f"takes {record['median_seconds'][ours]:.0f} s in bfloat16 on two cores",
        f"{ratios[ours, 'transformers bfloat16']:.2f} of the time of transformers' own forward in bfloat16",
        f"{ratios[ours, 'transformers float32']:.2f} of the one in float32",
        f"{ratios[ours, 'llama.cpp Q4_1']:.2f} of llama.cpp's on its 4-bit weights",
        f"{record['share_of_matrix_product'][ours]:.2f} of the rate of a large matrix product",
    ):
        assert said in readme
    assert all(ratios[f"{name} bfloat16", ours] <= 1.0 for name in ("dca", "self-extend", "rerope"))
