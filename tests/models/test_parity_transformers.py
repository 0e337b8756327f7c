"""Models that transformers made, loaded here, and models saved here, loaded there: the same logits and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ropewalk.checkpoints.decoder_config import config_from_hf, config_to_hf
from ropewalk.checkpoints.load import load, save
from ropewalk.checkpoints.opening import load_gguf
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import generate
from tests.models.material import CASES, ROOT, data, input_ids, logits, make, smollm2


def worst(ours: Decoder, theirs: Any, ids: torch.Tensor) -> float:
    """The largest difference of two models' logits."""
    return float((logits(ours, ids) - logits(theirs, ids)).abs().max())


@pytest.mark.parametrize("name", CASES)
def test_tiny_models(name: str, tmp_path: Path) -> None:
    """A random model that transformers saved gives its logits within 1e-5 here; saved here, it goes back unchanged."""
    theirs = make(name)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    expected = logits(theirs, input_ids())
    assert max(worst(ours, theirs, input_ids(length)) for length in (48, 24)) < 1e-5  # longer and shorter than trained
    assert expected.std() > 0.1

    save(ours, tmp_path / "ours")
    again, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(logits(again, input_ids()), expected, rtol=0, atol=1e-6)
    assert load(tmp_path / "ours").config == ours.config
    assert type(again) is type(theirs)


PUBLISHED = {
    path.stem: {key: value for key, value in content.items() if not key.startswith("_")}
    for path in sorted((ROOT / "tests" / "fixtures" / "configs").glob("*.json"))
    if (content := json.loads(path.read_text(encoding="utf-8"))).get("model_type") == "llama"
}


@pytest.mark.parametrize("name", [*PUBLISHED, "llama"])
def test_defaults_are_those_of_transformers(name: str) -> None:
    """A published config, or one with nothing but sizes, means what transformers makes of it once it fills it in."""
    sizes = {
        "vocab_size": 99, "intermediate_size": 48, "hidden_size": 512, "num_hidden_layers": 30,
        "num_attention_heads": 32,
    }  # fmt: skip
    said = sizes | PUBLISHED.get(name, {"model_type": name})
    filled = transformers.AutoConfig.for_model(**said).to_dict()
    config = config_from_hf(said, "said")
    assert config == config_from_hf(filled, "filled")
    assert config_from_hf(config_to_hf(config), "written") == config


PROMPTS = (
    "The whale had been following the ship for three days, and",
    "def fibonacci(n):\n    ",
    "My dear sister, you cannot imagine the journey",
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smollm2(tmp_path: Path) -> None:
    """SmolLM2-135M, written as a folder: logits within 1e-3 of transformers', and the same 200 greedy tokens."""
    theirs, tokenizer = load_gguf(smollm2())
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert tokenizer is not None
    text = data("moby_dick.txt").read_text(encoding="utf-8")[30_000:40_000]
    assert worst(ours, theirs, torch.tensor([tokenizer.encode(text)[:1024]])) < 1e-3
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt)])
        expected = theirs.generate(ids, max_new_tokens=200, do_sample=False, eos_token_id=None)[0, ids.shape[1] :]
        assert len(expected) == 200
        assert generate(ours, ids, max_new_tokens=200) == [expected.tolist()]
