"""Which engine runs which method, and the command that sets it: every command is run, or read as the engine does."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import DeepseekV4Config

from ropewalk import RopeConfig
from ropewalk.attachment import attachment_of
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.diagnosis.prepare import _engines
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.rope.frequencies import same_rope
from ropewalk.serving import apply
from ropewalk.serving.applied import DEVIATIONS, Case, applied
from ropewalk.serving.engines import CONVERTER, ENGINES, TABLE
from ropewalk.serving.plan import Served, serving_plan
from ropewalk.serving.serve import serve_config, setting_command
from tests.checkpoints.gguf_files import ARCHITECTURES, write_foreign
from tests.checkpoints.random_models import FAMILIES, folder_of, random_model
from tests.cli.doctor_runs import run_command
from tests.models.material import gguf_of
from tests.serving.material import REACH, TARGET, TRAINED, checkpoint, extended, token_ids

TINY, LONG, SHORTER = 256, 1024, 768


KINDS = ("plain", "as-is", "crop", "yarn", "dynamic", "resonance", "dca")  # one of each kind


def runs(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The standard output of a command line, which must succeed."""
    program, *words = shlex.split(command)
    status, shown = run_command(*words), capsys.readouterr()
    assert (program, status) == ("ropewalk", 0), f"{command}: {shown.err}"
    return shown.out


FAR = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 64.0, "original_max_position_embeddings": 4096}
MSCALES = {**FAR, "mscale": 1.0, "mscale_all_dim": 1.0}
QUERIES = "llama_4_scaling_beta"
RULES = {name: {"rope_type": name, "rope_theta": 1e4} for name in ("default", "linear", "llama3", "longrope")}
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("engine", "model_type", "block", "told", "not_told"),
    [
        *(("vllm", name, MSCALES, "", "ignored") for name in ("deepseek_v3", "kimi_k2", "deepseek_v4", "llama")),
        ("vllm", "ministral3", FAR, QUERIES, ""),  # the class's own number is 0.1
        ("vllm", "ministral3", {**FAR, QUERIES: 0.0}, "", QUERIES),  # Mistral Medium 3.5: nothing is lost
        ("vllm", "gpt_oss", {**RULES["longrope"], "beta_fast": 32.0}, "builds yarn", ""),
        ("vllm", "gpt_oss", {**RULES["default"], "beta_fast": 32.0}, "builds yarn", ""),
        ("sglang", "gpt_oss", {**RULES["longrope"], "beta_fast": 32.0}, "", "its "),
        ("vllm", "kimi_k2", RULES["longrope"], "DeepSeek's yarn", ""),
        ("sglang", "deepseek_v2", RULES["linear"], "deepseek_yarn", ""),
        ("sglang", "glm4_moe_lite", RULES["linear"], "deepseek_yarn", ""),
        ("transformers", "deepseek_v2", RULES["linear"], "", "its "),
        ("llama.cpp", "granite", RULES["llama3"], "", "llama.cpp's converter"),
        ("sglang", "gemma4_text", FAR, "only the rope_type", ""),
        ("vllm", "gemma4_text", PROPORTIONAL, "", "its "),
        ("vllm", "llama", PROPORTIONAL, "", "its "),
        ("sglang", "llama", PROPORTIONAL, "rotate every pair", ""),
    ],
)
def test_classes_of_an_engine_that_change_the_rule(
    engine: str, model_type: str, block: dict[str, Any], told: str, not_told: str
) -> None:
    """What answers.csv has no config for: the reason if the rope is lost, and the caveats."""
    answer = applied(engine, Case(block=block, model_type=model_type, converted=True))
    text = " ".join([str(answer.reason), *(one.text for one in answer.caveats)])
    assert told in text
    assert not not_told or not_told not in text


