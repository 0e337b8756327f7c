"""Every GGUF export, served by a real llama.cpp: its log-probabilities are our own forward's under the method."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.gguf_tokenizer import tokenizer_from_metadata
from ropewalk.errors import RopeError
from ropewalk.extend import ApplySettings, apply
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.adapters import open_reader
from ropewalk.serving.serve import serve_config
from ropewalk.verification.adapters import llama_cpp_server
from ropewalk.verification.hypotheses import Hypothesis
from ropewalk.verification.outcome import Probe
from ropewalk.verification.predictions import Predictions
from tests.checkpoints.test_tokenizer import sentencepiece_metadata
from tests.extend.material import TARGET, TRAINED, checkpoint_with_merges
from tests.models.material import smollm2

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
                answer = engine.ask(ids[:length])
            except RopeError:  # llama.cpp holds the log-probabilities back with a token that is half a character
                continue
            answers += 1
            assert answer.prompt_tokens == length
            probe = Probe(length, answer.top, {name: ours[name][length] for name in names})
            found = {name: max(found[name], probe.misfit(name)) for name in names}
    assert answers >= 2
    return found


def exported(source: str | Path, folder: Path, method: str, target: int, **settings: Any) -> Path:
    """The file of a method, in float32 unless it says otherwise."""
    how = {"method": method, "target": target or None, "quantization": "f32", **settings}
    return apply(source, folder / "model.gguf", ApplySettings(**how)).folder


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
@pytest.mark.parametrize("quantization", ["f16", "q8_0"])
def test_tiny_with_fewer_bits(quantization: str, tmp_path: Path, state: Path) -> None:
    """Quantisation costs more than the cache's float16 and far less than another method."""
    file = exported("tiny", tmp_path, "yarn", 1024, quantization=quantization)
    found = misfits("tiny", file, "yarn", Reach(256, 1024), (60, 300, 900), state=state)
    assert found["yarn"] < (0.005 if quantization == "f16" else 0.05)
    assert found["plain"] > 5 * found["yarn"]


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
    changes = {"no_rope_layers": None, "num_hidden_layers": 4} if family == "smollm3" else {"rope_theta": 1e4}
    source = checkpoint_with_merges(tmp_path / "source", family, **changes)
    file = exported(source, tmp_path, method, TARGET)
    found = misfits(source, file, method, Reach(TRAINED, TARGET), tuple(range(5, 64, 6)))
    assert found[method] < 0.01
    assert found["plain"] > 3 * found[method]


BETAS = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": TRAINED,
         "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3, "finetuned": True}  # fmt: skip


