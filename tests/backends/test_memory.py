"""Where kernels read and write: any strides, guard bytes around everything, shared memory."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.backends.calls import calls, check_call


@given(call=calls())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_call(call, place):
    """Whatever the dtype, shape, strides, tables and direction: right, and no byte elsewhere read or written."""
    check_call(call, place)
