"""Intercept every operator that a module calls.

Not covered: the analyses that use it (`reductions`, `selections`, `fitness.examine`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def intercept_operators(
    call: Callable[[Any, Any, dict[str, Any]], Any],
) -> AbstractContextManager[Any]:
    """Return a context in which `call(operator, args, kwargs)` replaces each torch operator.

    `call` runs the operator and returns its result. The context avoids torch's own modes, which
    import torch._dynamo at their first operator to keep their frames from being compiled. That
    would add more than a second to every verdict, and without torch._dynamo nothing is compiled.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return "torch._dynamo" in sys.modules

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return call(function, args, kwargs or {})

    return Watching()