def off_transformers(source: Path, file: Path, **options: Any) -> float:
    """The largest mean difference in nats of the server's top log-probabilities to transformers' on the folder."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    reader = open_reader(source, dtype=torch.float32)
    ids = reader.tokenizer.encode(read_text(None)[1][40_000:41_000])[:TARGET]
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    found = []
    with llama_cpp_server(file, reader.tokenizer, context=2 * TARGET, threads=1, options=options) as engine:
        for length in range(5, TARGET, 6):
            try:
                answer = engine.ask(ids[:length])
            except RopeError:  # half a character; see `misfits`
                continue
            top = answer.top
            found.append(sum(abs(expected[length - 1, one].item() - value) for one, value in top.items()) / len(top))
    assert len(found) >= 2
    return max(found)


def test_betas_become_divisors_or_the_servers_flags(tmp_path: Path) -> None:
    """llama.cpp reads no betas from a file of these architectures; a Llama gets divisors, a Qwen3 the flags."""
    shape = {"max_position_embeddings": TARGET, "hidden_size": 128, "head_dim": 32}
    llama = checkpoint_with_merges(tmp_path / "llama", rope_parameters=BETAS, **shape)
    file = exported(llama, tmp_path, "as-is", 0)
    assert off_transformers(llama, file) < 0.01
    qwen = checkpoint_with_merges(tmp_path / "qwen3", "qwen3", rope_parameters=BETAS, **shape)
    with pytest.raises(RopeError, match="ignores YaRN's betas") as refused:
        exported(qwen, tmp_path / "refused", "as-is", 0)
    said = str(refused.value)
    flags = dict(re.findall(r"--((?:rope|yarn|override)-[a-z-]+) ([^\s;]+)", said))
    assert flags["override-kv"].startswith("qwen3.rope.scaling.attn_factor=float:")
    usual = {key: value for key, value in BETAS.items() if not key.startswith("beta_")}
    same = checkpoint_with_merges(tmp_path / "usual", "qwen3", rope_parameters=usual, **shape)
    file = exported(same, tmp_path / "qwen3", "as-is", 0)  # the same weights; its own factor is the flag's
    options = {"rope_scaling_type": 2, "rope_freq_scale": 1 / float(flags["rope-scale"]),
               "yarn_orig_ctx": int(flags["yarn-orig-ctx"]), "yarn_beta_fast": float(flags["yarn-beta-fast"]),
               "yarn_beta_slow": float(flags["yarn-beta-slow"])}  # fmt: skip
    assert off_transformers(qwen, file, **options) < 0.01
    assert off_transformers(qwen, file) > 0.1


@pytest.mark.thorough
def test_longrope_follows_the_length_of_the_servers_context(tmp_path: Path) -> None:
    """llama.cpp takes the long list where the server's context is longer than the original length."""
    own = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.3, 1.6],
           "long_factor": [1.5, 2.0, 3.0, 4.0], "original_max_position_embeddings": 8, "finetuned": True}  # fmt: skip
    source = checkpoint_with_merges(tmp_path / "source", rope_parameters=own)
    file = exported(source, tmp_path, "plain", TARGET)
    assert misfits(source, file, "plain", Reach(TRAINED, TARGET), tuple(range(10, 16)))["plain"] < 0.01


@pytest.mark.thorough
def test_llama_cpp_cuts_text_as_a_sentencepiece_tokenizer_does(tmp_path: Path) -> None:
    """Its own tokenizer, by the scores that follow from the merges, gives the source's ids."""
    source = checkpoint_with_merges(tmp_path / "source", bos_token_id=1, eos_token_id=2)
    tokenizer = tokenizer_from_metadata(sentencepiece_metadata(), "test")
    tokenizer.save(source)
    file = exported(source, tmp_path, "yarn", TARGET)
    with llama_cpp_server(file, tokenizer, context=64, threads=1) as engine:
        for text in ("the cat at the tea", "theat the é你 a", "cathethe thathe ste"):
            assert engine.token_ids(text) in (tokenizer.encode(text), tokenizer.encode(text, add_special=True))


@pytest.mark.thorough
def test_the_flags_that_serve_config_prints(tmp_path: Path) -> None:
    """A plain file with YaRN flags reads beyond the length that it states, and answers as YaRN does."""
    file = exported("tiny", tmp_path, "plain", 0)
    words = shlex.split(serve_config(file, "llama.cpp", method="yarn", target=1024).steps[0])
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    assert (flags["--rope-scaling"], flags["--ctx-size"]) == ("yarn", "1024")
    options = {"rope_scaling_type": 2, "rope_freq_scale": 1 / float(flags["--rope-scale"]),
               "yarn_orig_ctx": int(flags["--yarn-orig-ctx"])}  # fmt: skip
    assert misfits("tiny", file, "yarn", Reach(256, 1024), (60, 900), **options)["yarn"] < 0.005


@pytest.mark.slow
@pytest.mark.parametrize("method", ["yarn", "pi"])
def test_smollm2_copied_block_by_block(method: str, tmp_path: Path) -> None:
    """A published 4-bit file under YaRN 2 and linear 2: its error is that of 4-bit weights, plain lies further off."""
    source = smollm2()
    file = apply(source, tmp_path / "model.gguf", ApplySettings(method=method, target=16384)).folder
    found = misfits(source, file, method, Reach(8192, 16384), (100, 300, 600))
    assert found[method] < 0.2
    assert found["plain"] > 2 * found[method]
