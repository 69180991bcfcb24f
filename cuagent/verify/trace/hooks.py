"""Every operator that a module calls, passed through a function of ours.

Not covered: what is looked for there (`reductions.py`, `selections.py`, `examine.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def intercept_operators(
    call: Callable[[Any, Any, dict[str, Any]], Any],
) -> AbstractContextManager[Any]:
    """A context in which `call(operator, args, kwargs)` calls each operator and gives its result.

    torch's own modes import torch._dynamo at their first operator, to keep their frames from being
    compiled. That takes a second and more, which every verdict would begin with; where nobody has
    imported it, nothing is compiled.
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
