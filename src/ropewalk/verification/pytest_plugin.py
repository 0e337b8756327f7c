"""A pytest plug-in: the fixture `golden_verification` checks an engine from a golden file.

    pytest -p ropewalk.verification.pytest_plugin --golden golden.json --engine http://localhost:8080

with a test such as `def test_rope(golden_verification): assert golden_verification.exit_status == 0`.
"""

from __future__ import annotations

import pytest

from ropewalk.verification.golden import Golden
from ropewalk.verification.outcome import Verification


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --golden and --engine."""
    group = parser.getgroup("ropewalk")
    group.addoption("--golden", help="file of golden predictions, from `ropewalk verify MODEL --write FILE`")
    group.addoption("--engine", help="address of the server to check")


@pytest.fixture(scope="session")
def golden_verification(request: pytest.FixtureRequest) -> Verification:
    """The conclusion about the engine; the test is skipped without --golden and --engine."""
    golden, engine = request.config.getoption("--golden"), request.config.getoption("--engine")
    if not golden or not engine:
        pytest.skip("needs --golden and --engine")
    return Golden.read(golden).check(engine, progress=False)
