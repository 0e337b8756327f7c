"""The tables that the site draws hold what the records hold, and the records what the pages claim."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from ropewalk.statistics import difference

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
if not DOCS.exists():
    pytest.skip("the source distribution has neither docs/ nor records", allow_module_level=True)
MADE = runpy.run_path(str(ROOT / "scripts/docs_records.py"))
COMMANDS = runpy.run_path(str(ROOT / "scripts/docs_commands.py"))


def rows(name):
    """The cells of a table's rows by its first column; without the head."""
    found = [line.strip("| ").split(" | ") for line in MADE["TABLES"][name]().splitlines() if line.startswith("| ")]
    return {" ".join(cells[0].split()): [cell.strip() for cell in cells[1:]] for cells in found[2:]}


def lines(name):
    """A record of one document per line."""
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def test_every_mark_has_its_table_and_every_table_its_mark():
    """A page with an unknown mark does not build."""
    marks = re.findall(r"<!-- record: (.*?) -->", "".join(page.read_text() for page in DOCS.rglob("*.md")))
    assert set(marks) == set(MADE["TABLES"])
    page = (DOCS / "benchmarks.md").read_text()
    assert "<!-- record" not in MADE["with_tables"](page)
    with pytest.raises(KeyError):
        MADE["with_tables"]("<!-- record: nothing --> *x*")


def test_smollm2():
    """Losses, paired differences to crop, gains by distance at the target, and the verdict."""
    record = json.loads((RESULTS / "doctor-smollm2-16k.json").read_text())
    table = {name: [*cells, ""] for name, cells in rows("smollm2").items()}
    for method in record["methods"]:
        within, beyond, apart, *gains = table[method["name"]]
        assert (within, beyond) == (f"{method['loss_within']:.3f}", f"{method['loss_beyond']:.3f}")
        difference = method["loss_beyond"] - found_crop(record)["loss_beyond"]
        if method["name"] not in ("plain", "crop"):
            assert float(apart.split()[0]) == pytest.approx(difference, abs=0.0011)
        expected = sorted(
            (row["from"], f"{row['gain']:+.2f}") for row in record["copies"]["rows"]
            if (row["method"], row["length"]) == (method["name"], record["target"])
        )  # fmt: skip
        assert [gain.split()[0] for gain in gains if gain] == [gain for _, gain in expected]
    assert record["verdict"]["sentence"] in MADE["TABLES"]["smollm2"]()


def found_crop(record):
    """Crop's entry in a record."""
    return next(method for method in record["methods"] if method["name"] == "crop")


def test_rotation_and_attention():
    """Ratios of medians; none above its bound in `benchmarks/rotation.py`."""
    last = lines("rotation.jsonl")[-1]["run"]
    [in_place] = [one["microseconds"] for one in lines("rotation.jsonl")
                  if (one["run"], one["kind"], one.get("dtype")) == (last, "one tensor", "float32")
                  and "ropewalk, in place" in one["microseconds"]]  # fmt: skip
    found = rows("rotation")
    ratio = in_place["ropewalk, in place"]["p50"] / in_place["copy"]["p50"]
    assert found["in place, float32"][1] == f"{ratio:.2f}"
    table = re.findall(r"\| ([\d.]+) \| ([\d.]+) \|$", MADE["TABLES"]["rotation"](), re.MULTILINE)
    assert len(table) == 16
    assert all(float(ratio) <= float(bound) for ratio, bound in table)
    text = MADE["TABLES"]["attention"]()
    for one in lines("attention.jsonl"):
        times = one["microseconds"]
        assert f"| {times['ropewalk']['p50'] / times['sdpa']['p50']:.2f} |" in text
        assert one["over_sdpa"] < 1


