"""NoPE: no position at all. A causal mask alone still lets a decoder tell order; a bidirectional one cannot.

Kazemnejad et al. 2023, arXiv:2305.19466.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ropewalk.encodings.encoding import Encoding, EncodingConfig, Sizes


@dataclass(frozen=True)
class NoPE(EncodingConfig):
    """Nothing is added and nothing turns.

    >>> NoPE().build(Sizes(8, 2, 4))
    Encoding(NoPE())
    """

    name: ClassVar[str] = "none"

    def build(self, sizes: Sizes) -> Encoding:
        return Encoding(self)
