"""`serve_config` on every published config of the fixtures: what is printed, what is refused and why, and each cure."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from ropewalk import serving
from ropewalk.attachment import attach
from ropewalk.checkpoints.export import HubRope, hub_rope
from ropewalk.checkpoints.gguf import PERMUTED
from ropewalk.checkpoints.gguf_keys import gguf_rope
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.rope.config import ropes_of_layer_types
from ropewalk.rope.frequencies import same_rope
from ropewalk.serving.engines import ENGINES
from ropewalk.serving.serve import ServeConfig, serve_config
from ropewalk.serving.served import Served
from tests.readers.random_models import folder_of, random_model

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))
EXTENDS = [name for name, method in METHODS.items() if method.extends]
ANSWERS = list(csv.DictReader((Path(__file__).with_name("answers.csv")).read_text().splitlines()))
"""What each engine does with each config, as it is and under three methods, with the file and line of its class.

"applied", "differs: ..." (applied, with a caveat of these words), or words of the reason below. Sources are those of
vLLM 0.33.0, SGLang 0.5.23, transformers 5.23 and llama-cpp-python 0.3.36.
"""
WORDS = {
    "windows": "layers with a window keep theirs",
    "pairs": "pairs do not rotate",
    "unsettled": "unknown whether the model was trained",
    "no effect": "so that it changes none",
    "no block": "no block of rope parameters",
    "deepseek": "DeepSeek",
    "theta only": "only theta from",
    "flat keys": "flat keys",
    "table": "only as long as the original length",
    "ramp": "four times the original length",
    "one axis": "a rope of one axis",
    "one base": "fixes one base",
    "scaling removed": "removes the scaling",
    "no theta": "neither theta nor a scaling",
    "phi3 only": "longrope's divisors only for Phi-3",
    "llamas": "Llama's architecture and its relatives",
    "llama only": "only into .gguf files of Llama's",
    "yarn only": "takes only yarn",
    "no class": "has no class",
    "differs: one list": "One list of divisors",
    "differs: by batch": "longest prompt of a batch",
    "differs: by context": "length of the server's context",
    "differs: queries": "queries beyond the original length are not scaled",
    "differs: truncate": "`truncate` in a yarn block",
}


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A fixture's config.json, with the sizes that it leaves out and every published file has."""
    content = json.loads((CONFIGS / f"{request.param}.json").read_text())
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
                first = next((one for one in found.caveats if one.before is None), None)
                differs = first is not None and first.effect == "differs"
                assert differs == (answer != "applied")
                assert not differs or (first is not None and WORDS[answer] in first.text)
            else:
                assert isinstance(found, RopeError)
                assert WORDS[answer] in found.rule
            if method != "as-is" and answer != "unsettled":  # the doctor finds out whether it was trained so
                source = Served.open(folder, None)
                why = source.why_not(engine, method, Reach(source.trained, 4 * source.trained))
                assert (why is None) == isinstance(found, ServeConfig)
                assert why is None or WORDS[answer] in why


def test_the_table_is_complete() -> None:
    """A row for each config and engine, and no answer without a row."""
    engines = [one for one in ENGINES if one != "ollama"]
    assert sorted((one["config"], one["engine"]) for one in ANSWERS) == sorted(itertools.product(NAMES, engines))
    used = {one[method] for one in ANSWERS for method in ("as-is", "yarn", "ntk", "llama3")}
    assert used == {*WORDS, "applied"}


def overridden(config: Any, keys: dict[str, Any]) -> Any:
    """A config after vLLM's `_apply_dict_overrides` (0.33.0's config/model.py), which neither fills in nor checks."""
    for key, value in keys.items():
        current = getattr(config, key, None)
        if isinstance(current, transformers.PreTrainedConfig):
            overridden(current, value)
        else:
            setattr(config, key, value)
    return config


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", NAMES, indirect=True)
def test_the_override_gives_the_measured_ropes(folder: Path) -> None:
    """Put into the config of transformers' class, it gives each layer type the rope that `attach` measures."""
    for method in ("yarn", "ntk", "llama3", "resonance"):
        try:
            found = serve_config(folder, "vllm", method=method)
        except RopeError:
            continue
        source = Served.open(folder, None)
        reach = Reach(source.trained, 4 * source.trained)
        words = shlex.split(found.steps[0])
        try:
            config = transformers.AutoConfig.from_pretrained(folder)
        except KeyError as error:  # "su" of the first Phi-3 needs its own code
            pytest.skip(str(error))
        keys = json.loads(words[words.index("--hf-overrides") + 1])
        text = overridden(config, keys).get_text_config()
        ropes = ropes_of_layer_types(text)
        assert text.max_position_embeddings == reach.target
        wanted = METHODS[method].positions(source.own, reach).ropes
        for label, rope in zip(source.labels, wanted, strict=True):
            read = ropes[label] if label in ropes else ropes.get(None)
            assert (rope is None) or (read is not None and read.interleaved == rope.interleaved)
            assert rope is None or same_rope(read, rope, [1, source.trained, source.trained + 1, reach.target])


