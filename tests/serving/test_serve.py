"""`serve_config`: what is printed is run where it can be, and read back as the engine's library reads it elsewhere."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from ropewalk import RopeConfig
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.rope.frequencies import same_rope
from ropewalk.serving import apply
from ropewalk.serving.applied import DEVIATIONS
from ropewalk.serving.engines import CONVERTER, ENGINES
from ropewalk.serving.serve import serve_config
from tests.checkpoints.random_models import folder_of
from tests.cli.doctor_runs import run_command
from tests.models.material import gguf_of
from tests.serving.material import REACH, TARGET, TRAINED, checkpoint, extended, token_ids


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
    """From a folder, and for what flags cannot say; a file gets flags where they suffice."""
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
    flags = serve_config(made, "llama.cpp", method="pi", target=TARGET).steps
    assert flags == (f"{served} --rope-scaling linear --rope-scale 4",)
    flags = serve_config(made, "llama.cpp", method="ntk", target=TARGET).steps
    assert flags == (f"{served} --rope-freq-base {1e4 * 4 ** (8 / 6):.10g}",)  # base s^(d / (d - 2)), d = 8
    assert len(serve_config(made, "llama.cpp", method="resonance", target=TARGET).steps) == 2
    assert serve_config(made, "ollama").steps == ("ollama create longer -f Modelfile",)


def test_known_faults_of_a_folder(tmp_path: Path) -> None:
    """They are those of a flag, for a scaling that `extend apply` wrote; an unscaled model has none."""
    source = checkpoint(tmp_path / "source")
    for method, rule in (("yarn", "factor is fixed"), ("dynamic", "not applied beyond the trained length")):
        folder = apply(source, tmp_path / method, method=method, target=TARGET).folder
        for engine in ("vllm", "llama.cpp"):
            assert any(rule in one.text for one in serve_config(folder, engine).caveats), (method, engine)
        assert not serve_config(folder, "vllm", method="plain", trained_length=TRAINED).caveats[1:]
    assert serve_config(source, "vllm").checked.startswith("measured in vLLM 0.32.0")
    (source / "params.json").touch()  # Mistral's own config, which vLLM would prefer to the changed one
    folder = apply(source, tmp_path / "mistral", method="yarn", target=TARGET).folder
    assert serve_config(folder, "vllm").steps[0].endswith(" --config-format hf")


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


def test_ropes_that_no_flag_says(tmp_path: Path) -> None:
    """Branches are refused; llama.cpp's converter writes two ropes."""
    folder_of("gemma3_text", tmp_path / "gemma")
    steps = serve_config(tmp_path / "gemma", "ollama", method="yarn", target=TARGET).steps
    assert [shlex.split(step)[1] for step in steps] == ["extend", "convert_hf_to_gguf.py", "create"]
    with pytest.raises(RopeError, match="longrope's divisors only for Phi-3"):
        serve_config(tmp_path / "gemma", "ollama", method="resonance", target=TARGET)
    transformers.DeepseekV4Config(num_hidden_layers=2, max_position_embeddings=64).save_pretrained(tmp_path / "v4")
    with pytest.raises(RopeError, match="branches of its layers"):
        serve_config(tmp_path / "v4", "vllm", method="yarn", target=256)


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
    """An engine, a method, a file for an engine of folders, a target that nothing reads."""
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
