"""The verdict claims no more than the numbers show."""

from __future__ import annotations

import pytest

from ropewalk.report.verdict import verdict
from tests.report.records import record

CROP = (3.0, 3.3)


@pytest.mark.parametrize(
    ("losses", "windows", "said"),
    [
        (
            {"yarn": (3.0, 3.1), "crop": CROP},
            1,
            "use yarn: beyond the trained length the loss falls from 6.000 to 3.100",
        ),
        ({"yarn": (3.0, 3.1), "crop": CROP}, 1, "that is lower than the 3.300 of crop"),
        ({"yarn": (3.0, 3.1), "crop": CROP}, 3, "that is lower than the 3.451 of crop"),
        ({"yarn": (3.0, 3.4), "crop": CROP}, 1, "that is no lower than the 3.300 of crop"),
        ({"llama3": (3.0, 3.27), "crop": CROP}, 3, "that is not shown to be lower than"),
        ({"yarn": (3.0, 3.2), "pi": (3.5, 3.1), "crop": CROP}, 1, "use yarn: "),
        ({"yarn": (3.0, 3.2), "pi": (3.5, 3.1), "crop": CROP}, 1, "that is on average lower than the 3.300 of crop"),
        ({"yarn": (3.0, 3.2)}, 1, "crop was not measured beside it"),
        ({"yarn": (3.5, 3.2), "crop": CROP}, 1, "leave it as it is"),
        ({"streaming": (3.0, 3.2)}, 1, "leave it as it is"),
        ({"as-is": (3.0, 3.2)}, 1, "keep its own scaling"),
        ({"yarn": (3.0, 5.99)}, 3, "(not shown to be a real difference)"),
    ],
)
def test_what_it_says(losses, windows, said):
    """Who is recommended, by how much, and how it stands against crop."""
    found = verdict(record({"plain": (3.0, 6.0), **losses}, windows=windows))
    assert said in found
    assert found.startswith("To read 64 tokens, 4 times the 16 that this model was trained on, ")
    assert found.endswith(".")
    assert ". " not in found


def test_nothing_recommended_beyond():
    """A document may recommend nothing though it extends."""
    found = record()
    found["recommended"] = None
    assert verdict(found) == "Nothing is recommended to read 64 tokens, 4 times the 16 that it was trained on."
