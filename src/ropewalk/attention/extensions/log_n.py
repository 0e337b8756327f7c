"""Log-n scaling: logits grow with the logarithm of the length. Su 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ropewalk.attention.extensions.base import Extension, check_tokens, log_n_factor


@dataclass(frozen=True)
class LogN(Extension):
    """Logits times max(1, ln(m + 1) / ln(trained_length)) for a query at index m; relative positions stay.

    `trained_length` in tokens, at least 2. An encoding that adds to scores (ALiBi, T5's, ...) refuses it: it is defined
    for q.k. Source: Su 2021; Chiang and Cholak 2022, arXiv:2202.12172.

    >>> import torch
    >>> LogN(trained_length=1024).logit_scale(torch.tensor([0, 1023, 2**20 - 1])).tolist()
    [1.0, 1.0, 2.0]
    """

    trained_length: int
    remaps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_tokens("LogN", 2, trained_length=self.trained_length)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return log_n_factor(index, self.trained_length)
