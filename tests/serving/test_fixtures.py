"""`serve_config` on every published config of the fixtures: what is printed, what is refused and why, and each cure."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ropewalk import serving
from ropewalk.attachment import attach
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.serving.engines import ENGINES
from ropewalk.serving.plan import ServeConfig, Served
from ropewalk.serving.serve import serve_config
from tests.checkpoints.random_models import folder_of, random_model
from tests.serving.material import QWEN

tables = pytest.importorskip("engines.recorded", reason="the source distribution has no benchmarks/")
EXTENDS = [name for name, method in METHODS.items() if method.extends]
ANSWERS = list(csv.DictReader((Path(__file__).with_name("answers.csv")).read_text().splitlines()))
"""What each engine does with each config, as it is and under three methods, with the file and line of its class.

"applied", "differs: ..." (applied, with a caveat of these words), or words of the reason below. Sources are those of
vLLM 0.33.0, SGLang 0.5.23, transformers 5.23 and llama-cpp-python 0.3.36.
"""
WORDS = {
    "windows": "layers with a window keep theirs", "pairs": "pairs do not rotate",
    "unsettled": "unknown whether the model was trained", "no effect": "so that it changes none",
    "no block": "no block of rope parameters", "deepseek": "DeepSeek", "theta only": "only theta from",
    "table": "only as long as the original length", "ramp": "four times the original length",
    "one axis": "a rope of one axis", "one base": "fixes one base", "scaling removed": "removes the scaling",
    "no theta": "neither theta nor a scaling", "phi3 only": "longrope's divisors only for Phi-3",
    "llamas": "Llama's architecture and its relatives", "llama only": "but no divisor for each pair",
    "yarn only": "takes only yarn", "no class": "has no class", "differs: one list": "One list of divisors",
    "differs: by batch": "longest prompt of a batch", "differs: by context": "length of the server's context",
    "differs: queries": "queries beyond the original length are not scaled",
    "differs: truncate": "`truncate` in a yarn block", "config class": "before it has the length",
    "not loaded": "does not load",
}  # fmt: skip


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A fixture's config.json, with the sizes that it leaves out and every published file has."""
    content = json.loads((tables.CONFIGS / f"{request.param}.json").read_text())
    sizes = {"vocab_size": 64, "intermediate_size": 64} if content["model_type"] in ("llama", "qwen2", "qwen3") else {}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, **content}))
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "row"), [(one["config"], one) for one in ANSWERS], indirect=["folder"], ids=lambda one: str(one)[:40]
)
def test_every_fixture(folder: Path, row: dict[str, str]) -> None:
    """As it is, and under three methods: the answer of the table; the doctor's rule gives the same."""
    assert re.search(r"\.(py|cpp):\d+|no (own )?class", row["source"])
    for engine in ("llama.cpp", "ollama") if row["engine"] == "llama.cpp" else (row["engine"],):
        for method in ("as-is", "yarn", "ntk", "llama3"):
            answer, found = row[method], tried(folder, engine, method)
            if answer == "applied" or answer.startswith("differs"):
                assert isinstance(found, ServeConfig), found
                assert found.steps or found.file
                differs = [one.text for one in found.caveats if one.effect == "differs"]
                assert bool(differs) == (answer != "applied")
                assert not differs or WORDS[answer] in differs[0]
            else:
                assert isinstance(found, RopeError)
                assert WORDS[answer] in found.rule


def test_the_table_is_complete() -> None:
    """A row for each config and engine, and no answer without a row."""
    engines = [one for one in ENGINES if one not in ("ollama", "mlx", "onnx")]  # known from runs only
    assert sorted((one["config"], one["engine"]) for one in ANSWERS) == sorted(itertools.product(tables.NAMES, engines))
    used = {one[method] for one in ANSWERS for method in ("as-is", "yarn", "ntk", "llama3")}
    assert used == {*WORDS, "applied"}


MEASURED = ("ramp", "deepseek", "theta only", "one axis", "config class")
"""Reasons of a refusal that the engine's own ropes show."""


@pytest.mark.parametrize("method", tables.SCALED)
@pytest.mark.parametrize("engine", tables.ENGINES)
@pytest.mark.parametrize("name", tables.PLANNED)
def test_the_plan_gives_the_measured_ropes(engine: str, name: str, method: str) -> None:
    """The engine's classes compute from it what `attach` measures; if refused for its numbers, they do not."""
    row = next(one for one in ANSWERS if (one["config"], one["engine"]) == (name, engine))
    case, source, refused = tables.planned(engine, name, method)
    if refused is not None and row.get(method) not in MEASURED:
        return
    found = tables.recorded(case)
    if found.of_transformers:
        return
    wanted = METHODS[method].positions(source.own, Reach(source.trained, 4 * source.trained))
    assert found.has(wanted, 4 * source.trained) == (refused is None), found.error


