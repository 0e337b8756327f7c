"""How long work reports its progress, and where it is shown."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """What long work calls while it runs: never from two threads at the same time."""

    def begin(self, description: str, tokens: int) -> None:
        """A piece of work begins, for which so many tokens will go through the model."""

    def advance(self, tokens: int) -> None:
        """So many more tokens have gone through the model."""


@runtime_checkable
class Display(Progress, Protocol):
    """A progress that is looked at: it also takes the size of a stage, and lines of text."""

    def expect(self, tokens: int) -> None:
        """A stage of several pieces begins, of so many tokens in all."""

    def line(self, text: str) -> None:
        """A line that stays."""


class SilentProgress:
    """Shows nothing."""

    def begin(self, description: str, tokens: int) -> None:
        """Nothing."""

    def advance(self, tokens: int) -> None:
        """Nothing."""
