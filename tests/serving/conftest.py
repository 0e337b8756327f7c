"""Nothing is said by transformers."""

from tests.extend.conftest import _quiet as _quiet
