"""Jet-Long: near tokens exactly, all others in groups, without a shift between. arXiv:2604.13010."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.attention.extensions.base import Extension, Region, check_tokens, near_and_far


@dataclass(frozen=True)
class JetLong(Extension):
    """Keys nearer than `window` tokens at their distance; farther ones at floor(m / group) - floor(n / group).

    Self-Extend without the shift that joins its two parts. The released code takes group = ceil(length / trained
    length) from the length at hand, so that keys read in a prefill and in decoding may be grouped differently; here the
    group is fixed, and decoding equals the full forward.
    Source: "Jet-Long: efficient long-context extension with dynamic bifocal RoPE" 2026, arXiv:2604.13010;
    github.com/jet-ai-projects/Jet-Long.
    """

    group: int
    window: int

    def __post_init__(self) -> None:
        check_tokens("JetLong", 1, group=self.group, window=self.window)

    def regions(self) -> tuple[Region, ...]:
        group = self.group
        near, far = near_and_far(self.window)
        return near, far._replace(query=lambda m: m // group, key=lambda n: n // group)
