"""From which length a model is extended, and to which."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole


@dataclass(frozen=True)
class Reach:
    """The lengths of an extension, in tokens.

    - `trained`: what the model was trained to, with the scaling that belongs to it. `target`: the length wanted.
    - `unscaled_tokens`: so many first tokens keep their angles under methods that scale frequencies (LongRoPE's n-hat,
      Ding et al. 2024, arXiv:2402.13753, section 3.2).

    Raises `RopeError` for lengths that are not whole numbers of at least 1.

    >>> Reach(8192, 32768).factor
    4.0
    """

    trained: int
    target: int
    unscaled_tokens: int = 0

    def __post_init__(self) -> None:
        for name, least in (("trained", 1), ("target", 1), ("unscaled_tokens", 0)):
            value = as_whole(getattr(self, name))
            if value is None or value < least:
                raise RopeError(
                    f"Reach: `{name}` must be a whole number of at least {least}.",
                    facts={name: getattr(self, name)},
                    cure="Lengths are in tokens.",
                )
            object.__setattr__(self, name, value)

    @property
    def factor(self) -> float:
        """target / trained."""
        return self.target / self.trained

    @property
    def extends(self) -> bool:
        """Whether the target lies beyond the trained length."""
        return self.target > self.trained
