"""Model families: facts about their rotation and training that no config.json states.

The pairing of features, the handling of partial rotation and the defaults of a config depend on a model's class. The
tables list them by `model_type`, as implemented in transformers 5.24 and measured by `make parity`. `SOURCES` names the
code of models that transformers does not contain. Unknown families are never guessed. To add a family, add a row.
`trained` states the scalings and lengths of the training.
"""

# mypy: implicit-reexport
# ruff: noqa: F401
from ropewalk.families.family import Condition, Family, described, unread_keys
from ropewalk.families.table import FAMILIES, NO_ROTATION, REFUSED, SOURCES
from ropewalk.families.trained import Trained, trained_as


def family_name(model_type: str) -> str | None:
    """Return the table's name of a `model_type`: itself, or that of a composite's text part; None if unknown.

    >>> family_name("gemma3"), family_name("unheard_of")
    ('gemma3_text', None)
    """
    for name in (model_type, f"{model_type}_text"):
        if name in FAMILIES or name in REFUSED:
            return name
    return None


def family_named(model_type: object) -> Family | None:
    """Return the family of a `model_type`, found as by `family_name`; None if it is unknown or refused."""
    return FAMILIES.get(family_name(str(model_type)) or "")
