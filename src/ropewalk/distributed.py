"""Former place of `rw.positions.positions_for_rank` and `ropewalk.processes.joined`; the next release removes it."""

import warnings

from ropewalk.positions import LAYOUTS as LAYOUTS
from ropewalk.positions import positions_for_rank as positions_for_rank
from ropewalk.processes import Launch as Launch
from ropewalk.processes import joined as joined

warnings.warn(
    "ropewalk.distributed is deprecated and will be removed in the next release: use "
    "ropewalk.positions.positions_for_rank and ropewalk.processes.joined.",
    DeprecationWarning,
    stacklevel=2,
)