def test_whole_models():
    """Seconds of a forward, what a method costs over plain, milliseconds of a token."""
    text = MADE["TABLES"]["forward"]()
    for one in {one["tokens"]: one for one in lines("forward.jsonl")}.values():
        assert all(f"| {name} | {seconds:.1f} |" in text for name, seconds in one["median_seconds"].items())
    with_methods = [one for one in lines("forward.jsonl") if "dca bfloat16" in one["median_seconds"]]
    for one in {one["tokens"]: one for one in with_methods}.values():
        ratio = one["median_seconds"]["dca bfloat16"] / one["median_seconds"]["ropewalk bfloat16"]
        assert f"dca bfloat16 {ratio:.2f}" in text
    for one in lines("decode.jsonl"):
        ours = one["microseconds"]["ropewalk"]["p50"]
        row = f"| {one['tokens']:,} tokens cached | {one['dtype']} | "
        shown = next(line for line in MADE["TABLES"]["decode"]().splitlines() if line.startswith(row))
        assert float(shown.removeprefix(row).split(" | ")[0]) == pytest.approx(ours / 1000, rel=0.005)


def test_models():
    """The sentence counts classes and families as the page of models does."""
    head = (DOCS / "models.md").read_text()
    exact, classes, causal, families = re.findall(
        r"\*\*(\d+) of (\d+) rotary classes and (\d+) of (\d+) families", head
    )[0]
    text = MADE["TABLES"]["models"]()
    assert text.startswith(f"{exact} of the {classes} rotary classes and {causal} of the {families} causal families")


def test_encodings_and_texts():
    """Mean loss at the trained length, recomputed; scores of the classifiers with their intervals."""
    first, *measured = lines("compare.jsonl")
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


def test_league_of_gemma():
    """Losses and times as the record has them, and what the page says of them, block by block."""
    record = json.loads((RESULTS / "league-gemma-first.json").read_text())
    methods = {row["name"]: row for row in record["methods"]}
    assert rows("league-gemma") == {
        name: [f"{row['loss_within']:.3f}", f"{row['loss_beyond']:.3f}",
               f"{row['seconds'] / methods['plain']['seconds']:.2f}"]
        for name, row in methods.items()
    }  # fmt: skip
    assert (record["trained_length"], record["target"], record["protocol"]["windows"]) == (32768, 65536, 1)
    assert "one window gives no interval.\n" in MADE["TABLES"]["league-gemma"]() + "\n"
    losses = {name: np.array(row["loss_by_block"]) for name, row in methods.items()}
    less = losses["crop"][4:] - losses["dca"][4:]
    assert less[:2].round(2).tolist() == [0.01, 0.01]
    assert less[2:].round(2).tolist() == [0.02, 0.03]
    assert abs(losses["dca"][:4] - losses["plain"][:4]).max() < 0.001
    assert round(methods["yarn"]["loss_within"] - methods["plain"]["loss_within"], 2) == 0.08
    assert min(losses["plain"][4:] - losses["crop"][4:]) > 0.2
    assert min(losses["yarn"][4:] - losses["crop"][4:]) > 0


def test_league():
    """Losses, numbers found and times of each method, as the record has them; and what the page says of them."""
    record = json.loads((RESULTS / "league-first.json").read_text())
    methods = {row["name"]: row for row in record["methods"]}
    found, far = ({name: [0, 0] for name in methods} for _ in range(2))
    for row in record["retrieval"]:
        for sums in (found, far) if row["depth"] < 0.4 else (found,):
            sums[row["method"]][0] += row["found"]
            sums[row["method"]][1] += row["asked"]
    assert rows("league") == {
        name: [f"{row['loss_within']:.3f}", f"{row['loss_beyond']:.3f}", "{} of {}".format(*found[name]),
               "{} of {}".format(*far[name]), f"{row['seconds'] / methods['plain']['seconds']:.2f}"]
        for name, row in methods.items()
    }  # fmt: skip
    assert "over 9,830 back" in MADE["TABLES"]["league"]()  # what lies before 0.4 of the text, from its end
    beyond = {name: row["loss_beyond"] for name, row in methods.items()}
    assert min(beyond["dca"], beyond["crop"]) == min(beyond.values())
    assert record["verdict"]["action"] == "undecided"
    asked, chance = far["crop"][1], record["retrieval"][0]["chance"]
    others = sorted(far[name][0] for name in methods if name not in ("plain", "crop"))
    page = " ".join((DOCS / "evidence" / "smollm2.md").read_text().split())
    assert (
        f"Of the {asked} numbers that lie further back than `crop` can see, chance finds {asked * chance:.0f}, "
        f"`plain` {far['plain'][0]}, `crop` {far['crop'][0]}, and each of the other methods {others[0]} to {others[-1]}."  # noqa: E501
    ) in page


