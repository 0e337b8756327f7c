"""`inspect --command`: what an engine makes of a command, against its own merging, its own numbers and its server."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach, main_rope
from ropewalk.rope.frequencies import same_rope
from ropewalk.serving.engines import read_command
from ropewalk.serving.plan import Served
from ropewalk.serving.serve import serve_config
from ropewalk.serving.started import config_length, started
from tests.checkpoints.test_gguf_architectures import header
from tests.cli.doctor_runs import run_command
from tests.models.material import gguf_of
from tests.rope.models import fixture

tables = pytest.importorskip("engines.recorded", reason="the source distribution has no benchmarks/")
SIZES = {"vocab_size": 64, "intermediate_size": 64}
SERVE = {"vllm": "vllm serve", "sglang": "sglang serve --model-path", "mlx": "mlx_lm.server --model"}
START = {"vllm": "vllm serve {} --hf-overrides", "sglang": "sglang serve --model-path {} --json-model-override-args"}


def written(folder: Path, name: str) -> Path:
    """A folder with a fixture's config.json."""
    (folder / "config.json").write_text(json.dumps({**SIZES, **fixture(name)}))
    return folder


def command(engine: str, folder: Path, over: Any, *more: str) -> str:
    return " ".join([START[engine].format(folder), shlex.quote(json.dumps(over)), *more])


def codes(found: Any) -> set[str]:
    return {one.code for one in found.findings if one.severity != "note"}


@pytest.mark.parametrize("engine", START)
@pytest.mark.parametrize("name", [*tables.FLAT, *tables.NESTED])
@pytest.mark.parametrize("complete", [True, False])
def test_the_ropes_are_those_that_the_engine_computes(engine: str, name: str, complete: bool, tmp_path: Path) -> None:
    """As recorded, after its own merging, with its own defaults for the keys that a block drops."""
    case = tables.commanded(engine, name, complete)
    (tmp_path / "config.json").write_text(json.dumps(case.config))
    found, measured = started(command(engine, tmp_path, case.over)), tables.recorded(case)
    assert found.length == measured.length
    assert ("stops" in codes(found)) == bool(measured.error)
    if not measured.error:
        not_applied = (engine, name) in (("sglang", "stablelm_3b"), ("sglang", "qwen3_vl_4b"))  # `applied` says so
        assert measured.has(found.model.ropes, int(found.length or 0)) == (not not_applied)
        assert ("lost-key" in codes(found)) == (not complete and (engine == "vllm") == (name in tables.FLAT))
        assert ("not-applied" in codes(found)) == not_applied


@pytest.mark.parametrize(("engine", "family"), tables.OF_BLOCKS)
@pytest.mark.parametrize("block", tables.BLOCK_NAMES)
@pytest.mark.parametrize("former", [False, True])
def test_the_ropes_of_a_folder_are_those_that_the_engine_computes(
    engine: str, family: str, block: str, former: bool, tmp_path: Path
) -> None:
    """As recorded, in both spellings; or a finding names the block as not applied."""
    case = tables.of_block(engine, family, block, former)
    (tmp_path / "config.json").write_text(json.dumps(case.config))
    found, measured = started(f"{SERVE[engine]} {tmp_path}"), tables.recorded(case)
    named = "longrope" not in block and bool(codes(found) & {"engine", "not-applied"})  # by batch: not of the numbers
    assert measured.has(found.model.ropes, 128 if block == "dynamic" else 400) != named


