"""Model families: what a class rotates, what its checkpoints were trained with, and what shape its decoder has.

No config.json states these. Which two features form a pair, whether a partial rotation is honoured, and which values
stand where a config is silent are decided by a model's class. The tables name them by `model_type`, as read from
transformers 5.23 and measured there by `make parity`; for models whose code lies beside their weights,
`SOURCES` says where it was read. A family that is not here is not guessed. Adding one is one row; where our decoder can
express it, the row says so. `trained` says which scalings the weights know, and to which length.
"""

from ropewalk.families.family import Condition, DecoderShape, Family
from ropewalk.families.table import FAMILIES, NO_ROTATION, REFUSED, SOURCES
from ropewalk.families.trained import Trained, trained_as

__all__ = [
    "DECODERS",
    "FAMILIES",
    "NO_ROTATION",
    "REFUSED",
    "SOURCES",
    "Condition",
    "DecoderShape",
    "Family",
    "Trained",
    "family_name",
    "trained_as",
]

DECODERS: dict[str, DecoderShape] = {name: row.decoder for name, row in FAMILIES.items() if row.decoder is not None}
"""The families that our decoder can express, in the order in which they are tried when one is written."""


def family_name(model_type: str) -> str | None:
    """The table's name of a `model_type`: itself, or a composite config's text part; None where it is unknown.

    >>> family_name("gemma3"), family_name("unheard_of")
    ('gemma3_text', None)
    """
    for name in (model_type, f"{model_type}_text"):
        if name in FAMILIES or name in REFUSED:
            return name
    return None
