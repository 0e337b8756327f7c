"""The README is one screen, its code runs, and its numbers and pictures are those of the records."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import get_args

import pytest

from ropewalk.diagnosis import Protocol
from ropewalk.diagnosis.verdict import Action
from ropewalk.families.table import FAMILIES
from ropewalk.serving.engines import why_not

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
if not (ROOT / "docs").exists():
    pytest.skip("the source distribution has neither docs/ nor records", allow_module_level=True)
FRONT = runpy.run_path(str(ROOT / "scripts/front_figure.py"))
TERMINAL = runpy.run_path(str(ROOT / "scripts/terminal_picture.py"))
RECORDS = runpy.run_path(str(ROOT / "scripts/docs_records.py"))
SMOLLM2 = json.loads(FRONT["RECORD"].read_text())
TINY = json.loads(TERMINAL["RECORD"].read_text())


def test_it_is_short_and_begins_with_a_picture():
    """At most 120 lines; the figure stands on the first screen."""
    lines = README.splitlines()
    assert len(lines) <= 120
    assert next(number for number, line in enumerate(lines) if ".svg" in line) < 15


def test_what_it_links_and_shows_is_there():
    """Every relative address is a file; a place on a page is one of its headings."""
    addresses = [*re.findall(r"\]\(([^)]+)\)", README), *re.findall(r"(?:src|srcset)=\"([^\"]+)\"", README)]
    assert len(addresses) > 20
    for address in addresses:
        name, _, place = address.partition("#")
        assert (ROOT / name).is_file(), address
        heads = re.findall(r"^#+ (.*)$", (ROOT / name).read_text(), re.MULTILINE) if place else []
        assert place in ("", *(re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads)), address


def test_the_python_lines_run(tmp_path, monkeypatch):
    """On the built-in model as a folder of transformers' form: to 512 tokens instead of 32,768, and one method."""
    pytest.importorskip("transformers")
    shutil.copytree(ROOT / "src/ropewalk/builtin/tiny", tmp_path / "folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    [block] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in block.splitlines() if line]) == 5
    block = block.replace(
        "target=32768)", 'target=512, protocol=Protocol(windows=1), methods="yarn", measure="loss")', 1
    )
    names: dict[str, object] = {"Protocol": Protocol}
    exec(block.replace("32768", "512"), names)
    ids = names["model"].generate(max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert ids.shape[1] >= 2
    names["handle"].detach()


def test_the_figure_is_the_record():
    """Each of its files says all numbers; they are those of the record."""
    said = FRONT["description"](SMOLLM2)
    plain = next(method for method in SMOLLM2["methods"] if method["name"] == "plain")
    assert ", ".join(f"{value:.3f}" for value in plain["loss_by_block"]) in said
    assert said.count(" back ") == sum(map(len, FRONT["copies"](SMOLLM2).values()))
    files = sorted(FRONT["TO"].glob("front-*.svg"))
    assert len(files) == 4
    for file in files:
        text = file.read_text()
        assert said in text
        assert ("#222222" in text) == ("light" in file.name)


def test_the_quoted_numbers_are_the_records():
    """Of SmolLM2: losses beyond, and all gains beyond; of transformers: the exact families."""
    readme = " ".join(README.split())
    beyond = {method["name"]: f"{method['loss_beyond']:.2f}" for method in SMOLLM2["methods"]}
    far = [f"{row['gain']:+.2f}" for row in SMOLLM2["copies"]["rows"]
           if (row["method"], row["length"]) == ("yarn", SMOLLM2["target"]) and row["from"] >= 8192]  # fmt: skip
    assert f"Its mean beyond 8k is {beyond['plain']} unchanged, {beyond['yarn']} with YaRN" in readme
    assert "with YaRN, which vLLM, SGLang and llama.cpp can run" in readme
    assert f"and {beyond['crop']} with `crop`" in readme
    assert all(why_not(engine, "yarn", {"rope_type": "yarn"}) is None for engine in ("vllm", "sglang", "llama.cpp"))
    assert len(far) == 3
    assert f"YaRN gains {far[0]}, {far[1]} and {far[2]} nats per token" in readme
    assert (SMOLLM2["trained_length"], SMOLLM2["target"], SMOLLM2["verdict"]["windows"]) == (8192, 16384, 8)
    assert SMOLLM2["verdict"]["headline"] in readme
    exact, families, version = re.search(
        r"and (\d+) of the (\d+) causal families of transformers ([\d.]+) are", RECORDS["models"]()
    ).groups()
    assert f"{exact} of the {families} families of transformers {version}" in readme


def test_every_action_and_family_is_named():
    """The table of verdicts has a row for each action, and each family of the own decoder is named."""
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == set(get_args(Action))
    own = README.split("own decoder runs ")[1].split(".")[0]
    decoders = [
        family.decoder.architecture.removesuffix("ForCausalLM") for family in FAMILIES.values() if family.decoder
    ]
    assert len(decoders) >= 6
    assert [name for name in decoders if name not in own] == []


def test_the_terminal_is_the_record():
    """The picture holds the command, its verdict, every row of its table, and the next command; it fetches nothing."""
    svg = TERMINAL["PICTURE"].read_text()
    assert set(re.findall(r"https?://[^\s\"')]+", svg)) == {"http://www.w3.org/2000/svg"}
    shown = TERMINAL["words"](svg).replace("\xa0", " ")
    lines, words = [line.split() for line in shown.splitlines()], " ".join(shown.split())
    assert TINY["environment"]["command"] == "ropewalk doctor tiny"
    assert words.startswith(f"$ {TINY['environment']['command']} --json result.json tiny: ")
    assert TINY["verdict"]["sentence"] in words
    for method in TINY["methods"]:
        row = next(line for line in lines if line[:1] == [method["name"]] and line[1][:1].isdigit())
        assert row[1:3] == [f"{method['loss_within']:.3f}", f"{method['loss_beyond']:.3f}"]
        apart = [one for one in TINY["verdict"]["evidence"]
                 if (one["against"], one["method"], one["where"]) == ("crop", method["name"], "beyond")]  # fmt: skip
        for one in apart:
            low, high = one["interval"]
            assert row[3:5] == [f"{one['difference']:+.3f}", f"±{(high - low) / 2:.3f}"]
        assert len(apart) == (method["name"] not in ("plain", "crop"))
    assert (TINY["verdict"]["action"], TINY["verdict"]["method"]) == ("extend", "dca")
    assert f"rw.attach(model, 'dca', target={TINY['target']})" in words
