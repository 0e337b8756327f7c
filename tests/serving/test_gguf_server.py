"""Every copied GGUF file, served by a real llama.cpp: its log-probabilities are our own forward's under the method."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as KINDS

from ropewalk.audit.faults import Hypothesis
from ropewalk.checkpoints.opening import open_reader
from ropewalk.checkpoints.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.serving import apply
from ropewalk.serving.serve import serve_config
from ropewalk.tokenizer import TextTokenizer
from ropewalk.verification.adapters import llama_cpp_server
from ropewalk.verification.fit import Probe
from ropewalk.verification.verify import Predictions
from tests.checkpoints.gguf_files import write_foreign
from tests.checkpoints.random_models import folder_of, random_model
from tests.models.material import gguf_of, smollm2

pytest.importorskip("xllamacpp", reason="llama.cpp is in the extra llama-cpp")
SAID = [name for name, method in METHODS.items() if method.config is not None and name != "dynamic"]
FAST = ("yarn", "resonance")  # a rule that llama.cpp has, and divisors with an attention factor
KEPT = ("plain", "as-is")  # these state the trained length, and the server reads no further


def misfits(
    source: str | Path,
    file: Path,
    method: str,
    reach: Reach,
    lengths: tuple[int, ...],
    *,
    state: Path | None = None,
    **options: Any,
) -> dict[str, float]:
    """The largest mean difference in nats of the server's top log-probabilities: to the method, and to plain."""
    reader = open_reader(source, dtype=torch.float32)
    tokenizer = reader.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(read_text(None)[1][40_000 : 40_000 + 8 * max(lengths)])[: max(lengths)]
    names = {name: METHODS[name].positions(reader.positions, reach) for name in (method, "plain")}
    predictions = Predictions(reader, state)
    ours = {name: predictions.of(Hypothesis(name, where), ids, lengths) for name, where in names.items()}
    found, answers = dict.fromkeys(names, 0.0), 0
    with llama_cpp_server(file, tokenizer, context=max(lengths) + 64, threads=1, options=options) as engine:
        assert engine.token_ids("Call me Ishmael, 1851!") == tokenizer.encode("Call me Ishmael, 1851!")
        for length in lengths:
            try:
                [answer] = engine.generate(ids[:length], 1)
            except RopeError:  # llama.cpp holds the log-probabilities back with a token that is half a character
                continue
            answers += 1
            assert answer.prompt_tokens == length
            probe = Probe(length, answer.top, {name: ours[name][length].of(list(answer.top)) for name in names})
            found = {name: max(found[name], probe.misfit(name)) for name in names}
    assert answers >= 2
    return found


def exported(source: str | Path, folder: Path, method: str, target: int) -> Path:
    """The file of a method, in float32."""
    file = gguf_of(source, folder / "source.gguf", KINDS.F32)
    apply(file, folder / "model.gguf", method=method, target=target or None)
    return folder / "model.gguf"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for our predictions of tiny, which tests share."""
    return tmp_path_factory.mktemp("predictions")


@pytest.mark.parametrize(
    "method", [name if name in FAST else pytest.param(name, marks=pytest.mark.thorough) for name in SAID]
)
def test_tiny_under_every_method(method: str, tmp_path: Path, state: Path) -> None:
    """Within the trained length of 256 tokens and beyond it."""
    lengths = (60, 250) if method in KEPT else (60, 300, 900)
    file = exported("tiny", tmp_path, method, 1024)
    found = misfits("tiny", file, method, Reach(256, 1024), lengths, state=state)
    assert found[method] < 0.005
    assert method in KEPT or found["plain"] > 5 * found[method]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "method"),
    [
        *((family, "yarn") for family in ("llama", "mistral", "qwen2", "qwen3", "smollm3")),
        ("llama", "pi"),
        ("qwen3", "ntk"),
    ],
)
def test_every_family(family: str, method: str, tmp_path: Path) -> None:
    """Random weights in each architecture that is written: names, the order of rows, layers without rotation."""
    changes = {"no_rope_layers": None, "num_hidden_layers": 4, "hidden_size": 32} if family == "smollm3" else {}
    changes |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "sliding_window": None}
    source = folder_of(family, tmp_path / "source", vocab_size=300, eos_token_id=0, bos_token_id=0, **changes)
    TextTokenizer.train(["the rain in Spain stays mainly in the plain; Call me Ishmael, 1851. "] * 40, 300).save(source)
    file = exported(source, tmp_path, method, 128)
    found = misfits(source, file, method, Reach(32, 128), tuple(range(5, 128, 12)))
    assert found[method] < 0.02
    assert found["plain"] > 3 * found[method]


FLAGS = {"--rope-scaling": ("rope_scaling_type", lambda name: {"linear": 1, "yarn": 2}[name]),
         "--rope-scale": ("rope_freq_scale", lambda factor: 1 / float(factor)),
         "--rope-freq-base": ("rope_freq_base", float), "--yarn-orig-ctx": ("yarn_orig_ctx", int)}  # fmt: skip
"""The fields of llama.cpp's parameters that its flags set (common/arg.cpp of llama-cpp-python 0.3.36)."""


@pytest.mark.parametrize(
    ("family", "method"),
    [
        pytest.param(family, method, marks=[pytest.mark.thorough] * ((family, method) != ("qwen3_moe", "pi")))
        for family in ("qwen3_moe", "phi3", "starcoder2", "llama")
        for method in ("pi", "ntk", "yarn")
    ],
)
def test_the_flags_that_serve_config_prints(
    family: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for files that cannot be copied. xllamacpp has no --override-kv, so the served file states the length."""
    model = random_model(family, sliding_window=None)
    file = write_foreign(model, tmp_path / "plain.gguf")
    model.config.max_position_embeddings = 128
    add = gguf.GGUFWriter.add_token_merges  # llama.cpp refuses a tokenizer without one
    monkeypatch.setattr(gguf.GGUFWriter, "add_token_merges", lambda writer, merges: add(writer, ["\u0100 \u0101"]))
    served = write_foreign(model, tmp_path / "served.gguf")
    steps = serve_config(file, "llama.cpp", method=method, target=128).steps
    words = shlex.split(steps[0])
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert (len(steps), flags.pop("--ctx-size")) == (1, "128")
    assert flags.pop("--override-kv").endswith(".context_length=int:128")
    options = {FLAGS[flag][0]: FLAGS[flag][1](value) for flag, value in flags.items()}
    found = misfits(file, served, method, Reach(32, 128), tuple(range(5, 128, 12)), **options)
    assert found[method] < 0.05  # the cache has 16 bits, and a router may choose a different expert
    assert found["plain"] > 3 * found[method]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["yarn", "pi"])
def test_smollm2_copied_block_by_block(method: str, tmp_path: Path) -> None:
    """A published 4-bit file under YaRN 2 and linear 2: its error is that of 4-bit weights, plain lies further off."""
    source = smollm2()
    apply(source, tmp_path / "model.gguf", method=method, target=16384)
    found = misfits(source, tmp_path / "model.gguf", method, Reach(8192, 16384), (100, 300, 600))
    assert found[method] < 0.2
    assert found["plain"] > 2 * found[method]
