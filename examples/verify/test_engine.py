"""GOLDEN=golden.json ENGINE=http://localhost:8080 python -m pytest test_engine.py"""

import os

from ropewalk.verification.golden import Golden


def test_the_engine_applies_the_expected_rope():
    found = Golden.read(os.environ["GOLDEN"]).check(os.environ["ENGINE"], progress=False)
    assert found.exit_status == 0, str(found)
