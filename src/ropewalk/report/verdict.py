"""The verdict in one sentence, from the document's numbers."""

from __future__ import annotations

from typing import Any

from ropewalk.report.record import Document, method_of

FORGETTING = "crop, which only forgets the oldest tokens"


def verdict(document: Document) -> str:
    """Which method to take, how far it was measured, and how it stands against crop; lengths in tokens, losses in nats.

    "Lower" is said of means over windows; a difference whose 95 % interval holds zero is called not shown.
    """
    trained, target, name = document["trained_length"], document["target"], document["recommended"]
    chosen = method_of(document, name)
    if target <= trained:
        return (
            f"Nothing has to be extended: {target:,} tokens lie within the {trained:,} that this model was trained on."
        )
    if chosen is None:
        return f"Nothing is recommended to read {target:,} tokens, {_times(target, trained)} that it was trained on."
    plain = method_of(document, "plain") or chosen
    against = _against_crop(document, chosen)
    length = f"To read {target:,} tokens, {_times(target, trained)} that this model was trained on, "
    if name == "plain":
        return (
            f"{length}leave it as it is: no method measured here lowers its loss of {chosen['loss_beyond']:.3f} nats "
            f"per token beyond the trained length at a small enough cost within it; {against}."
        )
    how = "keep its own scaling" if name == "as-is" else f"use {name}"
    interval = chosen["difference_beyond_ci"]
    sure = " on the one window measured" if interval is None else ""
    sure = sure if interval is None or interval[1] < 0 else " (not shown to be a real difference)"
    return (
        f"{length}{how}: beyond the trained length the loss falls from {plain['loss_beyond']:.3f} to "
        f"{chosen['loss_beyond']:.3f} nats per token{sure}; {against}."
    )


def _times(target: int, trained: int) -> str:
    """The target as a multiple of the trained length.

    >>> _times(16384, 8192), _times(1000, 300)
    ('2 times the 8,192', '3.33 times the 300')
    """
    return f"{target / trained:.3g} times the {trained:,}"


def _against_crop(document: Document, chosen: dict[str, Any]) -> str:
    """The chosen method's loss beyond the trained length beside crop's."""
    crop, answer = method_of(document, "crop"), document["recommendation"]
    if crop is None:
        return "crop was not measured beside it"
    loss = f"{crop['loss_beyond']:.3f}"
    over = chosen["loss_beyond"] - crop["loss_beyond"]
    if over >= 0:
        return f"that is no lower than the {loss} of {FORGETTING}"
    paired = answer["best_name"] == chosen["name"]  # the paired interval is that of the lowest method
    if paired and not answer["beats_crop"]:
        return f"that is not shown to be lower than the {loss} of {FORGETTING}"
    return f"that is {'lower than' if paired else 'on average lower than'} the {loss} of {FORGETTING}"
