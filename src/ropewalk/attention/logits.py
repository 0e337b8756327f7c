"""What an attention does to its logits beside the scale: a softcap, and a sink in each head's softmax."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LogitRules(NamedTuple):
    """Logits become softcap tanh(logit / softcap), before masks and biases; a sink takes weight and gives nothing.

    - `softcap`: 0: none. Source: Gemma 2, arXiv:2408.00118, section 2.
    - `sinks`: `[heads]`, one more logit in each head's softmax. Source: gpt-oss, arXiv:2508.10925, section 2.2.

    >>> LogitRules(sinks=torch.zeros(1)).softmax(torch.zeros(1, 1, 1, 3)).flatten().tolist()
    [0.25, 0.25, 0.25]
    """

    softcap: float = 0.0
    sinks: Tensor | None = None

    @property
    def none(self) -> bool:
        """Whether logits stay as they are."""
        return self.softcap == 0.0 and self.sinks is None

    def capped(self, logits: Tensor) -> Tensor:
        """Logits under the softcap."""
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits

    def softmax(self, scores: Tensor) -> Tensor:
        """Weights of masked scores `[batch, heads, seq, keys]`, beside the sinks' weight, which is left out."""
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


NO_RULES = LogitRules()