@pytest.mark.parametrize("engine", START)
@pytest.mark.parametrize("name", tables.NESTED)
def test_a_block_beside_the_text_config_has_no_effect(engine: str, name: str, tmp_path: Path) -> None:
    """vllm-project/recipes#856 and sgl-project/sglang#27974; what is printed as right has the effect."""
    folder, trained = written(tmp_path, name), Served.of(fixture(name), None).trained
    longer = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 " if engine == "vllm" else "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 "
    option = {"vllm": "--max-model-len", "sglang": "--context-length"}[engine]
    over = {"rope_parameters": tables.yarn(trained)}
    found = started(longer + command(engine, folder, over, f"{option}={2 * trained}", "--port 1"))
    assert found.model.ropes == found.before.ropes
    assert {"no-effect", "beyond-trained", "length"} <= codes(found)
    assert (found.length, found.command.unread) == (2 * trained, ("--port",))
    if len(found.line) == 1 and engine == "vllm":
        right = started(found.line[-1])
        assert right.command.unread == ("--port",)
        assert not codes(right)
        assert right.length == 2 * trained
        wanted = METHODS["yarn"].positions(found.before.ropes, Reach(trained, 4 * trained))
        assert [rope and rope.scaling for rope in right.model.ropes.ropes] == [
            rope and rope.scaling for rope in wanted.ropes
        ]


@pytest.mark.parametrize(
    ("name", "over"),
    [
        ("qwen3_5_9b", {"text_config": None}),
        ("qwen3_5_9b", {"vision_config": None, "rope_theta": 1e6}),
        ("deepseek_v3", {"rope_parameters": {"rope_type": "yarn", "factor": None}}),
    ],
)
def test_a_null_is_no_traceback(name: str, over: Any, tmp_path: Path) -> None:
    """Of a part of the config, and of a factor: refused, or named as a fault."""
    with suppress(RopeError):
        assert codes(started(command("vllm", written(tmp_path, name), over)))


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.config and one.extends])
@pytest.mark.parametrize("engine", START)
@pytest.mark.parametrize("name", ["llama_2_7b", "qwen3_8b", "qwen3_5_9b"])
def test_the_plans_of_serve_config_have_no_fault(name: str, engine: str, method: str, tmp_path: Path) -> None:
    """Read backwards they are the method, to its target."""
    folder, source = written(tmp_path, name), Served.of(fixture(name), None)
    try:
        steps = serve_config(folder, engine, method=method, factor=4).steps
    except RopeError:
        return
    if len(steps) == 1:
        found = started(steps[0])
        assert not codes(found)
        assert found.length == 4 * source.trained
        wanted = METHODS[method].positions(source.own, Reach(source.trained, 4 * source.trained))
        ropes = [main_rope(one) for one in (found.model.ropes.ropes, wanted.ropes)]
        assert same_rope(*ropes, [1, source.trained, int(found.length)])


LONGER = {"max_position_embeddings": 16384}
LLAMA2 = fixture("llama_2_7b")  # 4,096 tokens, theta 10,000


@pytest.mark.parametrize(
    ("options", "expected", "length"),
    [
        ("", set(), 4096),
        ("--max-model-len 8k", {"length"}, None),  # vLLM's k is 1,000
        ("--hf-overrides.rope_parameters.rope_type yarn --hf-overrides.rope_parameters.factor 4",
         {"lost-key", "stops"}, None),  # theta and the original length
        (f"--hf-overrides '{json.dumps({'rope_scaling': tables.yarn(4096)})}'", {"stops"}, None),
        ("""--hf-overrides '{"rope_theta": 5e6}'""", {"no-effect"}, 4096),
        ("""--hf-overrides '{"text_config": {"rope_theta": 5e6}}'""", {"no-effect"}, 4096),
        ("""--hf_overrides='{"rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 10000}}'""", set(), 8192),
        ("""--rope-scaling '{"type": "yarn", "factor": 4}'""", {"unknown-option"}, None),
        ("--context-length 8192", {"unknown-option"}, None),
        ("--max-model-len auto", set(), 4096),
        ("""--hf-overrides '{"max_position_embeddings": null}'""", set(), 2048),  # the default of both engines
        ("--hf-overrides.rope_parameters.factor 4k", {"lost-key"}, 4096),  # text, as vLLM takes what is no JSON
        ("--max-model-len 1k 2>&1 | tee log", set(), 1000),
        (f"--hf-overrides '{json.dumps({'rope_parameters': tables.yarn(2048, rope_theta=1e4), **LONGER})}'",
         {"beyond-scaling", "original-length"}, 16384),
    ],
)  # fmt: skip
def test_settings_of_vllm(options: str, expected: set[str], length: int | None, tmp_path: Path) -> None:
    """Each fault by its code, and the length that results; what follows for the shell is not the engine's."""
    found = started(f"python -m vllm.entrypoints.openai.api_server --model {written(tmp_path, 'llama_2_7b')} {options}")
    assert (codes(found), found.length) == (expected, length)
    assert not {"tee", "log"} & {*found.command.rest}
    assert bool(found.line) == (bool(expected) and not any(one in options for one in ("5e6", "4k", "--context")))


