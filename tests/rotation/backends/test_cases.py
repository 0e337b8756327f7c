"""The benchmarks' cases, on every backend and instruction set, in every form, forward and backward."""

from __future__ import annotations

import random

import pytest

from tests.rotation.backends.cases import CASES, DTYPES
from tests.rotation.backends.checks import FORMS, check_case


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cases(dtype, form, place):
    """Every case of this dtype: numbers within half a unit and 2e-7 of the pair, all else as it was to the last bit."""
    cases = [case for case in CASES if case.dtype == dtype]
    assert {case.interleaved for case in cases} == {False, True}
    if place.interpreted:  # a tenth in each form, another one each time: half of all
        cases = random.Random(str(dtype)).sample(cases, len(cases))[list(FORMS).index(form) :: 2 * len(FORMS)]
    for case in cases:
        check_case(case, form, place)
