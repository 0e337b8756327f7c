"""The next-token loss: head and cross-entropy in one pass, without keeping the logits; and self-distillation's KL."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.compiled import fresh
from ropewalk.models.decoder import Decoder
from ropewalk.models.layers import HeadFunction, ResultT
from ropewalk.models.precision import to_float64
from ropewalk.training.data import Batch

CACHED = 2**19  # logits that a CPU turns into gradients at one time
CHUNK = 512  # tokens whose logits exist at one time: with 4,096 tokens in the vocabulary 8 MiB, within a cache


class _HeadCrossEntropy(torch.autograd.Function):
    """Cross-entropy per token; the gradients of its mean are formed in forward, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, token_weights: Tensor | None) -> Tensor:
        def into_gradients(logits: Tensor, head: Tensor, part: slice) -> Tensor:
            weights = None if token_weights is None else token_weights[part]
            return _into_gradients(logits, targets[part], len(hidden), weights)

        return _mean_in_chunks(ctx, hidden, weight, into_gradients)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled_gradients(ctx, grad_outputs[0]), None, None


class _HeadDivergence(torch.autograd.Function):
    """KL(student || teacher) per token, each with its head's logits; gradients for the student's alone, likewise."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, teacher: Tensor, token_weights: Tensor) -> Tensor:
        def into_gradients(logits: Tensor, head: Tensor, part: slice) -> Tensor:
            return _into_divergence(logits, teacher[part] @ head.t(), len(hidden), token_weights[part])

        return _mean_in_chunks(ctx, hidden, weight, into_gradients)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled_gradients(ctx, grad_outputs[0]), None, None


def _mean_in_chunks(
    ctx: Any, hidden: Tensor, weight: Tensor, into_gradients: Callable[[Tensor, Tensor, slice], Tensor]
) -> Tensor:
    """The mean over tokens; `ctx` keeps its gradients by hidden states and head.

    `into_gradients` gets the logits of some tokens, the head in their dtype, and which tokens they are. It returns the
    sum of their losses, and overwrites the logits by the gradient of the mean.
    """
    tokens = hidden.shape[0]
    head = weight.to(hidden.dtype)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    grad_hidden = torch.empty_like(hidden)
    # a frozen head needs no gradient, which would be as large as the head
    grad_weight = _room(weight, torch.float32, *weight.shape).zero_() if ctx.needs_input_grad[1] else None
    logits, of_chunk = _room(hidden, hidden.dtype, min(CHUNK, tokens), len(head)), None
    for start in range(0, tokens, CHUNK):
        part = slice(start, min(start + CHUNK, tokens))
        few = logits[: part.stop - start]
        torch.mm(hidden[part], head.t(), out=few)
        total += into_gradients(few, head, part)
        grad_hidden[part] = few @ head
        if grad_weight is not None:
            of_chunk = _room(head, head.dtype, *head.shape) if of_chunk is None else of_chunk
            grad_weight += torch.mm(few.t(), hidden[part], out=of_chunk)
    ctx.save_for_backward(grad_hidden, grad_weight)
    return total / tokens


def _scaled_gradients(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor | None]:
    grad_hidden, grad_weight = ctx.saved_tensors
    return grad_hidden * scale.to(grad_hidden.dtype), None if grad_weight is None else grad_weight * scale


def _into_gradients(logits: Tensor, targets: Tensor, tokens: int, token_weights: Tensor | None) -> Tensor:
    """The sum of their losses; the logits `[some, vocab]` become the gradient of the mean over `tokens`, in place.

    `token_weights`, float32 `[some]`, are factors of each token's loss; None: all are 1.
    Exponentials are float32, of so few logits at a time that a CPU's caches hold them.
    """
    total = torch.zeros((), dtype=torch.float32, device=logits.device)
    step = max(1, CACHED // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    for start in range(0, len(logits), step):
        few, target = logits[start : start + step].float(), targets[start : start + step, None]
        few -= few.amax(-1, keepdim=True)
        of_target = few.gather(1, target)
        norm = few.exp_().sum(-1, keepdim=True)
        if token_weights is None:
            total -= of_target.sum()
            total += norm.log().sum()
            few.mul_(1.0 / (tokens * norm)).scatter_add_(1, target, few.new_full(target.shape, -1.0 / tokens))
        else:
            each = token_weights[start : start + step, None]
            total += (each * (norm.log() - of_target)).sum()
            few.mul_(each / (tokens * norm)).scatter_add_(1, target, each / -tokens)
        if few.dtype != logits.dtype:
            logits[start : start + step] = few
    return total


def _into_divergence(logits: Tensor, teacher: Tensor, tokens: int, token_weights: Tensor) -> Tensor:
    """The sum of `token_weights` * KL(softmax(logits) || softmax(teacher)), nats; see `_into_gradients`."""
    total = torch.zeros((), dtype=torch.float32, device=logits.device)
    step = max(1, CACHED // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    for start in range(0, len(logits), step):
        part = slice(start, start + step)
        few, each = torch.log_softmax(logits[part].float(), -1), token_weights[part, None]
        gap = few - torch.log_softmax(teacher[part].float(), -1)
        few.exp_()
        divergence = (few * gap).sum(-1, keepdim=True)
        total += (each * divergence).sum()
        logits[part] = few.mul_(gap.sub_(divergence)).mul_(each / tokens)
    return total


def _room(beside: Tensor, dtype: torch.dtype, rows: int, columns: int) -> Tensor:
    """Memory for a result, on the CPU in huge pages: a first touch of small ones takes longer than the sums."""
    room = torch.empty(rows, columns, dtype=dtype, device=beside.device)
    return room if torch.compiler.is_compiling() or not room.is_cpu else fresh(room)


def head_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, token_weights: Tensor | None = None) -> Tensor:
    """Mean cross-entropy, nats, of `hidden @ weight.T` against `targets`; a float32 scalar.

    - `hidden`: `[tokens, hidden]`, float32 or bfloat16: the dtype of the products. Sums and exponentials are float32.
    - `weight`: `[vocab, hidden]`, float32. `targets`: int64 `[tokens]`.
    - `token_weights`: float32 `[tokens]`, a factor of each token's loss, without gradients; the sum is divided by the
      number of tokens, not by theirs.

    The logits of 512 tokens exist at a time, and are overwritten by their gradient: no second pass, no
    `[tokens, vocab]` array. It forms gradients in any case; `token_losses` is for validation. For 4,096 tokens of
    `tiny` torch 2.13's `linear_cross_entropy` takes 1.1 times as long (in chunks, float32), or 1.3 (whole, bfloat16).

    >>> head_cross_entropy(torch.zeros(5, 3), torch.zeros(7, 3), torch.arange(5)).exp().round().item()
    7.0
    """
    loss: Tensor = _HeadCrossEntropy.apply(hidden, weight, targets, token_weights)  # type: ignore[no-untyped-call]
    return loss


def head_divergence(hidden: Tensor, weight: Tensor, teacher: Tensor, token_weights: Tensor) -> Tensor:
    """Mean of `token_weights` * KL(p || q), nats, p = softmax(hidden @ weight.T), q = softmax(teacher @ weight.T).

    A float32 scalar; arguments as `head_cross_entropy`. No gradient goes through `teacher` `[tokens, hidden]`, nor
    through q to `weight`. The logits of 512 tokens of both exist at a time.

    >>> hidden, weight = torch.tensor([[1.0, 0.0]]), torch.eye(2)
    >>> round(head_divergence(hidden, weight, hidden.flip(1), torch.ones(1)).item(), 4)  # tanh(1/2)
    0.4621
    """
    loss: Tensor = _HeadDivergence.apply(hidden, weight, teacher, token_weights)  # type: ignore[no-untyped-call]
    return loss


def autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """The context in which matrix products run in `precision`."""
    if precision == "bfloat16":
        context: AbstractContextManager[None] = torch.autocast(device.type, dtype=torch.bfloat16)
        return context
    return nullcontext()


def next_token_loss(
    model: Decoder, batch: Batch, *, precision: str = "float32", token_weights: Tensor | None = None
) -> Tensor:
    """Mean loss of a batch, nats per token: a float32 scalar to call `backward` on. One call of the model.

    `token_weights`: float32 `[windows, seq]`, as for `head_cross_entropy`.

    Of a batch with `perturbed_ids` two calls, and the mean of its `distillation_weights` times KL(p' || p) is added: p'
    is the model's prediction at the perturbed positions, p the one at the batch's own, a constant. Source:
    self-distillation of Li et al. 2026, arXiv:2604.14339, sections 2.2 to 2.4 (reverse KL at temperature 1; the same
    weights give both, and the pass that has the cross-entropy is the teacher). Dropout is drawn for each call anew.
    """
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    head_fn = partial(_mean_loss, targets=batch.targets, dtype=dtype, token_weights=token_weights)
    with autocast(precision, batch.inputs.device):
        if batch.perturbed_ids is None or batch.distillation_weights is None:
            return _read(model, batch, head_fn)
        loss, teacher = _read(model, batch, partial(_with_hidden, head_fn=head_fn))
        compared = partial(_divergence, teacher=teacher, dtype=dtype, token_weights=batch.distillation_weights)
        return loss + _read(model, replace(batch, position_ids=batch.perturbed_ids), compared)


@torch.no_grad()
def token_losses(model: Decoder, batch: Batch, *, precision: str = "float32") -> Tensor:
    """Loss of each token, nats, float32 `[windows, seq]`."""
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


def _mean_loss(
    hidden: Tensor, weight: Tensor, *, targets: Tensor, dtype: torch.dtype, token_weights: Tensor | None
) -> Tensor:
    weights = None if token_weights is None else token_weights.flatten()
    with torch.autocast(hidden.device.type, enabled=False):
        return head_cross_entropy(hidden.to(dtype).flatten(0, 1), weight, targets.flatten(), weights)


def _with_hidden(hidden: Tensor, weight: Tensor, *, head_fn: HeadFunction[Tensor]) -> tuple[Tensor, Tensor]:
    return head_fn(hidden, weight), hidden.detach()


def _divergence(
    hidden: Tensor, weight: Tensor, *, teacher: Tensor, dtype: torch.dtype, token_weights: Tensor
) -> Tensor:
    student, fixed = (states.to(dtype).flatten(0, 1) for states in (hidden, teacher))
    with torch.autocast(hidden.device.type, enabled=False):
        return head_divergence(student, weight, fixed, token_weights.flatten())


def _token_losses(hidden: Tensor, weight: Tensor, *, targets: Tensor) -> Tensor:
    chunks = zip(torch.split(hidden.flatten(0, 1), CHUNK), torch.split(targets.flatten(), CHUNK), strict=True)
    parts = [F.cross_entropy((part @ weight.t()).float(), target, reduction="none") for part, target in chunks]
    return torch.cat(parts).view(targets.shape)


def _read(model: Decoder, batch: Batch, head_fn: HeadFunction[ResultT]) -> ResultT:
    """One forward of a batch; frequencies that depend on length are those of `batch.seq_len`, or of the window."""
    length = (batch.seq_len or batch.inputs.shape[1]) if model.config.needs_seq_len else None
    result: ResultT = model(
        batch.inputs,
        position_ids=batch.position_ids,
        document_ids=batch.document_ids,
        seq_len=length,
        head_fn=head_fn,
    )
    return result
