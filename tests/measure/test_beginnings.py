"""Methods that equal plain at the beginning of a window take it over, and find the same numbers as without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.measure.losses import Beginnings
from ropewalk.measure.plan import KIND, LossProtocol, plan, shared_tokens
from ropewalk.methods import METHODS, Reach
from ropewalk.models.decoder import Decoder
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.losses import cropped_losses, window_losses
from ropewalk.readers.reader import Beginning
from ropewalk.rope.scaling import Linear
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder, under_method
from tests.diagnosis.small_runs import loss_job, ran

TRAINED, TARGET, CHUNK = 16, 64, 4
REACH = Reach(TRAINED, TARGET)
SHARING = [name for name, method in METHODS.items() if method.equal_below(REACH) and not method.crops]
CHANGING = [name for name, method in METHODS.items() if method.in_attention or method.crops]


def losses_under(model: Decoder, method: str, ids: torch.Tensor) -> np.ndarray:
    """Of every token but the first, all read under the method."""
    variant = under_method(model, method, trained=TRAINED, target=TARGET)
    if METHODS[method].crops:
        return cropped_losses(DecoderReader(variant), ids, trained_length=TRAINED, stride=4)
    return window_losses(variant, ids)


@pytest.mark.parametrize("method", CHANGING)
def test_what_a_method_says_of_its_first_tokens_is_true(method: str) -> None:
    """Tokens below `equal_below` have plain's losses in any text, and soon after it they have others."""
    model, ids = tiny_decoder().double(), random_ids(TARGET)
    off = np.abs(losses_under(model, method, ids) - losses_under(model, "plain", ids))
    count = METHODS[method].equal_below(REACH) - METHODS[method].crops  # a fresh window scores the token after it
    assert off[:count].max(initial=0.0) < 2e-6  # entry i is what token i + 1 costs after token i
    assert off[count : count + 6].max() > 1e-4


