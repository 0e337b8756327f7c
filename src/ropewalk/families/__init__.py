"""Model families: facts about their rotation, training and decoder that no config.json states.

The pairing of features, the handling of partial rotation and the defaults of a config depend on a model's class. The
tables list them by `model_type`, as implemented in transformers 5.23 and measured by `make parity`. `SOURCES` names the
code of models that transformers does not contain. Unknown families are never guessed. To add a family, add a row; the
row has a `decoder` if our decoder can express the family. `trained` states the scalings and lengths of the training,
`unread` the keys that `from_hf` does not use.
"""

from ropewalk.families.family import Condition, DecoderShape, Family
from ropewalk.families.refused import NO_ROTATION, REFUSED
from ropewalk.families.sources import SOURCES
from ropewalk.families.table import FAMILIES
from ropewalk.families.trained import Trained, trained_as
from ropewalk.families.unread import described, unread_keys

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
    "described",
    "family_name",
    "trained_as",
    "unread_keys",
]

DECODERS: dict[str, DecoderShape] = {name: row.decoder for name, row in FAMILIES.items() if row.decoder is not None}
"""The families supported by our decoder, in the order in which an export tries them."""


def family_name(model_type: str) -> str | None:
    """Return the table's name of a `model_type`: itself, or that of a composite's text part; None if unknown.

    >>> family_name("gemma3"), family_name("unheard_of")
    ('gemma3_text', None)
    """
    for name in (model_type, f"{model_type}_text"):
        if name in FAMILIES or name in REFUSED:
            return name
    return None
