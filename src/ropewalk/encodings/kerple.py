"""KERPLE, the logarithmic kernel: Chi et al. 2022, arXiv:2205.09921, section 4.3: -r1 log(1 + r2 |distance|)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.encodings.encoding import DistanceBias, Encoding, EncodingConfig, Sizes


@dataclass(frozen=True)
class KERPLE(EncodingConfig):
    """r1 and r2 above 0 are learned for each head and layer, as exponentials of their parameters.

    They begin as the authors' do: uniform in (0, 2) and (0, 1).

    >>> KERPLE().build(Sizes(8, 2, 4)).of_distance(torch.arange(5)).shape
    torch.Size([2, 5])
    """

    name: ClassVar[str] = "kerple"
    shared: ClassVar[bool] = False

    def build(self, sizes: Sizes) -> Encoding:
        return _Logarithmic(self, sizes)


class _Logarithmic(DistanceBias):
    def __init__(self, config: KERPLE, sizes: Sizes) -> None:
        super().__init__(config)
        self.log_r1 = nn.Parameter(torch.empty(sizes.num_attention_heads))
        self.log_r2 = nn.Parameter(torch.empty(sizes.num_attention_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.log_r1.uniform_(0.01, 2.0).log_()
            self.log_r2.uniform_(0.01, 1.0).log_()

    def of_distance(self, distance: Tensor) -> Tensor:
        exact = torch.promote_types(self.log_r1.dtype, torch.float32)
        r1, r2 = self.log_r1.to(exact).exp()[:, None], self.log_r2.to(exact).exp()[:, None]
        return -r1 * torch.log1p(r2 * distance.abs())
