"""The decoder under torch.compile and torch.export."""

from __future__ import annotations

import pytest
import torch

from ropewalk.rope.scaling import DynamicNTK, YaRN
from tests.layers.small_decoders import TRAINED, close, ids, make, rope


@pytest.mark.traced
def test_compiles_without_a_break() -> None:
    """One graph without breaks, right for plain calls, and for padded rows of packed documents."""
    model, tokens = make((rope(YaRN(4.0, TRAINED)), None), sliding_window=(None, 4), num_hidden_layers=2), ids(2, 12)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :3] = 0
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        documents = torch.tensor([[0] * 5 + [1] * 7] * 2)
        for arguments in ({}, {"attention_mask": mask, "document_ids": documents}):
            real = arguments.get("attention_mask", torch.ones_like(mask)).bool()  # padding may hold anything
            close(compiled(tokens, **arguments)[real], model(tokens, **arguments)[real])


@pytest.mark.traced
def test_compiled_lengths_share_a_graph() -> None:
    """Changing lengths compile twice at most (static, then dynamic), stay right and send gradients back."""
    from torch._dynamo.testing import CompileCounter

    model, counter = make(rope(DynamicNTK(2.0)), num_hidden_layers=1), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for length in (12, 20, 33, 40):
        tokens = ids(2, length)
        out = compiled(tokens, seq_len=64)
        close(out, model(tokens, seq_len=64))
        out.sum().backward()
    assert counter.frame_count <= 2


@pytest.mark.traced
def test_exported() -> None:
    """torch.export keeps the model whole, and eager use goes on."""
    model, tokens = make(rope(YaRN(4.0, TRAINED)), sliding_window=(None, 4), num_hidden_layers=2), ids(2, 12)
    exported = torch.export.export(model, (tokens,)).module()
    close(exported(tokens), model(tokens))