def test_evidence_of_removed_searches_and_self_distillation():
    """The page of what was removed quotes the records."""
    page = " ".join((DOCS / "evidence" / "removed.md").read_text().split())

    def quoted(nats, ends):
        return f"{nats:+.3f} [{ends[0]:+.3f}, {ends[1]:+.3f}]" in page

    for name in ("search-numbers-tiny", "search-dpe-tiny", "search-tiny", "search-tiny-one-book"):
        record = json.loads((RESULTS / f"{name}.json").read_text())
        held = record["held_out"]
        of = {row["name"]: row for row in held["rows"]}
        best = min(of.keys() - {"searched"}, key=lambda method: of[method]["beyond"])
        keys = (("beyond_by_window", best), ("within_by_window", "plain"))
        assert all(quoted(*difference(of["searched"][key], of[other][key])) for key, other in keys)
        assert f"against {best}" in page
        assert f"| {record['evaluations']} |" in page
    record = json.loads((RESULTS / "search-smollm2-first.json").read_text())
    assert (record["evaluations"], record["best"]["name"], record["best_start"]) == (13, "yarn", "yarn")
    assert min(point["loss"] for point in record["points"][5:] if point["loss"] is not None) > record["best"]["loss"]
    record = json.loads((RESULTS / "self-distillation-tiny.json").read_text())
    contrast = record["contrasts"]["self-distillation"][-1]
    assert quoted(-contrast["nats"], [-end for end in reversed(contrast["ci"])])
    assert len({arm["retrieval"][-1]["found"] for arm in record["arms"].values()}) == 1