def test_who_shares() -> None:
    """Those of attention, up to the trained length or their window."""
    assert SHARING == ["rerope", "self-extend", "dca", "log-n", "streaming"]
    protocol = LossProtocol.choose(trained_length=TRAINED, target=TARGET, text="t", windows=1)
    found = {name: shared_tokens(name, protocol, CHUNK) for name in METHODS}
    assert {name for name, tokens in found.items() if tokens} == set(SHARING)
    assert (found["dca"], found["rerope"]) == (TRAINED, TRAINED // 4)
    assert shared_tokens("dca", protocol, 5) == 15  # whole chunks of plain's
    assert shared_tokens("dca", protocol, 32) == 0


def measured(
    methods: list[str], folder: Path, *, model: Decoder | None = None, workers: int = 1
) -> tuple[dict[str, Any], list[int]]:
    """The block sums of each method, and the tokens of each forward."""
    model = tiny_decoder() if model is None else model
    protocol = LossProtocol.choose(trained_length=TRAINED, target=TARGET, text="t", windows=2)
    reader = DecoderReader(model)
    ledger = Ledger(folder, kind=KIND, key="key")
    ledger.resume()
    with reading(model) as forwards:
        found = ran(
            reader, random_ids(2 * TARGET).view(2, TARGET), plan(reader, protocol, methods), ledger,
            chunk=CHUNK, workers=workers,
        )  # fmt: skip
    return {name: [window.block_sums for window in results] for name, results in found.results.items()}, forwards


@contextmanager
def reading(model: Decoder) -> Iterator[list[int]]:
    """The tokens of each forward within, of the model and of its other forms: they share the embedding."""
    forwards: list[int] = []
    hook = model.embed_tokens.register_forward_hook(lambda module, args, out: forwards.append(args[0].numel()))
    try:
        yield forwards
    finally:
        hook.remove()


def test_the_beginning_is_read_once(tmp_path: Path) -> None:
    """Each of the five saves what it shares, of both windows."""
    _, forwards = measured(SHARING, tmp_path / "run")
    shares = 3 * TRAINED + 2 * (TRAINED // 4)
    assert sum(forwards) == 2 * (6 * TARGET - shares)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_do_not_depend_on_what_was_kept(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: in one run, resumed after plain, alone with plain, by two workers, with no room to keep anything."""
    model = tiny_decoder().to(dtype)
    whole, _ = measured(SHARING, tmp_path / "whole", model=model)
    measured(["plain"], tmp_path / "resumed", model=model)
    resumed, forwards = measured(SHARING, tmp_path / "resumed", model=model)
    assert sum(forwards) == 2 * 5 * TARGET + 2 * 5  # read again for each, and the token that the last loss is of
    assert resumed == whole
    for method in SHARING:
        alone, _ = measured([method], tmp_path / method, model=model)
        assert alone == {"plain": whole["plain"], method: whole[method]}
    two, _ = measured(SHARING, tmp_path / "two", model=model, workers=2)
    assert two == whole
    monkeypatch.setattr("ropewalk.measure.losses.KEPT_BYTES", 0)
    assert measured(SHARING, tmp_path / "none", model=model)[0] == whole


@pytest.mark.parametrize("method", SHARING)
def test_reading_on_is_reading(method: str) -> None:
    """The losses after plain's beginning are those of the method from the first token on, up to rounding."""
    model, ids = tiny_decoder(), random_ids(TARGET)
    tokens = shared_tokens(
        method, LossProtocol.choose(trained_length=TRAINED, target=TARGET, text="t", windows=1), CHUNK
    )
    found: list[Beginning] = []
    plain = DecoderReader(under_method(model, "plain", trained=TRAINED, target=TARGET))
    plain.reading_on(ids, keep=tokens, kept=found.append, chunk=CHUNK)
    variant = DecoderReader(under_method(model, method, trained=TRAINED, target=TARGET))
    again = variant.reading_on(ids, after=(found[0], tokens), chunk=CHUNK)
    np.testing.assert_allclose(again, losses_under(model, method, ids), atol=2e-5)
    assert found[0].nbytes == plain.cache_bytes(tokens)


def test_a_beginning_of_other_ropes_is_refused() -> None:
    """And one of unrotated keys, whose positions nobody has put into them yet."""
    model, ids = tiny_decoder(), random_ids(TARGET)
    found: list[Beginning] = []
    DecoderReader(model).reading_on(ids, keep=8, kept=found.append, chunk=CHUNK)
    scaled = model.with_positions(rope=ROPE.__class__(8, interleaved=False, scaling=Linear(4.0)))
    with pytest.raises(RopeError, match="under a different rope"):
        window_losses(scaled, ids, after=(found[0], 8))
    with pytest.raises(RopeError, match="or there are too few"):
        window_losses(model, ids, after=(found[0], 12))
    unrotated = under_method(model, "dca", trained=TRAINED, target=TARGET)
    with pytest.raises(RopeError, match="cache must contain rotated keys"):
        window_losses(unrotated, ids, chunk=CHUNK, keep=8, kept=found.append)


def test_a_beginning_that_nobody_wants_any_more_is_not_kept() -> None:
    """Where a second worker began a method before plain was there, and read for itself."""
    reader, ids = DecoderReader(tiny_decoder()), random_ids(TARGET)
    shared = {"plain": 0, "dca": TRAINED}
    kept = Beginnings(reader, shared, [loss_job("dca", 0, TARGET)], chunk=CHUNK)
    variant = DecoderReader(under_method(reader.model, "dca", trained=TRAINED, target=TARGET))
    kept.read(variant, "dca", ids, 0, advance=lambda tokens: None, asking={})
    kept._wanted[0].append(TRAINED)  # as it stood when plain began
    original = reader.reading_on

    def slower(*arguments: Any, **options: Any) -> Any:
        kept._wanted[0].clear()
        return original(*arguments, **options)

    reader.reading_on = slower  # type: ignore[method-assign]
    kept.read_plain(ids, 0, advance=lambda tokens: None, asking={})
    assert not kept._kept
