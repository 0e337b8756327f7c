"""pytest -p ropewalk.verification.pytest_plugin --golden golden.json --engine http://localhost:8080 test_engine.py"""


def test_the_engine_applies_the_expected_rope(golden_verification):
    assert golden_verification.exit_status == 0, str(golden_verification)
