"""LongCE: a token's loss counts for more where the model needs a long context to predict it."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.models.decoder import Decoder
from ropewalk.training.data import Batch
from ropewalk.training.objective import token_losses

MOST = 5.0  # the largest weight
PARTS = 4  # the short context has a quarter of a window's tokens at least


@torch.no_grad()
def longce_weights(model: Decoder, batch: Batch, *, precision: str = "float32") -> Tensor:
    """The weights of LongCE: min(exp(loss with a short context - loss with all of it), 5), float32 `[windows, seq]`.

    The short context is cut from the window: a token is read with the last s to 2s - 1 tokens before it, where s is a
    quarter of the window, at the positions that they have there. Tokens that have no more before them weigh 1. Two
    further forward passes of about a window's tokens each, without gradients and dropout. Source: Fang et al. 2024,
    arXiv:2410.23771, section 4, with its bound of 5; there the short context has 4,096 tokens of 32,768.
    """
    window = batch.inputs.shape[1]
    short = max(1, window // PARTS)
    weights = torch.ones(batch.inputs.shape, dtype=torch.float32, device=batch.inputs.device)
    was_training = model.training
    model.eval()
    try:
        whole = token_losses(model, batch, precision=precision)
        for first in range(2 * short, window, short):
            end = min(first + short, window)
            begin = end - 2 * short
            cut = token_losses(model, _columns(batch, begin, end), precision=precision)
            weights[:, first:end] = (cut[:, first - begin :] - whole[:, first:end]).exp().clamp(max=MOST)
    finally:
        model.train(was_training)
    return weights


def _columns(batch: Batch, begin: int, end: int) -> Batch:
    """Tokens `begin` to `end` of each window, at the same positions and frequencies."""

    def cut(values: Tensor) -> Tensor:
        return values[:, begin:end]

    documents, positions = batch.document_ids, batch.position_ids
    return Batch(
        cut(batch.inputs),
        cut(batch.targets),
        None if documents is None else cut(documents),
        None if positions is None else cut(positions),
        batch.seq_len or batch.inputs.shape[1],
    )
