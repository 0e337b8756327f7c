"""Which engine runs which method, and the command that sets it: every command is run."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from transformers import DeepseekV4Config

from ropewalk.attachment import attachment_of
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.cli.app import main
from ropewalk.diagnosis.prepare import _engines
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.serving import ApplySettings, apply
from ropewalk.serving.engines import (
    ENGINES,
    READ,
    READS_GGUF,
    Case,
    applied,
)
from ropewalk.serving.plan import Refused, serving_plan
from ropewalk.serving.serve import serve_config, setting_command
from ropewalk.serving.served import Served
from tests.checkpoints.gguf_files import ARCHITECTURES, write_foreign
from tests.checkpoints.random_models import FAMILIES, folder_of, random_model
from tests.models.material import gguf_of
from tests.serving.material import TARGET, TRAINED, checkpoint
from tests.serving.records import record_of

TINY, LONG, SHORTER = 256, 1024, 768


def why_not(engine: str | None, method: str, model: str | Path = "tiny") -> str | None:
    """The reason why an engine does not run a method; Python and no engine in particular run what transformers does."""
    source = Served.open(model, None)
    target = 4 * source.trained if METHODS[method].extends else source.trained
    found = serving_plan(source, engine or "transformers", method, Reach(source.trained, target))
    return found.reason if isinstance(found, Refused) else None


def lost(engine: str, block: dict[str, Any], **about: Any) -> str | None:
    """The reason why an engine does not apply a block as measured."""
    answer = applied(engine, Case(block=block, **about))
    return answer.reason if answer.state == "lost" else None


KINDS = ("plain", "as-is", "crop", "yarn", "dynamic", "resonance", "dca")  # one of each kind


def runs(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The standard output of a command line, which must succeed."""
    words = shlex.split(command)
    assert words[0] == "ropewalk"
    with pytest.raises(SystemExit) as ended:
        main(words[1:])
    shown = capsys.readouterr()
    assert ended.value.code in (0, None), f"{command}: {shown.err}"
    return shown.out


@pytest.mark.parametrize("model_type", ["deepseek_v3", "kimi_k2", "longcat_flash", "deepseek_v4", "llama"])
def test_classes_with_a_factor_of_their_own(model_type: str) -> None:
    """vLLM 0.32.0 runs Kimi K2.5 as DeepseekV2ForCausalLM (models/kimi_k25.py, line 380), whose factor is DeepSeek's
    (rotary_embedding/deepseek_scaling_rope.py, line 51); that of V4 is 1 (deepseek_v4/common/rope.py, line 43).
    """
    block = {"rope_type": "yarn", "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    answer = applied("vllm", Case(block=block, model_type=model_type))
    texts = [caveat.text for caveat in answer.caveats]
    assert any("are ignored: 0.1 ln(factor)" in text for text in texts) == (model_type == "llama")
    assert any("layers of compression ratio 0" in text for text in texts) == (model_type == "deepseek_v4")


@pytest.mark.parametrize(("keys", "told"), [({"llama_4_scaling_beta": 0.1}, True), ({}, True),
                                            ({"llama_4_scaling_beta": 0.0}, False)])  # fmt: skip
def test_a_scale_of_queries_that_is_none(keys: dict[str, float], told: bool) -> None:
    """Mistral Medium 3.5 states 0: nothing is lost. The class's own number is 0.1."""
    block = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, **keys}
    answer = applied("vllm", Case(block=block, model_type="ministral3"))
    assert any("llama_4_scaling_beta" in caveat.text for caveat in answer.caveats) == told


