"""Packed documents: as if each were alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.layers import attend as attend_module
from ropewalk.layers import attention as attention_module
from ropewalk.layers.attend import attend_varlen, varlen_kernel
from ropewalk.layers.masks import find_documents, lay_out
from ropewalk.rope.extensions import DualChunk, LogN, ReRoPE

VOCAB = 50
ROPE = rw.RopeConfig(8, interleaved=False, max_position_embeddings=8)
KINDS: dict[str, dict[str, Any]] = {
    "rope": {"rope": ROPE},
    "window": {"rope": ROPE, "sliding_window": (None, 3)},
    "two ropes": {"rope": (ROPE, replace(ROPE, theta=20.0))},
    "no position": {},
    "rerope": {"rope": ROPE, "extension": ReRoPE(window=4, log_n=5)},
    "dual chunk": {"rope": ROPE, "extension": DualChunk(chunk=4, trained_length=6), "sliding_window": None},
    "log-n": {"rope": ROPE, "extension": LogN(trained_length=4)},
    "alibi window": {"encoding": "alibi", "sliding_window": (3, None)},
    **{name: {"encoding": name} for name in ("t5", "relative", "kerple", "fire", "transformer_xl", "xpos", "learned")},
}


def make(**changes: Any) -> rw.Decoder:
    """Two layers, four heads on two key heads, in float64, with weights that matter."""
    given: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3,
    }  # fmt: skip
    return rw.Decoder(rw.layers.DecoderConfig(**{**given, **changes})).double()


def pack(rows: list[list[int]]) -> Tensor:
    """Document ids `[batch, seq]` of documents of these lengths; every third has the id of the first."""
    return torch.tensor([[at % 2 for at, length in enumerate(row) for _ in range(length)] for row in rows])


def gradients(model: rw.Decoder) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.repeats_shapes), True])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_is_separate(kind: str, padded: bool) -> None:
    """Logits and every gradient are those of the documents one by one; padding at the ends and inside is not there."""
    model, rows = make(**KINDS[kind]), [[5, 1, 9, 6], [11, 6, 3, 1]]
    ids, marks = torch.randint(0, VOCAB, (2, 21)), pack(rows)
    mask = torch.ones(2, 21, dtype=torch.long)
    if padded:
        mask[0, :2] = mask[0, 8] = mask[0, 11:13] = mask[1, 17:] = 0
    packed = model(ids, document_ids=marks, attention_mask=mask if padded else None)
    weights = torch.randn(2, 21, VOCAB, dtype=torch.float64)
    (packed * weights)[mask.bool()].sum().backward()
    together = gradients(model)
    for row, lengths in enumerate(rows):
        for begin, end in pairwise(accumulate(lengths, initial=0)):
            real = mask[row, begin:end].bool()
            if real.any():
                alone = model(ids[None, row, begin:end][:, real])[0]
                torch.testing.assert_close(packed[row, begin:end][real], alone, atol=1e-11, rtol=0)
                (alone * weights[row, begin:end][real]).sum().backward()
    separate = gradients(model)
    assert together.keys() == separate.keys()
    for name, gradient in separate.items():
        torch.testing.assert_close(together[name], gradient, atol=1e-10, rtol=1e-10, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(model(ids, document_ids=marks, attention_mask=mask), packed, atol=1e-11, rtol=0)


@pytest.mark.parametrize("kind", ["rope", "relative"])
def test_positions_that_are_given_are_used(kind: str) -> None:
    """They turn queries and keys, and choose the biases. A row of padding has finite logits and gradients."""
    model, ids, marks = make(**KINDS[kind]), torch.randint(0, VOCAB, (2, 12)), pack([[5, 7], [3, 9]])
    positions = torch.stack([torch.randperm(12), torch.arange(12) * 3])
    for given in (positions, positions[1]):
        packed = model(ids, document_ids=marks, position_ids=given)
        alone = model(ids[1:, 3:], position_ids=positions[1:, 3:])
        torch.testing.assert_close(packed[1:, 3:], alone, atol=1e-12, rtol=0)
    out = model(ids, document_ids=marks, attention_mask=torch.zeros(2, 12, dtype=torch.long))
    out.sum().backward()
    assert all(x.isfinite().all() for x in (out, *gradients(model).values()))


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 3), (False, None), (False, 2)])
def test_the_varlen_kernel_is_asked_for_the_same(
    causal: bool, window: int | None, grouped: bool, monkeypatch: Any
) -> None:
    """Offsets, longest document and reach, as torch's kernel defines them, written out: the same output as with a mask.

    A release whose kernel does not know grouped queries gets keys and values repeated.
    """
    calls = []

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, *,
        window_size: tuple[int, int], enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        assert (cu_q.dtype, cu_q is cu_k, max_q, max_k, enable_gqa) == (torch.int32, True, 7, 7, grouped)
        calls.append(window_size)
        left, right = (len(q) if reach < 0 else reach for reach in window_size)
        outs = []
        for begin, end in pairwise(cu_q.tolist()):
            at = torch.arange(end - begin)
            seen = (at[None] >= at[:, None] - left) & (at[None] <= at[:, None] + right)
            parts = [x[begin:end].transpose(0, 1) for x in (q, k, v)]
            out = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=seen, enable_gqa=enable_gqa)
            outs.append(out.transpose(0, 1))
        return torch.cat(outs)

    def without_groups(
        q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, *,
        window_size: tuple[int, int],
    ) -> Tensor:  # fmt: skip
        return kernel(q, k, v, cu_q, cu_k, max_q, max_k, window_size=window_size)

    layer = rw.Attention(
        16, 4, num_key_value_heads=2, head_dim=8, rope=ROPE, causal=causal, sliding_window=window
    ).double()
    x, marks = torch.randn(2, 12, 16, dtype=torch.float64), pack([[5, 7], [3, 9]])
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 7:10] = 0
    wanted = layer(x, document_ids=marks, attention_mask=mask)
    monkeypatch.setattr(attend_module, "varlen_kernel", lambda _: kernel if grouped else without_groups)
    found, real = layer(x, document_ids=marks, attention_mask=mask), mask.bool()
    torch.testing.assert_close(found[real], wanted[real], atol=1e-12, rtol=0)
    assert len(calls) == 1


@pytest.mark.parametrize("changes", [{"encoding": "alibi"}, {"rope": ROPE, "extension": ReRoPE(window=3)}], ids=repr)
def test_the_varlen_kernel_is_left_out(changes: Any, monkeypatch: Any) -> None:
    """Where scores have a bias or positions are remapped, and on devices that it does not serve."""
    monkeypatch.setattr(attention_module, "attend_varlen", lambda *_: pytest.fail("the kernel knows no bias"))
    layer = rw.Attention(16, 4, head_dim=8, **changes).double()
    layer(torch.randn(1, 12, 16, dtype=torch.float64), document_ids=pack([[5, 7]]))
    assert varlen_kernel(torch.zeros(3, 4, 8, dtype=torch.bfloat16)) is None
    found = find_documents(lay_out(1, 3, torch.device("cpu"), document_ids=torch.zeros(1, 3, dtype=torch.long)))
    assert found is not None
    assert attend_varlen(*torch.zeros(3, 3, 4, 8, dtype=torch.float64), found, True, None) is None
