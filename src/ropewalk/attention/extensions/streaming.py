"""StreamingLLM: the first tokens and a window. Xiao et al. 2023, arXiv:2309.17453."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.attention.extensions.base import Extension, Region, Retained, check_tokens, near_and_far, same_index


@dataclass(frozen=True)
class StreamingLLM(Extension):
    """The first `sinks` tokens and the last `window`: keeps a stream going in bounded memory; does not extend context.

    Positions are those in the cache: a query meets the window's keys at m - n, and a sink n at
    min(m, sinks + window - 1) - n. What lies between is not seen, and `KVCache.drop` may forget it.
    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.2.
    """

    window: int
    sinks: int = 4

    def __post_init__(self) -> None:
        check_tokens("StreamingLLM", 1, window=self.window)
        check_tokens("StreamingLLM", 0, sinks=self.sinks)

    @property
    def retained(self) -> Retained:
        """The sinks and the window."""
        return Retained(self.sinks, self.window)

    def regions(self) -> tuple[Region, ...]:
        sinks, last = self.sinks, self.sinks + self.window - 1
        near, far = near_and_far(self.window)
        if not sinks:
            return (near,)
        return near, far._replace(
            query=lambda m: m.clamp(max=last), key=same_index, high=lambda m: far.high(m).clamp(max=sinks)
        )