@pytest.mark.parametrize(
    ("engine", "model_type", "rule", "words"),
    [
        ("vllm", "gpt_oss", "longrope", "builds yarn"),
        ("vllm", "gpt_oss", "default", "builds yarn"),
        ("sglang", "gpt_oss", "longrope", None),
        ("vllm", "deepseek_v3", "longrope", "DeepSeek's yarn"),
        ("vllm", "kimi_k2", "longrope", "DeepSeek's yarn"),
        ("sglang", "deepseek_v2", "linear", "deepseek_yarn"),
        ("sglang", "glm4_moe_lite", "linear", "deepseek_yarn"),
        ("transformers", "deepseek_v2", "linear", None),
        ("llama.cpp", "cohere", "linear", "removes the scaling"),
        ("llama.cpp", "granite", "llama3", None),
        ("sglang", "gemma4_text", "yarn", "only the rope_type"),
        ("vllm", "gemma4_text", "proportional", None),
        ("vllm", "llama", "proportional", None),
        ("sglang", "llama", "proportional", "rotate every pair"),
        ("sglang", "ministral3", "longrope", "original length"),
    ],
)
def test_classes_of_an_engine_that_replace_the_rule(engine: str, model_type: str, rule: str, words: str | None) -> None:
    """As their sources say, which DEVIATIONS cites; other rules of the same model run."""
    block = {"rope_type": rule, "rope_theta": 1e4, **({"beta_fast": 32.0} if model_type == "gpt_oss" else {})}
    reason = lost(engine, block, converted=True, model_type=model_type)
    assert reason is None if words is None else words in str(reason)


