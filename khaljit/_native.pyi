"""The native extension, as `khaljit.extension`, `khaljit.launching` and `khaljit.plans` use it."""

from typing import Any

def __getattr__(name: str) -> Any: ...
