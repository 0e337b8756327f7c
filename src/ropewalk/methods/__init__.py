"""The extension methods: their table, the ropes of a model under them, and the choice of methods for a run."""

# mypy: implicit-reexport
# ruff: noqa: F401

from ropewalk.methods.ropes import (
    Reach,
    is_unsettled,
    longrope_block,
    main_rope,
    required_trained_length,
    settled,
    settled_by_length,
    trained_length_of,
    unsettled,
    why_no_effect,
    with_mscales,
)
from ropewalk.methods.table import METHODS, Look, Method, chosen_methods, default_methods, method_named, named_methods
