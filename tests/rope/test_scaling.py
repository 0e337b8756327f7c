"""Scaling rules describe themselves: a new rule is one file, and nothing else names it."""

from __future__ import annotations

import ast
import importlib
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints.decoder_config import config_from_native, config_to_native
from ropewalk.rope.scaling import RULES

SOURCE = Path(rw.__file__).parent
LLAMA: dict[str, Any] = {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64}
NEW_RULE = '''
"""Every frequency of a long text is divided by `stretch`."""

from dataclasses import dataclass
from typing import ClassVar

from ropewalk.rope.rules.base import Ladder, Scaling


@dataclass(frozen=True)
class Stretched(Scaling):
    stretch: float
    switch: int
    slow: bool = True
    weights: tuple[float, ...] | None = None
    rope_type: ClassVar[str] = "stretched"
    hf_names: ClassVar[tuple[str, ...]] = ("stretched",)
    required_keys: ClassVar[tuple[str, ...]] = ("stretch", "switch")
    optional_keys: ClassVar[tuple[str, ...]] = ("slow", "weights")
    needs_seq_len: ClassVar[bool] = True

    @property
    def switch_length(self) -> int:
        return self.switch

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        divisor = self.stretch if seq_len is not None and seq_len > self.switch else 1.0
        return [f / divisor for f in ladder.inv_freq()]
'''


@pytest.fixture
def stretched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A rule of the caller: one class in a module of its own."""
    (tmp_path / "stretched.py").write_text(NEW_RULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("stretched")
    yield rw.scaling.Stretched
    del RULES["Stretched"], sys.modules["stretched"]


def test_a_rule_of_the_caller_is_known_everywhere(stretched: Any) -> None:
    """Discovered, read and written by from_hf, to_hf and ropewalk's own config, and known to tables and caches."""
    block = {"rope_type": "stretched", "rope_theta": 1e4, "stretch": 4, "switch": 16, "slow": None, "weights": [1, 2]}
    rope = rw.RopeConfig.from_hf({**LLAMA, "rope_parameters": block})
    assert rope.scaling == stretched(4.0, 16, weights=(1.0, 2.0))
    written = json.loads(json.dumps(rope.to_hf()))
    assert written == {key: value for key, value in block.items() if value is not None}
    assert rw.RopeConfig.from_hf({**LLAMA, "rope_parameters": written}) == rope

    plain = rw.inverse_frequencies(rope.unscaled()).inv_freq
    assert torch.equal(rw.inverse_frequencies(rope, 16).inv_freq, plain)
    assert torch.equal(rw.inverse_frequencies(rope, 17).inv_freq, plain / 4)
    cos, _ = rw.RotaryEmbedding(rope).cos_sin(torch.arange(3), seq_len=17)
    torch.testing.assert_close(cos, (torch.arange(3)[:, None] * plain / 4).cos().float())
    rows = rw.RotaryEmbedding(rope).cos_sin(torch.arange(3).expand(2, 3), seq_len=torch.tensor([16, 17]))[0]
    assert torch.equal(rows[1], cos)
    assert not torch.equal(rows[0], cos)

    assert (rope.longest_at(9), rope.longest_at(17)) == (16, math.inf)
    sizes: dict[str, Any] = dict.fromkeys(("num_layers", "batch", "num_key_value_heads"), 1)
    cache = rw.KVCache(**sizes, head_dim=8, seq_len=9, ropes=[rope])
    keys = torch.ones(1, 17, 1, 8)
    with pytest.raises(rw.RopeError, match="exceeds the `seq_len`"):
        cache.write(0, keys, keys, cache.lay_out(1, 17))

    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = rw.layers.DecoderConfig(**sizes, num_attention_heads=1, rope=rope)
    assert config_from_native(json.loads(json.dumps(config_to_native(config))), "here") == config
    with pytest.raises(rw.RopeError, match="the same frequencies at every length"):
        rw.scaling.Resonance(rope.scaling)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stretch": "4"}, "`stretch` must be a finite number"),
        ({"switch": 1.5}, "`switch` must be a whole number"),
        ({"slow": 1}, "`slow` must be true or false"),
        ({"weights": 3}, "`weights` must be a list of numbers"),
        ({"factor": 2.0}, "unknown key `factor`"),
        ({"rope_type": "stretchd"}, "Did you mean `stretched`"),
    ],
)
def test_a_new_rule_is_read_strictly(stretched: Any, changes: dict[str, Any], message: str) -> None:
    """Its keys are checked by the types of its fields."""
    block = {"rope_type": "stretched", "stretch": 4, "switch": 16, **changes}
    with pytest.raises(rw.RopeError, match=message):
        rw.RopeConfig.from_hf({**LLAMA, "rope_parameters": block})


@pytest.mark.rejects
def test_a_rule_without_a_name_in_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is exported as divisors where that can be, and refused where it cannot."""

    class Halved(rw.scaling.Scaling):
        rope_type = "halved"

        def inv_freq(self, ladder: Any, seq_len: int | None) -> list[float]:
            return [f / 2 for f in ladder.inv_freq()]

    class Still(Halved):
        rope_type = "still"

        def inv_freq(self, ladder: Any, seq_len: int | None) -> list[float]:
            return [0.0 for _ in ladder.columns]

    try:
        block = rw.RopeConfig(8, interleaved=False, scaling=Halved(), max_position_embeddings=64).to_hf()
        assert (block["rope_type"], block["long_factor"]) == ("longrope", [2.0] * 4)
        with pytest.raises(rw.RopeError, match="Halved becomes `longrope`"):
            rw.RopeConfig(8, interleaved=False, scaling=Halved()).to_hf()
        with pytest.raises(rw.RopeError, match="no rule for the frequencies of Still"):
            rw.RopeConfig(8, interleaved=False, scaling=Still(), max_position_embeddings=64).to_hf()
        with pytest.raises(rw.RopeError, match="unknown `rope_type`"):
            rw.RopeConfig.from_hf({**LLAMA, "rope_parameters": {"rope_type": "halved"}})
    finally:
        RULES.pop("Halved", None)
        RULES.pop("Still", None)


@pytest.mark.rejects
def test_two_rules_do_not_share_a_name() -> None:
    """A second `yarn` would make configs ambiguous."""
    with pytest.raises(rw.RopeError, match="two rules have the same name"):
        type("Other", (rw.scaling.Scaling,), {"rope_type": "yarn"})
    assert "Other" not in RULES
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = rw.scaling.Other


def test_no_rule_is_named_by_isinstance_elsewhere() -> None:
    """Outside `rope/rules` nothing asks whether a rule is a certain one."""
    wrong = []
    names = re.compile(rf"\b({'|'.join(RULES)})\b")
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if path.is_relative_to(SOURCE / "rope" / "rules") or not names.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                named = {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(node.args[1])}
                owner = {getattr(n, "id", "") for n in ast.walk(node.args[1])}
                if named & set(RULES) and not ({"Linear"} == named & set(RULES) and "nn" in owner):
                    wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert wrong == []
