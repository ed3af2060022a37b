"""The fields of an answer of API 2.0."""

from collections.abc import Mapping
from typing import Any, TypeAlias

Fields: TypeAlias = Mapping[str, Any]
"""Fields beside ``code``, ``message`` and ``requestId``."""