def test_pose():
    """Each arm's interaction, anew from its losses by window and block, and what the page says of the control."""
    record = json.loads((RESULTS / "pose-tiny.json").read_text())
    trained, longest = record["trained_length"], record["lengths"][-1]
    found, said = rows("pose"), MADE["TABLES"]["pose"]()
    block = record["protocol"]["block"]
    gains = {}
    for arm, one in record["arms"].items():
        losses = {row["name"]: np.array(row["loss_by_window_and_block"]) for row in one["variants"]}
        far = slice(trained // block, longest // block)
        full, crop, before, before_crop = (
            losses[name][:, far].mean(1) for name in ("tuned", "tuned crop", "untuned", "untuned crop")
        )
        gains[arm] = full - crop
        interaction = one["beyond"][-1]["interaction"]
        assert interaction["nats"] == pytest.approx((full - crop - before + before_crop).mean())
        assert f"{interaction['nats']:+.3f} [{interaction['ci'][0]:+.3f}" in found[arm][0]
        assert one["beyond"][-1]["tuned_minus_its_crop"]["nats"] == pytest.approx(gains[arm].mean())
        assert one["tuning"]["tokens"] == record["arms"]["pose"]["tuning"]["tokens"]
    for arm, contrast in record["contrasts"].items():
        assert contrast[-1]["nats"] == pytest.approx((gains[contrast[-1]["of"]] - gains[arm]).mean())
    assert all(record["contrasts"][arm][-1]["ci"][1] < 0 for arm in ("no-skip", "no-skip-no-far-answers"))  # the page
    copied = {arm: one["copy"][-2]["gain"] for arm, one in record["arms"].items()}
    assert min(copied["pose"], copied["no-skip"]) > copied["no-far-answers"] > 3 * copied["no-method"]
    short = [one["beyond"][-1]["tuned_minus_its_crop"] for arm, one in record["arms"].items() if arm != "full-length"]
    assert all(found["ci"][1] > 0 for found in short)
    last = record["arms"]["full-length"]["beyond"][-1]
    holds = max(last[key]["ci"][1] for key in ("interaction", "tuned_minus_its_crop")) < 0
    assert ("The positive control holds" in said) == holds
    for what, arm in (("repeated blocks", "no-far-answers"), ("the method", "no-method")):
        (contrast,) = re.findall(rf"Effect of {what}, [^:]*: `pose` less `{arm}` (\S+)", said)
        assert float(contrast) == pytest.approx(record["contrasts"][arm][-1]["nats"], abs=0.0006)


def test_pose_on_smollm2():
    """Interactions anew from the losses, numbers found near and far, and what the page says of the arms."""
    record = json.loads((RESULTS / "pose-smollm2-first.json").read_text())
    found, near = rows("pose-smollm2"), record["trained_length"] // record["protocol"]["block"]
    arms, untuned = record["arms"], record["untuned"]
    assert (record["trained_length"], record["lengths"]) == (8192, [16384, 32768])
    assert record["protocol"]["windows"] * len(record["protocol"]["texts"]) == 4
    far, numbers, gains, ends = {}, {}, {}, {}
    for arm, one in (arms | {f"{name}, untuned": one for name, one in untuned.items()}).items():
        numbers[arm] = [row["found"] for row in one["retrieval"]]
        far[arm] = sum(part["found"] for part in one["retrieval"][1]["by_distance"] if part["distances"][0] >= 16384)
        assert found[arm][3:] == [*(f"{count} of 96" for count in numbers[arm]), f"{far[arm]} of 48"]
    for arm, one in arms.items():
        losses = {row["name"]: np.array(row["loss_by_window_and_block"]) for row in one["variants"]}
        gains[arm] = (losses["tuned"] - losses["tuned crop"])[:, near:].mean(1)
        interaction = gains[arm] - (losses["untuned"] - losses["untuned crop"])[:, near:].mean(1)
        mean, ends[arm] = difference(interaction, np.zeros(4))
        assert found[arm][0] == f"{mean:+.3f} [{ends[arm][0]:+.3f}, {ends[arm][1]:+.3f}]"
        assert found[arm][1].startswith(f"{gains[arm].mean():+.3f} [")
    # what the page says
    longer, same, plain_text = (f"trained-length{kind}" for kind in ("", "-no-skip", "-no-far-answers"))
    assert {arm: (one["tuning"]["settings"]["steps"], one["tuning"]["tokens"]) for arm, one in arms.items()} == {
        arm: (150, 150 * 2048) if arm == "pose" else (15, 15 * 8192) for arm in arms}  # fmt: skip
    assert all(12.5 <= one["tuning"]["seconds"] / 60 < 23.5 for one in arms.values())
    assert max(ends[longer][1], ends[plain_text][1]) < 0 < min(ends["pose"][0], ends[same][0])
    assert all(one["tuned_minus_plain_within"]["nats"] < 0 for one in arms.values())
    assert (gains[same] - gains[longer]).mean() == pytest.approx(0.10, abs=0.005)
    assert [gains[arm].mean() for arm in (longer, plain_text)] == pytest.approx([0.01, 0.0], abs=0.005)
    assert gains["pose"].mean() == pytest.approx(0.09, abs=0.005)
    assert (far["yarn, untuned"], far["pose"], far["lampe, untuned"], far["dca, untuned"]) == (10, 31, 32, 32)
    assert [numbers[arm][1] for arm in (longer, plain_text, "yarn, untuned")] == [46, 38, 50]


def test_methods():
    """Every method has a row: the text of its record, ratios of medians to plain's, and the engines that run it."""
    from ropewalk.methods import METHODS
    from ropewalk.serving.engines import ENGINES, why_not

    record = json.loads((RESULTS / "method-costs.json").read_text())
    plain, lines = record["methods"]["plain"], MADE["TABLES"]["methods"]().splitlines()
    heads, _, *table = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|"))
    titles = {engine.lower(): engine for engine in heads[4:9]}
    assert set(titles) == set(ENGINES)
    assert heads[1:4] + heads[9:] == [
        "effect",
        "needs tuning",
        "in config.json",
        "decode",
        "prefill",
        "memory",
        "arXiv",
    ]
    found = {re.match(r"\[`(.+?)`\]\(#\1\)", title)[1]: cells for title, *cells in table}
    assert list(found) == list(METHODS)
    for name, method in METHODS.items():
        effect, tuning, config, *engines = found[name][:8]
        assert (effect, tuning) == (method.changes, "yes" if method.needs_tuning else "no")
        assert config == (method.config or "none")
        runs = dict(zip(heads[4:9], (cell.rstrip("\\*") for cell in engines), strict=True))
        for engine in ENGINES:
            if method.extends and method.config is None:
                assert runs[titles[engine]] == "no"
                assert why_not(engine, name, None)
            elif not method.extends:
                assert runs[titles[engine]] == "yes"
                assert why_not(engine, name, None) is None
        one = record["methods"].get(name)
        if one is None:
            assert found[name][8:11] == ["", "", ""]
            continue
        measured = [one[kind]["p50"] / plain[kind]["p50"] for kind in ("decode", "prefill")]
        memory = sum(one[key] for key in ("cache_bytes", "temporary_bytes"))
        measured.append(memory / (plain["cache_bytes"] + plain["temporary_bytes"]))
        assert [float(cell) for cell in found[name][8:11]] == pytest.approx(measured, abs=0.006)
        assert found[name][11] == (f"[{method.source}](https://arxiv.org/abs/{method.source})" if method.source else "")
    assert [cell.rstrip("\\*") for cell in found["yarn"][3:8]] == ["yes"] * 5
    assert found["dynamic"][3:8] == ["yes\\*", "no", "no", "no", "no"]
    assert found["resonance"][3:8] == ["yes", "yes\\*", "yes", "yes\\*", "yes"]


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
    assert len(keys) == len(runs) == record["runs"] >= 2000
    assert len({run["model"] for run in runs}) >= 7
    passed = [run for run in runs if (run["truth"], run["verdict"]) == ("other", "as expected")]
    assert len(passed) == len(record["wrong_as_expected"])
    assert record["wrong_other"] == []
    assert all(run["applied"].startswith("unknown") for run in passed)  # the page: no hypothesis passed
    assert record["false_as_expected"]["upper_95_of_pairs"] < 0.02
    assert {run["kind"] for run in runs} == {"ours", "llama.cpp"}
    assert sum(int(cells[0]) for name, cells in found.items() if name != "all") == int(found["all"][0]) == len(runs)
    assert found["all"][5] == str(len(passed))
    assert len({one["model"] for one in record["golden_files"]}) >= 7
    assert max(one["bytes"] for one in record["golden_files"]) < 250_000


def test_every_command_has_its_options():
    """Each command of the help stands on the page, also those of groups, with the options that it takes."""
    from ropewalk.cli.app import COMMANDS as names

    text = "\n\n".join(COMMANDS["commands"]())
    page = (DOCS / "commands.md").read_text()
    for name in names:
        assert f"\n## ropewalk {name}\n" in f"\n{text}"
    assert "### ropewalk extend apply" in text
    for option in ("--target TOKENS", "--windows INTEGER", "--report PATH", "--minutes FLOAT"):
        assert f"| `{option}` |" in text.split("## ropewalk extend")[0]
    assert COMMANDS["with_commands"](page).endswith(text + "\n")