@pytest.mark.parametrize("engine", START)
@pytest.mark.parametrize("keys", [*tables.LENGTHS, None])
def test_the_length_of_a_config(engine: str, keys: dict[str, Any] | None) -> None:
    """As the engine derives it, if it starts; None is a published config with LongRoPE."""
    case = tables.of_length(engine, keys) if keys is not None else tables.planned(engine, "phi_3_5_mini", "yarn")[0]
    found = tables.recorded(case)
    content = {**case.config, **(case.over or {})}
    assert found.error or (config_length(engine, content) or 2048) == found.length


@pytest.mark.parametrize("engine", START)
def test_the_length_of_a_config_with_a_key_beside_its_blocks(engine: str) -> None:
    """transformers uses only the `truncate` that stands there, so lint says to move it."""
    blocks = {"full_attention": {"rope_type": "yarn", "factor": 4.0}, "sliding_attention": {"rope_type": "default"}}
    found = [
        config_length(engine, {"max_position_embeddings": 4096, "rope_parameters": {**blocks, **more}})
        for more in ({}, {"truncate": False})
    ]
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny, trained to 256 tokens, as llama.cpp's converter writes it."""
    return gguf_of("tiny", tmp_path_factory.mktemp("tiny") / "tiny.gguf")


SLOTS = {
    "": ({}, set(), 256),
    "-c 1024": ({"n_ctx": 1024}, {"length"}, 256),
    "-c 1024 --rope-scale 4": (
        {"n_ctx": 1024, "rope_freq_scale": 0.25}, {"kind", "length", "factor-without-length"}, 256),
    "-c 1024 --rope-scaling yarn --rope-scale 4": (
        {"n_ctx": 1024, "rope_scaling_type": 2, "rope_freq_scale": 0.25}, set(), 1024),
    "--rope-scaling yarn --rope-freq-scale 0.5 --yarn-orig-ctx 256": (
        {"rope_scaling_type": 2, "rope_freq_scale": 0.5, "yarn_orig_ctx": 256}, set(), 512),
    "-c 512 --rope-scaling yarn --rope-freq-scale .5 --yarn-ext-factor -1 --yarn-beta-fast -1": (
        {"n_ctx": 512, "rope_scaling_type": 2, "rope_freq_scale": 0.5, "yarn_ext_factor": -1.0}, set(), 512),
    "-c 1024 -np 4": ({"n_ctx": 1024, "n_parallel": 4}, {"slots"}, 256),
}  # fmt: skip
"""Flags, the same as fields of llama.cpp's parameters, the faults, and the tokens of a slot."""
SERVER = """
import json, sys, urllib.request, xllamacpp
for options in json.loads(sys.argv[2]):
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.warmup, settings.verbosity = sys.argv[1], False, -1
    for name, value in {"n_parallel": 1, "port": 0, "n_ctx": 0, **options}.items():
        setattr(settings, name, value)
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(settings)
    with urllib.request.urlopen(f"{server.listening_address}/props") as answer:
        print("slot", json.load(answer)["default_generation_settings"]["n_ctx"], flush=True)
    del server
"""


