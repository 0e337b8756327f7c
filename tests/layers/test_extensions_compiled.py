"""Extensions under export and a compiler."""

from __future__ import annotations

import pytest
import torch

from tests.layers.extension_material import (
    for_compilers,
    make_layer,
)

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.traced
@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="torch 2.11 does not see min(8 n, 16 n) = 8 n")
@pytest.mark.parametrize(
    "extension",
    for_compilers(),
    ids=repr,
)
def test_one_graph_serves_every_length(extension):
    """Export with the length left open; the graph computes what the eager layer does."""
    layer = make_layer(extension, torch.float32)
    example = torch.randn(1, 12, 24)
    seq = torch.export.Dim("seq", min=2, max=64)
    exported = torch.export.export(layer, (example,), dynamic_shapes={"hidden_states": {1: seq}})
    for length in (5, 12, 40):
        x = torch.randn(1, length, 24)
        with torch.no_grad():
            torch.testing.assert_close(exported.module()(x), layer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.traced
@pytest.mark.parametrize(
    "extension",
    for_compilers(),
    ids=repr,
)
def test_a_compiler_finds_no_break(extension):
    """One graph computes what the eager layer does."""
    torch.compiler.reset()
    layer, x = make_layer(extension, torch.float32), torch.randn(2, 20, 24)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-5)
