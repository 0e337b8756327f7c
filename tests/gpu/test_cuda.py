"""What only a GPU can show: packed documents, losses and gradients.

Skipped where there is no GPU; the rotation kernels' own tests take the GPU by themselves where there is one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints.opening import reader_of
from tests.diagnosis.models import tiny_decoder
from tests.models.forms import ROPE, pack

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
VOCAB = 50


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """Kernels of the GPU that are not deterministic may run; float32 products in float32."""
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(True)


def make(**changes: Any) -> rw.Decoder:
    """Two layers, four heads on two key heads, on the GPU, with weights that matter."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "initializer_range": 0.1}
    rope = rw.RopeConfig(16, interleaved=False, max_position_embeddings=64)
    return tiny_decoder(**{"rope": rope, **sizes, **changes}).cuda()


@pytest.mark.parametrize("window", [None, 5])
def test_packed_documents(window: int | None) -> None:
    """bf16 logits and gradients of packed documents: as close to float64, document by document, as twice bf16's own."""
    exact = make(sliding_window=window).double()
    model = copy.deepcopy(exact).bfloat16()
    rows = [[50, 1, 9, 80], [11, 66, 3, 60]]
    ids, marks = torch.randint(0, VOCAB, (2, 140), device="cuda"), pack(rows).cuda()
    weights = torch.randn(2, 140, VOCAB, dtype=torch.float64, device="cuda")
    packed = model(ids, document_ids=marks)
    (packed.double() * weights).sum().backward()
    worst = 0.0
    for row, lengths in enumerate(rows):
        for begin, end in pairwise(accumulate(lengths, initial=0)):
            part = ids[None, row, begin:end]
            right, alone = exact(part)[0], model(part)[0]
            (right * weights[row, begin:end]).sum().backward()
            rounding = float((alone.double() - right).abs().max())
            worst = max(worst, float((packed[row, begin:end].double() - right).abs().max()) / rounding)
    assert worst <= 2.5, worst
    for (name, parameter), (_, reference) in zip(model.named_parameters(), exact.named_parameters(), strict=True):
        assert parameter.grad is not None
        assert reference.grad is not None
        error = (parameter.grad.double() - reference.grad).norm() / reference.grad.norm()
        assert error < 0.03, (name, float(error))


@pytest.mark.parametrize("method", ["plain", "yarn", "self-extend", "dca"])
def test_losses_are_those_of_the_processor(method: str) -> None:
    """Each token's loss of the built-in model under a method, far past its trained length, as on the CPU."""
    from ropewalk.methods import METHODS, Reach

    model = rw.load("tiny").float()
    ids = torch.tensor(model.tokenizer.encode("Call me Ishmael. Some years ago, never mind how long. " * 60))[:700]

    def losses(model: rw.Decoder) -> np.ndarray[Any, Any]:
        reader = reader_of(model)
        under = reader.under(METHODS[method].positions(reader.positions, Reach(256, 700, 0)))
        return under.window_losses(ids)

    right = losses(model)
    np.testing.assert_allclose(losses(copy.deepcopy(model).cuda()), right, rtol=0, atol=2e-3)


def test_a_training_step_is_that_of_the_processor() -> None:
    """Loss and gradients of one batch with packed documents in float32."""
    model, ids = make(rope=ROPE, head_dim=8), torch.randint(0, VOCAB, (2, 40))
    marks = pack([[10, 30], [25, 15]])
    found = {}
    for device in ("cpu", "cuda"):
        at = copy.deepcopy(model).to(device)
        loss = torch.nn.functional.cross_entropy(
            at(ids.to(device), document_ids=marks.to(device)).flatten(0, 1), ids.roll(-1, 1).flatten().to(device)
        )
        loss.backward()
        found[device] = [loss.detach().cpu(), *(p.grad.cpu() for p in at.parameters() if p.grad is not None)]
    assert len(found["cpu"]) == len(found["cuda"])
    for right, here in zip(found["cpu"], found["cuda"], strict=True):
        torch.testing.assert_close(here, right, atol=1e-5, rtol=1e-4)
