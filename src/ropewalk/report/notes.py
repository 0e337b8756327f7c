"""What each method changes, what it costs per token, whether a config can hold it, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass

AS_PLAIN = "nothing: the tables hold other angles"
TWO_PASSES = "two passes, over near and far keys; cached keys are turned anew for each token"
AT_RUN_TIME = "no: it acts in attention, at run time"


@dataclass(frozen=True)
class Note:
    """One method in words; `exports` begins with yes or no, `paper` is an arXiv number or empty."""

    changes: str
    costs: str
    exports: str
    paper: str = ""


NOTES = {
    "plain": Note("Nothing: the model as it was trained, any scaling removed.", "nothing", "yes (default)"),
    "as-is": Note("Nothing: the scaling that the checkpoint carries.", "nothing", "yes, as it is"),
    "pi": Note("Divides every frequency by the factor.", AS_PLAIN, "yes (linear)", "2306.15595"),
    "ntk": Note(
        "Raises theta: slow pairs are slowed by the factor, fast ones hardly.", AS_PLAIN, "yes (a larger rope_theta)"
    ),
    "dynamic": Note(
        "As ntk, by the length at hand: short texts stay as they are.",
        "cached keys are computed anew when the length grows",
        "yes (dynamic)",
    ),
    "yarn": Note(
        "Divides slow pairs by the factor, leaves fast ones, blends between; sharpens the logits a little.",
        AS_PLAIN,
        "yes (yarn)",
        "2309.00071",
    ),
    "llama3": Note(
        "Divides slow pairs by the factor, leaves fast ones, blends between.", AS_PLAIN, "yes (llama3)", "2407.21783"
    ),
    "abf": Note(
        "Raises theta until the sum of cos(m theta) stays positive up to the target.",
        AS_PLAIN,
        "yes (a larger rope_theta)",
        "2309.16039",
    ),
    "resonance": Note(
        "As yarn, with the wavelengths of fast pairs rounded to whole tokens.",
        AS_PLAIN,
        "yes (its factors, as longrope)",
        "2403.00071",
    ),
    "p-rope": Note(
        "Stops the slowest pairs: they carry no position any more. Wants tuning.",
        AS_PLAIN,
        "yes (proportional)",
        "2410.06205",
    ),
    "longrope": Note("Divides each pair by a factor of its own.", AS_PLAIN, "yes (longrope)", "2402.13753"),
    "crop": Note(
        "Nothing: reads windows of the trained length, and forgets what is older.",
        "each window is read again from its beginning",
        "no: whoever runs the model cuts the text",
    ),
    "rerope": Note(
        "Distances beyond a window all count as the window; sharpens logits as the text grows.",
        TWO_PASSES,
        AT_RUN_TIME,
    ),
    "self-extend": Note(
        "Near tokens as they are, farther ones by positions in groups.",
        TWO_PASSES,
        AT_RUN_TIME,
        "2401.01325",
    ),
    "dca": Note(
        "Dual chunk attention: positions count anew in each chunk.",
        "three passes over parts of the keys; cached keys are turned anew for each token",
        AT_RUN_TIME,
        "2402.17463",
    ),
    "streaming": Note(
        "Sees the first few tokens and the latest: keeps a stream going, does not extend.",
        "less than plain: a bounded number of keys, turned anew for each token",
        AT_RUN_TIME,
        "2309.17453",
    ),
    "log-n": Note("Logits grow with the logarithm of the position.", "one multiplication per query", AT_RUN_TIME),
    "drope": Note(
        "Takes the rotation out, after tuning without it.",
        "less than plain: nothing is rotated",
        "no: it needs weights tuned without rotation",
        "2512.12167",
    ),
}


def note_of(name: str) -> Note | None:
    """A method's note; None for one that has none here."""
    return NOTES.get(name)


def exportable(name: str) -> bool:
    """Whether a config can hold the method; one that is not described is taken at its record's word.

    >>> exportable("yarn"), exportable("rerope")
    (True, False)
    """
    note = note_of(name)
    return note is None or note.exports.startswith("yes")