def test_an_answer_has_a_state_and_a_source() -> None:
    """An attention factor of its own is applied by vLLM since 0.32; one of 0.1 ln(factor) + 1 concerns nobody."""
    own = Case(block={"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}, model_type="llama")
    usual = Case(block={"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.1 * math.log(4) + 1})
    assert (applied("vllm", own).state, applied("vllm", usual).caveats[1:]) == ("applied", ())
    assert applied("sglang", own).state == "differs"
    assert applied("sglang", usual).state == "applied"
    assert applied("sglang", own).caveats[0].effect == "differs"
    for engine in ENGINES:
        assert applied(engine, usual).checked in {f"read in {one.read}" for one in TABLE.values()} | {"not run"}
    interleaved = Case(block={"rope_type": "longrope"}, model_type="cohere", interleaved=True)
    assert [applied(engine, interleaved).state for engine in ("vllm", "sglang", "transformers")] == [
        "lost", "lost", "applied",
    ]  # fmt: skip


@pytest.mark.parametrize("engine", [None, *ENGINES])
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in KINDS)) for name in METHODS]
)
def test_every_command_runs(
    engine: str | None,
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On `tiny`: it exits with 0 and names the length; where the engine does not run the method, it is refused."""
    monkeypatch.chdir(tmp_path)
    command = setting_command(engine, "tiny", method, target=LONG, length=SHORTER)
    source, extends = Served.open("tiny", None), METHODS[method].extends
    length, reach = SHORTER if extends else TINY, Reach(TINY, LONG if extends else TINY)
    planned = serving_plan(source, engine or "transformers", method, reach, SHORTER if extends else None)
    if isinstance(planned, RopeError):
        assert run_command(*shlex.split(command)[1:]) == 2
        assert "Traceback" not in capsys.readouterr().err
        return
    out = runs(command, capsys)
    if command.split()[1] == "serve-config":
        lengths = re.findall(r"(?:--max-model-len|--context-length|--ctx-size|num_ctx|the last) (\d+)", out)
        assert set(lengths) == {str(length)} or engine in (None, "mlx", "onnx", "transformers")
        assert str(length) in out or not extends
        for folder, file in re.findall(r"^python convert_hf_to_gguf.py (\S+) --outfile (\S+)$", out, re.MULTILINE):
            gguf_of(folder, Path(file))  # in the converter's place
        for line in re.findall(r"^ropewalk .*$", out, re.MULTILINE):
            written = runs(line, capsys)
            written = Path("longer/config.json").read_text() if engine in ("mlx", "onnx") else written
            assert str(length) in written or not extends or (engine, method) == ("mlx", "dynamic")
    else:
        config = json.loads(Path(shlex.split(command)[-1], "config.json").read_text())
        assert config["max_position_embeddings"] == (TINY if method == "dynamic" else length)  # its rule starts there
        assert not extends or config["rope_parameters"] == json.loads(json.dumps(planned.block))


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama"])
@pytest.mark.parametrize("method", ["yarn", "pi", "resonance"])
def test_a_file(
    engine: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A random .gguf file in a folder with a space; without an engine a file is written too."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    file = gguf_of(checkpoint(tmp_path / "source"), folder / "small.gguf")
    monkeypatch.chdir(tmp_path)
    command = setting_command(engine, Path("a folder/small.gguf"), method, target=TARGET, length=48)
    assert str(file) in shlex.split(command)
    out = runs(command, capsys)
    assert re.findall(r"(?:--ctx-size|num_ctx) (\d+)", out) == ["48"]
    if engine == "llama.cpp" and method != "resonance":
        assert "--override-kv llama.context_length=int:48 --rope-scaling" in out
    for line in re.findall(r"^ropewalk .*$", out, re.MULTILINE):
        assert '"llama.context_length": 48' in runs(line, capsys)
    command = setting_command(None, file, method, target=TARGET, length=48)
    assert command.endswith("--out small-48.gguf")
    assert '"llama.context_length": 48' in runs(command, capsys)


def test_families_that_only_the_converter_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder is written and converted, if the converter applies the rule; a file of such a family gets flags."""
    source = folder_of("granite", tmp_path / "source")
    first, *steps = serve_config(source, "llama.cpp", method="yarn", target=128, length=96).steps
    assert first.endswith("--length 96 --out longer")
    assert steps[0] == "python convert_hf_to_gguf.py longer --outfile longer.gguf"
    assert steps[1].startswith("llama-server -m longer.gguf --ctx-size 96")
    with pytest.raises(RopeError, match="only for Phi-3"):
        serve_config(source, "llama.cpp", method="resonance", target=128)
    file = write_foreign(random_model("starcoder2", sliding_window=None), tmp_path / "foreign.gguf")
    assert Served.open(file, None).gguf_arch == "starcoder2"
    assert len(serve_config(file, "llama.cpp", method="yarn", target=128).steps) == 1
    with pytest.raises(RopeError, match=r"copies no \.gguf file of this architecture"):
        serve_config(file, "ollama", method="yarn", target=128)
    assert not setting_command(None, file, "yarn", target=128).endswith(".gguf")
    scope: dict[str, Any] = {}
    exec(compile(setting_command("python", file, "dca", target=128), "lines", "exec"), scope)
    assert attachment_of(scope["model"]) is not None


@pytest.mark.parametrize("method", KINDS)
def test_python(method: str) -> None:
    """The lines are run as they stand, and attach the method."""
    lines = setting_command("python", "tiny", method, target=LONG)
    scope: dict[str, Any] = {}
    exec(compile(lines, "lines", "exec"), scope)
    assert lines.startswith("import ropewalk as rw\n")
    assert str(Path.cwd()) not in lines
    assert (f"target={LONG}" in lines) == METHODS[method].extends
    handle = attachment_of(scope["model"])
    if METHODS[method].extends:
        assert handle is not None
        assert handle.method is METHODS[method]


MODELS = [(kind, family) for kind in ("folder", "gguf") for family in (*FAMILIES, "llama", "qwen3", "deepseek_v4")
          if kind == "folder" or family in {*ARCHITECTURES} - {"falcon"}]  # fmt: skip
FAST_MODELS = [("folder", "phi3"), ("folder", "gemma3_text"), ("folder", "deepseek_v4"), ("gguf", "qwen3_moe")]


@pytest.mark.parametrize(
    ("kind", "family"), [pytest.param(*one, marks=[pytest.mark.thorough] * (one not in FAST_MODELS)) for one in MODELS]
)
def test_one_answer(
    kind: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor's column, serve-config and `extend apply` agree for every engine and method; a first step runs."""
    monkeypatch.chdir(tmp_path)
    changes = {"sliding_window": None} if family == "starcoder2" else {}
    if kind == "gguf":
        path = write_foreign(random_model(family, **changes), tmp_path / "model.gguf")
    elif family == "deepseek_v4":
        path = tmp_path / family
        DeepseekV4Config(num_hidden_layers=2, max_position_embeddings=64).save_pretrained(path)
    else:
        path = folder_of(family, tmp_path / family, **changes)
    opened, methods = Checkpoint.open(path), {name: None for name, one in METHODS.items() if one.extends}
    trained = Served.open(path, 32 if family == "gpt_oss" else None, opened).trained
    design = SimpleNamespace(trained_length=trained, target=2 * trained)
    plan = SimpleNamespace(design=design, positions=methods)
    column = _engines(SimpleNamespace(model=path, source=opened), plan)
    for method in methods:
        for engine in ENGINES:
            try:
                found = serve_config(path, engine, method=method, target=2 * trained, trained_length=trained)
            except RopeError:
                found = None
            assert (found is not None) == (engine in column[method]), (engine, method)
            if found is not None and found.steps and method == "yarn" and "ropewalk" in found.steps[0]:
                runs(f"{found.steps[0]} --overwrite", capsys)
                if found.steps[0].endswith("--out longer"):
                    transformers.AutoConfig.from_pretrained("longer")
        is_file = kind == "gguf" and Served.open(path, trained, opened).copied
        place = Path("copy.gguf" if is_file else "copy")
        settings = {"target": 2 * trained, "trained_length": trained}
        if kind == "gguf" and not is_file:
            continue
        try:
            written = apply(path, place, method=method, **settings, overwrite=True)
        except RopeError:
            written = None
        assert (written is not None) == (("ollama" if is_file else "transformers") in column[method]), method


def test_what_does_not_change_needs_no_override(tmp_path: Path) -> None:
    """`plain` of an unscaled model; a scaled one needs it."""
    assert "override" not in serve_config("tiny", "vllm", method="plain").steps[0]
    block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": TRAINED}
    scaled = checkpoint(tmp_path / "scaled", rope_parameters=block, max_position_embeddings=TARGET)
    plain = serve_config(scaled, "vllm", method="plain", trained_length=TRAINED)
    assert '"rope_type": "default"' in plain.steps[0]
    assert plain.length == TRAINED


def test_the_script_for_transformers_is_run(tmp_path: Path) -> None:
    """Its model computes what our forward does under the method."""
    source = checkpoint(tmp_path / "source")
    name, content = serve_config(source, "transformers", method="yarn", target=TARGET).file or ("", "")
    assert name == "serve.py"
    scope: dict[str, Any] = {}
    exec(compile(content, name, "exec"), scope)
    model, ours = scope["model"].float().eval(), extended(source, "yarn")
    ids = token_ids(TARGET)
    with torch.no_grad():
        assert (model(ids).logits - ours(ids)).abs().max() < 1e-3


def test_llama_cpp_and_ollama_get_a_file(tmp_path: Path) -> None:
    """From a folder, and for what flags cannot say; a file gets flags where they suffice (`test_a_file`)."""
    source = checkpoint(tmp_path / "source")
    found = serve_config(source, "llama.cpp", method="resonance", target=TARGET)
    assert found.steps == (
        f"python convert_hf_to_gguf.py {source} --outfile model.gguf",
        f"ropewalk extend apply model.gguf --target {TARGET} --method resonance --out longer.gguf",
        f"llama-server -m longer.gguf --ctx-size {TARGET}",
    )
    found = serve_config(source, "ollama", method="yarn", target=TARGET)
    assert found.file == ("Modelfile", f"FROM ./longer.gguf\nPARAMETER num_ctx {TARGET}\n")
    made = gguf_of(source, tmp_path / "x.gguf")
    flags = serve_config(made, "llama.cpp", method="yarn", target=TARGET).steps
    served = f"llama-server -m {made} --ctx-size {TARGET} --override-kv llama.context_length=int:{TARGET}"
    assert flags == (f"{served} --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 16",)
    flags = serve_config(made, "llama.cpp", method="ntk", target=TARGET).steps
    assert flags == (f"{served} --rope-freq-base {1e4 * 4 ** (8 / 6):.10g}",)  # base s^(d / (d - 2)), d = 8
    assert len(serve_config(made, "llama.cpp", method="resonance", target=TARGET).steps) == 2
    assert serve_config(made, "ollama").steps == ("ollama create longer -f Modelfile",)


def test_known_faults_of_a_folder(tmp_path: Path) -> None:
    """They are those of a flag, for a scaling that `extend apply` wrote; an unscaled model has none."""
    source = checkpoint(tmp_path / "source")
    for method, rule in (("yarn", "factor is fixed"), ("dynamic", "not applied beyond the trained length")):
        folder = tmp_path / method
        apply(source, folder, method=method, target=TARGET)
        for engine in ("vllm", "llama.cpp"):
            assert any(rule in one.text for one in serve_config(folder, engine).caveats), (method, engine)
        assert not serve_config(folder, "vllm", method="plain", trained_length=TRAINED).caveats[1:]
    assert serve_config(source, "vllm").checked.startswith("measured in vLLM 0.32.0")
    (source / "params.json").touch()  # Mistral's own config, which vLLM would prefer to the changed one
    apply(source, tmp_path / "mistral", method="yarn", target=TARGET)
    assert serve_config(tmp_path / "mistral", "vllm").steps[0].endswith(" --config-format hf")


@pytest.mark.parametrize("names", [("mtp.fc.weight",), ("model.mtp.fc.weight",), ()])
def test_the_converter_is_told_of_missing_mtp(names: tuple[str, ...], tmp_path: Path) -> None:
    """`_QwenMtpMixin` asserts that a Qwen3-Next has MTP tensors (llama-cpp-python 0.3.36's conversion/qwen.py:303)."""
    shape = {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 16, "num_hidden_layers": 2}
    types = ["linear_attention", "full_attention"]
    transformers.Qwen3NextConfig(**shape, max_position_embeddings=64, layer_types=types).save_pretrained(tmp_path)
    assert "--no-mtp" not in serve_config(tmp_path, "llama.cpp").steps[0]  # no weights here: the published ones have
    save_file({name: torch.ones(1) for name in ("model.norm.weight", *names)}, tmp_path / "model.safetensors")
    for method, step in (("as-is", 0), ("yarn", 1)):
        assert serve_config(tmp_path, "llama.cpp", method=method).steps[step].endswith(" --no-mtp") == (not names)


def test_a_scaled_config_for_sglang(tmp_path: Path) -> None:
    """SGLang merges an override into the config's block, where old betas would survive: it gets a folder."""
    old = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16,
           "beta_fast": 16.0, "truncate": False}  # fmt: skip
    transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=4, max_position_embeddings=32, rope_parameters=old
    ).save_pretrained(tmp_path)
    for engine, written in (("sglang", True), ("vllm", False)):
        found = serve_config(tmp_path, engine, method="yarn", target=64, trained_length=16)
        assert ("extend apply" in found.steps[0]) == written
        assert ("override" in " ".join(found.steps)) != written


