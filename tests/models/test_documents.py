"""Packed documents through torch's varlen kernel; test_each_way.py has what they are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.attention import attend as attend_module
from ropewalk.attention.attend import attend_varlen, varlen_kernel
from ropewalk.attention.masks import find_documents, lay_out
from ropewalk.models import attention as attention_module
from ropewalk.rope.extensions import ReRoPE
from tests.models.forms import ROPE, pack


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
