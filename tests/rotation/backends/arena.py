"""Tensors that lie in a larger memory, in any way that strides allow, with guard bytes around and between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GUARD = 64  # elements before the first and after the last: more than any vector and any head of the tests


class Arena:
    """Memory full of 0xFF (NaN in every float dtype) and one tensor `x` in it, whose strides may leave gaps.

    - `order`: the dimensions but the last, innermost first; contiguous order if None.
    - `gaps`: elements left free between the entries of each of those dimensions; `step`: the stride of the last.
    - `offset`: elements by which it misses the alignment of the memory.
    - `expanded`: dimensions whose entries all lie in one place.
    """

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, device: str = "cpu", *, order: Sequence[int] | None = None,
        gaps: Sequence[int] = (0, 0, 0), step: int = 1, offset: int = 1, expanded: Sequence[int] = (),
    ) -> None:  # fmt: skip
        strides, reach = [0] * (len(shape) - 1) + [step], step * (shape[-1] - 1) + 1
        for dim in reversed(range(len(shape) - 1)) if order is None else order:
            if dim in expanded:
                continue
            strides[dim] = reach + gaps[dim]
            reach += strides[dim] * (shape[dim] - 1)
        size = (2 * GUARD + offset + reach) * dtype.itemsize
        self.memory = torch.full((size,), 0xFF, dtype=torch.uint8, device=device)
        self._place = (tuple(shape), tuple(strides), GUARD + offset)
        self.x: Tensor = self.memory.view(dtype).as_strided(*self._place)

    def holding(self, values: Tensor) -> Arena:
        """The same, with `x` filled; where it is expanded by the first entry of each such dimension."""
        here = tuple(slice(1) if stride == 0 else slice(None) for stride in self.x.stride())
        self.x[here].copy_(values[here])
        self.before = self.memory.clone()
        return self

    def around_is_untouched(self) -> bool:
        """Whether every byte that is not one of `x` is still 0xFF."""
        outside = torch.ones(self.memory.numel() // self.x.element_size(), dtype=torch.bool, device=self.memory.device)
        outside.as_strided(*self._place).fill_(False)
        return bool((self.memory.view(outside.numel(), -1)[outside] == 0xFF).all())

    def is_untouched(self) -> bool:
        """Whether every byte is as it was, `x` included."""
        return torch.equal(self.memory, self.before)
