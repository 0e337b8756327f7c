"""The next-token loss: head and cross-entropy in one pass, without an array of all logits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.dispatch import fresh
from ropewalk.models.decoder import Decoder
from ropewalk.models.layers import HeadFunction, ResultT
from ropewalk.models.precision import to_float64
from ropewalk.training.data import Batch

CACHED = 2**19  # number of logits that a CPU converts to gradients at a time
CHUNK = 512  # number of tokens with logits at the same time: 8 MiB for 4,096 tokens in the vocabulary


class _HeadCrossEntropy(torch.autograd.Function):
    """Cross-entropy per token; forward computes the gradients of its mean, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return _mean_in_chunks(ctx, hidden, weight, targets)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grad_outputs[0]
        scaled = None if grad_weight is None else grad_weight * scale
        return grad_hidden * scale.to(grad_hidden.dtype), scaled, None


def _mean_in_chunks(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over tokens; `ctx` keeps its gradients by hidden states and head."""
    tokens = hidden.shape[0]
    head = weight.to(hidden.dtype)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    grad_hidden = torch.empty_like(hidden)
    # a frozen head needs no gradient, which would be as large as the head
    grad_weight = _empty(weight, torch.float32, *weight.shape).zero_() if ctx.needs_input_grad[1] else None
    logits, of_chunk = _empty(hidden, hidden.dtype, min(CHUNK, tokens), len(head)), None
    for start in range(0, tokens, CHUNK):
        part = slice(start, min(start + CHUNK, tokens))
        few = logits[: part.stop - start]
        torch.mm(hidden[part], head.t(), out=few)
        total += _into_gradients(few, targets[part], tokens)
        grad_hidden[part] = few @ head
        if grad_weight is not None:
            of_chunk = _empty(head, head.dtype, *head.shape) if of_chunk is None else of_chunk
            grad_weight += torch.mm(few.t(), hidden[part], out=of_chunk)
    ctx.save_for_backward(grad_hidden, grad_weight)
    return total / tokens


def _into_gradients(logits: Tensor, targets: Tensor, tokens: int) -> Tensor:
    """Return the sum of the losses; overwrite the logits `[some, vocab]` by the gradient of the mean over `tokens`.

    Exponentials are float32, of a number of logits that fits into a CPU's caches.
    """
    total = torch.zeros((), dtype=torch.float32, device=logits.device)
    step = max(1, CACHED // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    for start in range(0, len(logits), step):
        few, target = logits[start : start + step].float(), targets[start : start + step, None]
        few -= few.amax(-1, keepdim=True)
        of_target = few.gather(1, target)
        norm = few.exp_().sum(-1, keepdim=True)
        total -= of_target.sum()
        total += norm.log().sum()
        few.mul_(1.0 / (tokens * norm)).scatter_add_(1, target, few.new_full(target.shape, -1.0 / tokens))
        if few.dtype != logits.dtype:
            logits[start : start + step] = few
    return total


def _empty(like: Tensor, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
    """Return an empty matrix on the device of `like`; on a CPU in huge pages, whose first use costs less."""
    matrix = torch.empty(rows, columns, dtype=dtype, device=like.device)
    return matrix if torch.compiler.is_compiling() or not matrix.is_cpu else fresh(matrix)


def head_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of `hidden @ weight.T` and `targets`: a float32 scalar.

    - `hidden`: `[tokens, hidden]`, float32 or bfloat16: the dtype of the products. Sums and exponentials are float32.
    - `weight`: `[vocab, hidden]`, float32. `targets`: int64 `[tokens]`.

    Logits are computed for 512 tokens at a time and overwritten by their gradient, so there is no second pass and no
    `[tokens, vocab]` array. Gradients are always computed; use `token_losses` for validation. For 4,096 tokens of
    `tiny`, torch 2.13's `linear_cross_entropy` takes 1.1 times as long (in chunks, float32), or 1.3 (whole, bfloat16).

    >>> head_cross_entropy(torch.zeros(5, 3), torch.zeros(7, 3), torch.arange(5)).exp().round().item()
    7.0
    """
    loss: Tensor = _HeadCrossEntropy.apply(hidden, weight, targets)  # type: ignore[no-untyped-call]
    return loss


def autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Return the context in which matrix products run in `precision`."""
    if precision == "bfloat16":
        context: AbstractContextManager[None] = torch.autocast(device.type, dtype=torch.bfloat16)
        return context
    return nullcontext()


def next_token_loss(model: Decoder, batch: Batch, *, precision: str = "float32") -> Tensor:
    """Return the mean loss of a batch in nats per token: a float32 scalar with gradients. It calls the model once."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    head_fn = partial(_mean_loss, targets=batch.targets, dtype=dtype)
    with autocast(precision, batch.inputs.device):
        return _read(model, batch, head_fn)


@torch.no_grad()
def token_losses(model: Decoder, batch: Batch, *, precision: str = "float32") -> Tensor:
    """Return the loss of each token in nats, float32 `[windows, seq]`."""
    with autocast(precision, batch.inputs.device):
        return _read(model, batch, partial(_token_losses, targets=batch.targets))


def loss_by_position(
    model: Decoder, batches: list[Batch], *, blocks: int = 4, precision: str = "float32"
) -> list[tuple[int, int, float]]:
    """Return the mean loss by position: (start, end, nats) for each of at most `blocks` equal blocks, dropout off."""
    was_training = model.training
    model.eval()
    try:
        sums = [to_float64(token_losses(model, batch, precision=precision)).sum(0) for batch in batches]
    finally:
        model.train(was_training)
    mean = torch.stack(sums).sum(0) / sum(len(batch.inputs) for batch in batches)
    count = min(blocks, len(mean))
    edges = [round(i * len(mean) / count) for i in range(count + 1)]
    return [(a, b, float(mean[a:b].mean())) for a, b in pairwise(edges)]


def _mean_loss(hidden: Tensor, weight: Tensor, *, targets: Tensor, dtype: torch.dtype) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        return head_cross_entropy(hidden.to(dtype).flatten(0, 1), weight, targets.flatten())


def _token_losses(hidden: Tensor, weight: Tensor, *, targets: Tensor) -> Tensor:
    chunks = zip(torch.split(hidden.flatten(0, 1), CHUNK), torch.split(targets.flatten(), CHUNK), strict=True)
    parts = [F.cross_entropy((part @ weight.t()).float(), target, reduction="none") for part, target in chunks]
    return torch.cat(parts).view(targets.shape)


def _read(model: Decoder, batch: Batch, head_fn: HeadFunction[ResultT]) -> ResultT:
    """Run the model on a batch; frequencies that depend on length use `batch.seq_len`, or else the window's length."""
    length = (batch.seq_len or batch.inputs.shape[1]) if model.config.needs_seq_len else None
    result: ResultT = model(
        batch.inputs,
        position_ids=batch.position_ids,
        document_ids=batch.document_ids,
        seq_len=length,
        head_fn=head_fn,
    )
    return result