@pytest.mark.thorough
def test_the_length_that_llama_server_gives_a_slot(file: Path) -> None:
    """Asked of the server itself, in a process of its own."""
    pytest.importorskip("xllamacpp", reason="llama.cpp is in the extra llama-cpp")
    cases = json.dumps([options for options, _, _ in SLOTS.values()])
    run = partial(
        subprocess.run, [sys.executable, "-c", SERVER, file, cases], capture_output=True, text=True, timeout=60
    )
    try:
        ran = run()
    except subprocess.TimeoutExpired:  # of some hundred runs of 4 seconds, two hung in xllamacpp
        ran = run()
    measured = [int(line.split()[1]) for line in ran.stdout.splitlines() if line.startswith("slot ")]
    assert measured == [length for _, _, length in SLOTS.values()], ran.stderr[-2000:]
    for flags, (_, expected, length) in SLOTS.items():
        found = started(f"llama-server -m {file} {flags}")
        assert (codes(found), found.length) == (expected, length)


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ("--rope-scaling yarn", "without --rope-scale its factor is 1"),
        ("--yarn-orig-ctx 256", "the scaling is linear, not yarn"),
        ("--rope-scaling none --rope-scale 4", "nothing is scaled"),
        ("--rope-scaling yarn --rope-scale 4 --yarn-attn-factor 2", "computed from the factor"),
        ("--override-kv qwen3.context_length=int:1024", "the architecture of the file is llama"),
        ("--override-kv llama.context_length=str:1024", "not the type of this key"),
        ("--max-model-len 1024", "no option of llama.cpp"),
    ],
)
def test_flags_of_llama_cpp_without_effect(flags: str, fault: str, file: Path) -> None:
    """From src/llama-context.cpp; YaRN's numbers are those of the flags."""
    assert any(fault in one.message for one in started(f"llama-server -m {file} {flags}").findings)
    betas = "--rope-scaling yarn --rope-scale 4 --yarn-beta-fast 8 --yarn-ext-factor"
    scaling = main_rope(started(f"llama-server -m {file} {betas} 1").model.ropes.ropes).scaling
    assert (scaling.rope_type, scaling.beta_fast, scaling.factor) == ("yarn", 8, 4)
    assert main_rope(started(f"llama-server -m {file} {betas} 0").model.ropes.ropes).scaling.rope_type == "linear"


def test_flags_do_not_reach_layers_with_a_window(tmp_path: Path) -> None:
    """Gemma 2's keep the file's theta and scale: `get_rope_freq_base` in src/llama-model.cpp."""
    gemma = header(tmp_path / "gemma.gguf", "gemma2", {"attention.sliding_window": 512})
    found = started(f"llama-server -m {gemma} --rope-freq-base 5e6 --rope-scaling linear --rope-scale 2")
    ropes, windows = found.model.ropes.ropes, found.model.ropes.sliding_windows
    assert set(windows) == {None, 512}
    for old, new, window in zip(found.before.ropes.ropes, ropes, windows, strict=True):
        assert old == new if window else (new.theta, new.scaling.factor) == (5e6, 2.0)


def test_mlx_reads_the_older_keys(tmp_path: Path) -> None:
    """The block that transformers 5 writes has no effect, theta neither; older keys have (mlx-lm 0.32.2)."""
    config = {key: value for key, value in LLAMA2.items() if not key.startswith("rope")}
    block = tables.yarn(4096, rope_theta=5e5, attention_factor=1.0)
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_parameters": block}))
    found = started(f"mlx_lm.server --model {tmp_path} --max-model-len 8192")
    rope = main_rope(found.model.ropes.ropes)
    assert (rope.theta, rope.scaling, codes(found)) == (1e4, None, {"unknown-option", "theta", "no-effect"})
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_theta": 5e5, "rope_scaling": block}))
    found = started(f"mlx_lm.generate --model {tmp_path}")
    rope = main_rope(found.model.ropes.ropes)
    assert (rope.theta, rope.scaling.attention_factor, codes(found)) == (5e5, None, {"no-effect"})