def tried(folder: Path, engine: str, method: str) -> ServeConfig | RopeError:
    try:
        return serve_config(folder, engine, method=method)
    except RopeError as error:
        return error


@pytest.mark.parametrize("folder", NAMES, indirect=True)
@pytest.mark.parametrize(
    "method", ["yarn", "dynamic", "llama3", "rerope", pytest.param("*", marks=pytest.mark.thorough)]
)
def test_every_cure_works(method: str, folder: Path) -> None:
    """It names another method, which the engine runs; or Python, where the method changes the model; or nothing."""
    for engine in ENGINES:
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


@pytest.mark.parametrize(
    "folder",
    ["llama_3_2_1b", "qwen3_0_6b", *[pytest.param(name, marks=pytest.mark.thorough) for name in NAMES]],
    indirect=True,
)
def test_every_cure_of_an_export_works(folder: Path) -> None:
    """Of the blocks and of the keys of a .gguf file of our own decoder."""
    source = Served.open(folder, None)
    reach = Reach(source.trained, 4 * source.trained)

    def exported(method: str) -> HubRope:
        return hub_rope((METHODS[method].rope(source.rope, reach),), method, reach)

    def named(call: Callable[[], object], method: str) -> list[str]:
        try:
            call()
        except RopeError as error:
            found = re.findall(r"--method (\S+?)[;.,]", error.cure)
            assert method not in found
            return found
        return []

    for method in EXTENDS if source.rope.can_be_extended else ():
        if METHODS[method].config is None or METHODS[method].needs_tuning:
            continue
        others = named(lambda: exported(method), method)  # noqa: B023
        assert all(exported(other) for other in others)
        for arch in () if others else PERMUTED:
            others = named(lambda: gguf_rope(exported(method), arch, method, reach), method)  # noqa: B023
            assert all(gguf_rope(exported(other), arch, other, reach) for other in others)


PHI_4 = {
    "partial_rotary_factor": 0.5, "original_max_position_embeddings": 16,
    "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                        "short_factor": [1.0, 1.0], "long_factor": [1.5, 4.0], "original_max_position_embeddings": 16},
}  # fmt: skip
QWEN = {
    "layer_types": ["linear_attention", "full_attention"], "head_dim": 16, "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": True},
}  # fmt: skip


MINISTRAL = {
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
                        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
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
    ],
)
def test_a_folder_that_apply_wrote_is_served(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Its block is that of the override for the source, and nothing has to be overridden."""
    source = folder_of(family, tmp_path / "source", **changes)
    override = serve_config(source, "vllm", method="yarn", target=128)
    serving.apply(source, tmp_path / "out", serving.ApplySettings(method="yarn", target=128))
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


@pytest.mark.parametrize("family", ["gpt_oss", "gemma2", "starcoder2", "deepseek_v3"])
def test_apply_and_serve_config_have_one_rule(family: str, tmp_path: Path) -> None:
    """Both write, or both refuse with the same reason; where Python is the cure, `attach` applies the method."""
    source = folder_of(family, tmp_path / "source")
    served = tried(source, "transformers", "yarn")
    reason = None if isinstance(served, ServeConfig) else served.rule.partition(": ")[2].partition(": ")[2]
    if reason is None:
        serving.apply(source, tmp_path / "out", serving.ApplySettings(method="yarn"))
        return
    with pytest.raises(RopeError, match=re.escape(reason)) as caught:
        serving.apply(source, tmp_path / "out", serving.ApplySettings(method="yarn"))
    assert isinstance(served, RopeError)
    assert ("rw.attach" in served.cure) == ("rw.attach" in caught.value.cure)
    if "rw.attach" in served.cure:
        attach(random_model(family), "yarn", target=128).detach()


def test_the_cure_is_not_attach_where_attach_refuses(tmp_path: Path) -> None:
    """GPT-J has no block, and its attention looks its tables up."""
    shape = {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4, "max_position_embeddings": 64}
    served = tried(folder_of("gptj", tmp_path / "source", **shape), "transformers", "yarn")
    assert isinstance(served, RopeError)
    assert served.cure == "Leave out --method, to serve the model unchanged."
    with pytest.raises(RopeError, match="attach: the attention of gptj looks up the tables itself"):
        attach(random_model("gptj", **shape), "yarn", target=256)