@pytest.mark.parametrize(
    ("folder", "key"), [("modernbert_base", ""), ("command_r", "model_max_length")], indirect=["folder"]
)
def test_every_length_that_vllm_reads(folder: Path, key: str) -> None:
    """Tables of layers without the scaling have rows for the target; `derive_max_model_len_and_key` prefers one key."""
    source = Served.open(folder, None)
    for method in ("pi", "yarn") if key == "" else ("yarn", "ntk"):
        found = serve_config(folder, "vllm", method=method)
        words = shlex.split(found.steps[0])
        keys = json.loads(words[words.index("--hf-overrides") + 1])
        assert keys["max_position_embeddings"] == found.length == 4 * source.trained
        assert keys.get(key, found.length) == found.length
    if key:  # its card: 128K
        assert (source.trained, serve_config(folder, "vllm").length) == (131072, 131072)
        assert "model_max_length" in keys


def test_no_key_survives_a_merge() -> None:
    """vLLM keeps an attention factor and betas below `text_config`: a folder is written, and nothing merged."""
    case, source, _ = tables.of_plan("vllm", tables.MERGED, "yarn", trained=64)
    assert case.over is None
    right, wrong = tables.recorded(case), tables.recorded(tables.MERGED_OVER)
    wanted = METHODS["yarn"].positions(source.own, Reach(64, 256))
    assert (right.has(wanted, 256), wrong.has(wanted, 256)) == (True, False)
    assert wrong.layers[0].factor == 1.0


def tried(folder: Path, engine: str, method: str) -> ServeConfig | RopeError:
    try:
        return serve_config(folder, engine, method=method)
    except RopeError as error:
        return error


@pytest.mark.parametrize("folder", tables.NAMES, indirect=True)
@pytest.mark.parametrize("method", ["llama3", "rerope", pytest.param("*", marks=pytest.mark.thorough)])
def test_every_cure_works(method: str, folder: Path) -> None:
    """It names another method, which the engine runs; or Python, where the method changes the model; or nothing."""
    for engine in ENGINES if method == "*" else ("vllm", "llama.cpp", "mlx", "transformers"):
        for name in EXTENDS if method == "*" else [method]:
            found = tried(folder, engine, name)
            if isinstance(found, ServeConfig):
                continue
            named = re.findall(r"--method (\S+?)[;.,]", found.cure)
            assert name not in named
            for other in named:
                assert isinstance(tried(folder, engine, other), ServeConfig), (engine, name, other)
            source = Served.open(folder, None)
            if "rw.attach" in found.cure:
                reach = Reach(source.trained, 4 * source.trained)
                changed = METHODS[name].positions(source.own, reach)
                assert f"rw.attach(model, {name!r}, target={reach.target})" in found.cure
                assert changed != METHODS["plain"].positions(source.own, reach)
            elif not named:
                assert "--trained-length" in found.cure or "Leave out" in found.cure or "convert" in found.cure


PHI_4 = {
    "partial_rotary_factor": 0.5, "original_max_position_embeddings": 16,
    "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                        "short_factor": [1.0, 1.0], "long_factor": [1.5, 4.0], "original_max_position_embeddings": 16,
                        "finetuned": True},
}  # fmt: skip
MINISTRAL = {
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
                        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "finetuned": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3_5_text", QWEN),
        ("ministral3", MINISTRAL),
        ("phi3", PHI_4),
        ("phi3", {}),
        ("glm4", {}),
        ("gpt_neox", {}),
        ("gemma3_text", {}),
        ("olmo3", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}),
    ],
)
def test_a_folder_that_apply_wrote_is_served(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Its block is that of the override for the source, and nothing has to be overridden."""
    source = folder_of(family, tmp_path / "source", **changes)
    override = serve_config(source, "vllm", method="yarn", target=128)
    serving.apply(source, tmp_path / "out", method="yarn", target=128)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["rope_parameters"] == json.loads(json.dumps(override.block))
    if family == "phi3":  # vLLM's factor
        assert override.block["long_mscale"] == override.block["short_mscale"] == override.block["attention_factor"]
    for engine in ("vllm", "sglang", "transformers"):
        if (engine, family) == ("sglang", "ministral3"):
            with pytest.raises(RopeError, match=WORDS["table"]):
                serve_config(tmp_path / "out", engine)
            continue
        found = serve_config(tmp_path / "out", engine)
        assert found.length == 128
        assert "override" not in " ".join(found.steps)
    if family == "olmo3":  # SGLang takes transformers 4's keys, which transformers 5 leaves out
        nested = {key: value for key, value in written.items() if key not in ("rope_theta", "rope_scaling")}
        (tmp_path / "out" / "config.json").write_text(json.dumps(nested))
        with pytest.raises(RopeError, match="takes one flat rope_theta"):
            serve_config(tmp_path / "out", "sglang")
        assert serve_config(tmp_path / "out", "vllm").length == 128


@pytest.mark.parametrize("family", ["gpt_oss", "gemma2", "gptj"])
def test_the_cure_is_attach_where_it_works(family: str, tmp_path: Path) -> None:
    """GPT-J has no block, and its attention looks its tables up: there it is to serve the unchanged model."""
    shape = {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4} if family == "gptj" else {}
    served = tried(folder_of(family, tmp_path / "source", **shape), "transformers", "yarn")
    assert isinstance(served, RopeError)
    assert (served.cure == "Leave out --method, to serve the model unchanged.") == (family == "gptj")
    model, refuses = random_model(family, **shape), pytest.raises(RopeError, match="gptj has no rotary module")
    with refuses if family == "gptj" else nullcontext():
        assert ("rw.attach" in served.cure) == (family != "gptj")
        attach(model, "yarn", target=128).detach()
