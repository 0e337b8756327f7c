"""The progress of a language model's run: a bar, and a line for each entry of its log."""

from __future__ import annotations

from ropewalk.progress import ProgressBar
from ropewalk.training import Event


class TrainingProgress:
    """Display the events of a language model's run in an open bar; lines begin with `name`."""

    def __init__(self, name: str, bar: ProgressBar) -> None:
        self.name, self.bar = name, bar

    def __call__(self, event: Event) -> None:
        """Show one event."""
        facts = event.facts
        if event.kind == "start":
            self._start(event)
        elif event.kind == "step":
            self.bar.advance_to(event.step)
        elif event.kind == "log":
            self._log(event)
        elif event.kind == "done":
            self.bar.line(f"{self.name}: {'finished before' if facts['already'] else 'wrote'} {facts['out']}")

    def _start(self, event: Event) -> None:
        facts = event.facts
        self.bar.line(
            f"{self.name} {'continues after step ' + str(event.step) if event.step else 'begins'}: "
            f"{facts['parameters']:,} parameters, a vocabulary of {facts['vocab_size']:,}, "
            f"{facts['train_tokens']:,} tokens of text, {event.steps:,} steps, "
            f"{facts['precision']} on {facts['device']}, {facts['threads']} thread{'s' if facts['threads'] > 1 else ''}"
        )
        if facts["began_with_threads"] != facts["threads"]:
            self.bar.line(
                f"{self.name}: the run began with {facts['began_with_threads']} threads. With a different number, the "
                "result is not bitwise the same. To keep it, set OMP_NUM_THREADS to this number."
            )
        self.bar.begin("training", event.steps)
        self.bar.advance_to(event.step)

    def _log(self, event: Event) -> None:
        facts = event.facts
        speed = f"{facts['tokens_per_second']:,.0f} tokens/s"
        self.bar.note(f"loss {facts['loss']:.3f}  {speed}")
        if "validation_loss" not in facts and self.bar.console.is_terminal:
            return
        line = f"step {event.step:>6}  loss {facts['loss']:.4f}  lr {facts['lr']:.2e}  {speed}"
        if "validation_loss" in facts:
            blocks = "  ".join(f"{a}-{b}: {nats:.3f}" for a, b, nats in facts["validation_by_position"])
            line += f"  validation {facts['validation_loss']:.4f}  ({blocks})"
        self.bar.line(line)
