"""Draw figures of a config, a text or a model: `NAME` returns a matplotlib figure, `NAME_numbers` what it shows.

The lesson explains each figure. It needs the extra `figures`; the numbers do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.imports import lazy_names

if TYPE_CHECKING:
    from ropewalk.figures.pairs import unseen as unseen
    from ropewalk.figures.pairs import unseen_numbers as unseen_numbers
    from ropewalk.figures.scores import decay as decay
    from ropewalk.figures.scores import decay_numbers as decay_numbers
    from ropewalk.figures.scores import maps as maps
    from ropewalk.figures.scores import maps_numbers as maps_numbers

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