def test_an_answer_has_a_state_and_a_source() -> None:
    """An attention factor of its own is applied by vLLM since 0.32; one of 0.1 ln(factor) + 1 concerns nobody."""
    own = Case(block={"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}, model_type="llama")
    usual = Case(block={"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.1 * math.log(4) + 1})
    assert (applied("vllm", own).state, applied("vllm", usual).caveats[1:]) == ("applied", ())
    assert any("48351" in one.source and one.before == "0.32.0" for one in applied("vllm", own).caveats)
    assert applied("sglang", own).state == "differs"
    assert applied("sglang", usual).state == "applied"
    assert applied("sglang", own).caveats[0].effect == "differs"
    for engine in ENGINES:
        assert applied(engine, usual).checked in {f"read in {one}" for one in READ.values()} | {"not run"}
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
    if why_not(engine, method) is not None:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command)[1:])
        assert ended.value.code == 2
        assert "Traceback" not in capsys.readouterr().err
        return
    out = runs(command, capsys)
    length = SHORTER if METHODS[method].extends else TINY
    if command.split()[1] == "serve-config":
        lengths = re.findall(r"(?:--max-model-len|--context-length|--ctx-size|num_ctx|the last) (\d+)", out)
        assert set(lengths) == {str(length)} or engine in (None, "mlx", "onnx", "transformers")
        assert (str(length) in out) or not METHODS[method].extends
        for folder, file in re.findall(r"^python convert_hf_to_gguf.py (\S+) --outfile (\S+)$", out, re.MULTILINE):
            gguf_of(folder, Path(file))  # in the converter's place
        for line in re.findall(r"^ropewalk .*$", out, re.MULTILINE):
            written = runs(line, capsys)
            written = Path("longer/config.json").read_text() if engine in ("mlx", "onnx") else written
            assert str(length) in written or not METHODS[method].extends or (engine, method) == ("mlx", "dynamic")
    else:
        folder = Path(shlex.split(command)[-1])
        config = json.loads((folder / "config.json").read_text())
        stated = config["max_position_embeddings"]
        assert stated == (TINY if method == "dynamic" else length)  # its rule starts from the trained length
        if METHODS[method].extends:
            served = serve_config("tiny", "transformers", method=method, target=LONG, length=SHORTER)
            assert config["rope_parameters"] == json.loads(json.dumps(served.block))


@pytest.mark.parametrize("engine", READS_GGUF)
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
    steps = serve_config(source, "llama.cpp", method="yarn", target=128, length=96).steps
    assert [shlex.split(step)[0] for step in steps] == ["ropewalk", "python", "llama-server"]
    assert steps[0].endswith("--length 96 --out longer")
    assert steps[1] == "python convert_hf_to_gguf.py longer --outfile longer.gguf"
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


@pytest.mark.parametrize("method", METHODS)
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
        settings = ApplySettings(method=method, target=2 * trained, trained_length=trained)
        if kind == "gguf" and not is_file:
            continue
        try:
            written = apply(path, place, settings, overwrite=True)
        except RopeError:
            written = None
        assert (written is not None) == (("ollama" if is_file else "transformers") in column[method]), method


def doctor_record(**verdict: Any) -> dict[str, Any]:
    """A record of the packaged model, with a verdict for an engine."""
    return record_of(name="tiny", trained=TINY, target=LONG, costs={"yarn": (0.1, 0.0, 0.2)}, **verdict)


def test_the_length_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The frequencies are those of the target; the stated length is the verdict's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a record.json").write_text(json.dumps(doctor_record(length=SHORTER)))
    for engine in (one for one in ENGINES if why_not(one, "yarn") is None):
        command = setting_command(engine, "tiny", "yarn", target=LONG, length=SHORTER, record="a record.json")
        assert str(tmp_path / "a record.json") in shlex.split(command)
        assert str(SHORTER) in runs(command, capsys)
        out = runs(f"ropewalk serve-config tiny --engine {engine} --from 'a record.json'", capsys)
        assert str(SHORTER) in out
        assert ('"factor": 4.0' in out) == (engine in ("vllm", "sglang"))
    config = json.loads((tmp_path / f"tiny-{SHORTER}" / "config.json").read_text())
    assert (config["rope_parameters"]["factor"], config["max_position_embeddings"]) == (4.0, SHORTER)
    sources = " ".join(one.source for one in serve_config("tiny", "transformers", method="yarn", length=700).caveats)
    assert "modeling_rope_utils" in sources
    assert serve_config("tiny", "vllm", records=[doctor_record()]).length == LONG
    shorter = serve_config("tiny", "ollama", records=[doctor_record() | {"trained_length": 128}])
    assert shorter.block["factor"] == 8.0
    assert "--trained-length 128" in " ".join(shorter.steps)
    assert "--trained-length" not in serve_config("tiny", "ollama", records=[doctor_record()]).steps[0]
    assert serve_config("tiny", "vllm", method="pi", records=[doctor_record(length=SHORTER)]).length == LONG


ODD: list[dict[str, Any]] = [
    *({"verdict": verdict} for verdict in ([], "extend", None, {"action": "extend", "method": None},
                                           {"action": "extend", "method": "none such"},
                                           {"action": "extend", "method": ["yarn"]})),
    {"target": "far"}, {"target": float("inf")}, {"target": None}, {"trained_length": 0}, {"trained_length": "x"},
    {"methods": [None]}, {"format": 2}, {"evidence": None},
]  # fmt: skip


def test_odd_records(tmp_path: Path) -> None:
    """Refused in our words, by `apply` too; a length outside of the extension is none."""
    record = doctor_record()
    lengths = [{"verdict": record["verdict"] | {"length": one}} for one in (TINY, LONG + 1, -1, "x", [], 1e400)]
    for change in [*ODD, *lengths]:
        with pytest.raises(RopeError):
            serve_config("tiny", "vllm", records=[record | change])
        if change in lengths:
            with pytest.raises(RopeError):
                apply("tiny", tmp_path / "x", record=record | change)


def test_what_does_not_change_needs_no_override(tmp_path: Path) -> None:
    """`plain` of an unscaled model; a scaled one needs it. `crop` is served plain, and says what the client does."""
    assert "override" not in serve_config("tiny", "vllm", method="plain").steps[0]
    block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": TRAINED}
    scaled = checkpoint(tmp_path / "scaled", rope_parameters=block, max_position_embeddings=TARGET)
    plain = serve_config(scaled, "vllm", method="plain", trained_length=TRAINED)
    assert '"rope_type": "default"' in plain.steps[0]
    assert plain.length == TRAINED
    cropped = serve_config("tiny", "vllm", method="crop")
    assert cropped.length == TINY
    assert "last 256 tokens" in str(cropped.note)