def test_the_right_line_starts_the_same_program(file: Path, tmp_path: Path) -> None:
    """llama-cli stays llama-cli, and a factor goes that the asked length does not need; mlx-lm gets a folder."""
    line = started(f"./bin/llama-cli -m {file} -c 1024 --rope-scale 4 -p hello").line[-1]
    assert line.startswith(f"./bin/llama-cli -m {file} --ctx-size 1024 ")
    assert line.endswith(" -p hello")
    assert not codes(started(line))
    line = started(f"llama-server -m {file} --rope-freq-scale 0.25 --rope-scale 2").line[-1]
    assert line.endswith(" --rope-scaling linear --rope-scale 2")  # the last flag of a factor applies
    over = json.dumps({"rope_parameters": tables.yarn(4096, rope_theta=1e4), "max_position_embeddings": 16384})
    folder = written(tmp_path, "llama_2_7b")
    found = started(f"vllm serve {folder} --max-model-len 2048 --hf-overrides '{over}'")
    assert "factor-without-length" in codes(found)
    assert found.line == (f"vllm serve {folder} --max-model-len 4096",)
    config = {key: value for key, value in LLAMA2.items() if not key.startswith("rope")}
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": tables.yarn(4096, rope_theta=5e5)}))
    *_, line = started(f"mlx_lm generate --model {folder} --prompt hello").line
    assert line == "mlx_lm.generate --model longer --prompt hello"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm serve 'x", "a shell cannot read this command"),
        ("tgi --model x", "starts no engine"),
        ("vllm serve --port 1", "names no model"),
        ("vllm serve tiny --hf-overrides '{'", "is no JSON"),
        ("vllm serve tiny --hf-overrides 4", "is no JSON"),
        (
            """vllm serve tiny --hf-overrides '{"rope_parameters": {"rope_type": ["yarn"]}}'""",
            "unknown `rope_type`",
        ),
        ("vllm serve tiny --max-model-len many", "an option needs a number"),
        ("vllm serve tiny --max-model-len 1e400", "an option needs a number"),
        ("vllm serve tiny --max-model-len", "an option needs a number"),
        ("vllm serve tiny --hf-overrides [[1,2]]", "is no JSON"),
        ("llama-server -m {file} -c 8k", "an option needs a number"),  # of vLLM only; llama.cpp reads 8
        ("llama-server -m {file} --yarn-orig-ctx 1e400", "an option needs a number"),
        ("llama-server -m {file} --rope-scaling longrope", "Pass none, linear or yarn"),
        ("llama-server -m {file} --rope-scale many", "an option needs a number"),
        ("llama-server -m {file} --rope-scale -1", "needs a positive number"),
        ("llama-server -m {file} --rope-scale 0", "needs a positive number"),
        ("llama-server -m {file} --rope-freq-base -1", "needs a positive number"),
        ("llama-server -m tiny", "loads a .gguf file"),
        ("llama-server -m {file} --override-kv context", "KEY=TYPE:VALUE"),
        ("llama-server -m {file} --rope-scaling yarn --rope-scale 2 --yarn-ext-factor 0.5", "extrapolation"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, words: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit status 2 and a cure."""
    assert run_command("inspect", "--command", text.replace("{file}", str(file))) == 2
    assert words in capsys.readouterr().err


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A docker line with a model given apart; the answer, the fault, the right line, and the same as JSON."""
    out, folder = tmp_path / "out.json", written(tmp_path, "llama_2_7b")
    text = "docker run -e A=1 vllm/vllm-openai:latest --model=meta-llama/Llama-2-7b --max-model-len=16384 -q fp8"
    assert read_command(text).model == "meta-llama/Llama-2-7b"
    assert run_command("inspect", folder, "--command", text, "--json", out) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "served length the engine does not start" in printed
    assert "error length: --max-model-len 16,384 is more than the config's 4,096" in printed
    assert "Right: vllm serve" in printed
    assert "Not looked at: -q. Read in vLLM 0.32.0's config/model.py" in printed
    record = json.loads(out.read_text())
    assert record["not_looked_at"] == ["-q"]
    assert shlex.split(record["commands"][0])[:2] == ["vllm", "serve"]
    assert record["answer"]["served_length"] == "the engine does not start"
    assert run_command("inspect") == 2