def test_caveats_have_a_source_and_concern_the_printed_command(tmp_path: Path) -> None:
    """What lies behind the user (removed flags, flags that are printed, cures that are printed) is not mentioned."""
    read = [one for one in DEVIATIONS if one.read or one.source]
    assert all(re.search(r"#\d+|\.py|\.cpp|\.md|get_rope_factors", one.source) for one in read)
    assert all(one.code for one in DEVIATIONS if one not in read)
    assert all(set(one.engines) <= {*ENGINES, CONVERTER} for one in DEVIATIONS)
    assert all(one.versions for one in DEVIATIONS if one.effect != "lost" and one.read)
    source = checkpoint(tmp_path / "source")

    def told(model: Path, engine: str, **settings: Any) -> str:
        return " ".join(one.text for one in serve_config(model, engine, **settings).caveats)

    for engine in ENGINES:
        found = told(source, engine, method="ntk" if engine == "onnx" else "yarn", target=TARGET)
        assert found.startswith("The factor is fixed") or engine == "ollama"
        assert "attention_factor" not in found
        assert "--rope-scaling" not in found
        assert not told(source, engine)
    assert "One list of divisors" not in told(source, "vllm", method="resonance", target=TARGET)  # both are equal


def test_what_is_refused(tmp_path: Path) -> None:
    """An engine, a method, a target that nothing reads, a scaling of unknown status, ropes of branches."""
    source = checkpoint(tmp_path / "source")
    with pytest.raises(RopeError, match="unknown engine"):
        serve_config(source, "tgi")
    with pytest.raises(RopeError, match="vllm does not run `rerope`: it clips"):
        serve_config(source, "vllm", method="rerope", target=TARGET)
    with pytest.raises(RopeError, match="would be ignored"):
        serve_config(source, "vllm", target=TARGET)
    block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4}
    scaled = checkpoint(tmp_path / "scaled", rope_parameters=block)
    with pytest.raises(RopeError, match="unknown whether the model was trained"):
        serve_config(scaled, "vllm", method="yarn", target=TARGET)
    assert serve_config(scaled, "vllm", method="yarn", target=TARGET, trained_length=4).block["factor"] == 16.0
    DeepseekV4Config(num_hidden_layers=2, max_position_embeddings=64).save_pretrained(tmp_path / "v4")
    with pytest.raises(RopeError, match="branches of its layers"):
        serve_config(tmp_path / "v4", "vllm", method="yarn", target=256)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
def test_a_file_for_an_engine_that_loads_folders(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first step, with the user's path, method and target, is run: it writes the folder that the next serves."""
    (tmp_path / "a folder").mkdir()
    gguf_of(checkpoint(tmp_path / "source"), tmp_path / "a folder" / "x.gguf")
    monkeypatch.chdir(tmp_path)
    found = serve_config("a folder/x.gguf", engine, method="yarn", target=TARGET, length=48)
    words = shlex.split(found.steps[0])
    assert words[:4] == ["ropewalk", "extend", "apply", "a folder/x.gguf"]
    assert run_command(*words[1:]) == 0, capsys.readouterr().err
    written = json.loads((tmp_path / "longer" / "config.json").read_text())
    assert written["rope_parameters"] == found.block
    assert written["max_position_embeddings"] == found.length == 48
    told = found.steps[1] if engine != "transformers" else (found.file or ("", ""))[1]
    assert "longer" in told
    assert "override" not in told
    assert same_rope(
        RopeConfig.from_hf(written),
        METHODS["yarn"].rope(RopeConfig.from_hf(tmp_path / "source"), REACH),
        [1, TRAINED, TARGET],
    )
