"""Arguments of a wrong type: each public entry raises `RopeError`, which names the argument, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.audit.audit import audit
from ropewalk.audit.vectors import conformance_vectors
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.rope.values import check_positive, check_whole, names_of
from ropewalk.serving.serve import serve_config

X, TABLE = torch.ones(1, 2, 1, 4), torch.ones(2, 2)
JUNK: list[Any] = [3.5, "", object(), [1.0], {}, float("nan"), 10**23, b"x"]


def rotated(**changes: Any) -> object:
    """A rotation with other arguments."""
    return rw.rotate(**{"x": X, "cos": TABLE, "sin": TABLE, "interleaved": False, **changes})


def both(**changes: Any) -> object:
    """A rotation of queries and keys with other arguments."""
    return rw.rotate_qk(**{"q": X, "k": X, "cos": TABLE, "sin": TABLE, "interleaved": False, **changes})


CALLS: list[tuple[str, Callable[[Any], object]]] = [
    ("`x`", lambda value: rotated(x=value)),
    ("`cos`", lambda value: rotated(cos=value)),
    ("`sin`", lambda value: rotated(sin=value)),
    ("`q`", lambda value: both(q=value)),
    ("`k`", lambda value: both(k=value)),
    ("layout", lambda value: rotated(layout=value)),
    ("`hidden_size`", lambda value: rw.Attention(value, 4)),
    ("`num_attention_heads`", lambda value: rw.Attention(64, value)),
    ("`rope`", lambda value: rw.Attention(64, 4, rope=value)),
    ("`hidden_states`", rw.Attention(8, 2)),
    ("`attention_mask`", lambda value: rw.Attention(8, 2)(torch.ones(1, 2, 8), attention_mask=value)),
    ("`cache`", lambda value: rw.Attention(8, 2)(torch.ones(1, 2, 8), cache=value)),
    ("`batch`", lambda value: rw.KVCache(num_layers=1, batch=value, num_key_value_heads=2, head_dim=16)),
    ("`head_dim`", lambda value: rw.KVCache(num_layers=1, batch=1, num_key_value_heads=2, head_dim=value)),
    ("`height`", lambda value: rw.positions.grid_positions(value, 2)),
    ("`model`", lambda value: rw.generate(value, [[1]], max_new_tokens=1)),
    ("`model`", lambda value: rw.save(value, "folder")),
    ("`input_ids`", lambda value: rw.load("tiny")(value)),
    ("`config`", rw.Decoder),
    ("`config`", rw.TextClassifier),
    ("`config`", audit),
    ("load: ", lambda value: rw.load(value or "")),
    ("load: ", lambda value: conformance_vectors(value or "")),
    ("`windows`", lambda value: rw.doctor("tiny", windows=value)),
    ("`target`", lambda value: rw.doctor("tiny", target=value)),
    ("`trained_length`", lambda value: rw.doctor("tiny", trained_length=value)),
    ("methods: ", lambda value: rw.doctor("tiny", methods=value or [""])),
    ("device", lambda value: rw.doctor("tiny", device=value)),
    ("dtype", lambda value: rw.doctor("tiny", dtype=value)),
    ("`up_to`", lambda value: rw.verify("tiny", "transformers", up_to=value)),
    ("`max_tokens`", lambda value: rw.verify("tiny", "transformers", max_tokens=value)),
    ("`target`", lambda value: serve_config("tiny", "vllm", target=value)),
    ("method", lambda value: serve_config("tiny", "vllm", method=value or 3)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_a_wrong_type_is_refused_by_name(name: str, call: Callable[[Any], object]) -> None:
    """No AttributeError of an inner function, and nothing is loaded from the network or written."""
    for value in JUNK:
        with pytest.raises(rw.RopeError, match=name):
            call(value)


@pytest.mark.parametrize("value", [None, "1", [1.0], object(), X])
def test_numbers_and_results_of_a_rotation(value: Any) -> None:
    """The factor is a number, and the result's place a tensor."""
    with pytest.raises(rw.RopeError, match="`scale`"):
        rotated(scale=value)
    if value is not None and value is not X:
        with pytest.raises(rw.RopeError, match="`out`"):
            rotated(out=value)


def test_attach_needs_a_model_and_a_method() -> None:
    """Its `method` may be None."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    for value in JUNK:
        with pytest.raises(rw.RopeError, match="`model`"):
            rw.attach(value)
        with pytest.raises(rw.RopeError, match="unknown method"):
            rw.attach(model, value)
        with pytest.raises(rw.RopeError, match="`target`"):
            rw.attach(model, "yarn", target=value)


def test_the_range_of_a_whole_number() -> None:
    """Both ends belong to it; numbers of torch and numpy count, and None only where it may be left out."""
    for value in (0, 5, torch.tensor(3)):
        check_whole("f", least=0, most=5, n=value)
    check_whole("f", n=None)
    for wrong in (-1, 6, 2.0, True, "3"):
        with pytest.raises(rw.RopeError, match="f: `n` must be a whole number from 0 to 5"):
            check_whole("f", least=0, most=5, n=wrong)
    with pytest.raises(rw.RopeError):
        check_whole("f", optional=False, n=None)


def test_positive_numbers_and_names() -> None:
    """Neither 0 nor infinity; neither an empty name nor the same one twice."""
    check_positive("f", n=1e-9, m=3)
    for number in (0, -1.0, float("inf"), float("nan"), None, "1"):
        with pytest.raises(rw.RopeError, match="f: `n` must be a finite number above 0"):
            check_positive("f", n=number)
    assert names_of("f", None) == names_of("f", ()) == []
    assert names_of("f", ("a, b", "c")) == ["a", "b", "c"]
    for names in ("", "a,", ["a", "a"], "a,a", {"a": 1}, 3, [3]):
        with pytest.raises(rw.RopeError, match=r"^f "):
            names_of("f", names)


def test_the_doctors_settings_check_their_numbers() -> None:
    """As an option and in Python."""
    for name in ("windows", "target", "trained_length"):
        with pytest.raises(rw.RopeError, match=f"`{name}` must be a whole number from 1"):
            DoctorSettings(**{name: 0})
    with pytest.raises(rw.RopeError, match="9,223,372,036,854,775,807"):
        DoctorSettings(seed=2**63)
