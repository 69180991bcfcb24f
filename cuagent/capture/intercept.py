"""Intercept the calls of modules in a running script, by a patch of `nn.Module`.

Forked processes (workers of a DataLoader) and other threads of the script call the original; calls
in other threads are counted.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from cuagent.capture.names import Names

    Call = Callable[..., Any]
    Around = Callable[[Call, nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def intercept(names: Names, around: Around) -> None:
    """Patch `nn.Module` for the rest of the process, so that `around` receives each call of a
    module.

    Each new module is added to `names`. A call of a module becomes `around(call, module, args,
    kwargs)`, where `call(*args, **kwargs)` runs the original.
    """
    from torch import nn

    original, construct = nn.Module.__call__, nn.Module.__init__
    pid, thread = os.getpid(), threading.get_ident()

    @functools.wraps(construct)
    def init(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        construct(module, *args, **kwargs)
        if os.getpid() == pid:
            names.add(module)

    @functools.wraps(original)
    def intercepted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != pid:
            return original(module, *args, **kwargs)
        if threading.get_ident() != thread:
            names.elsewhere += 1
            return original(module, *args, **kwargs)
        return around(functools.partial(original, module), module, args, kwargs)

    nn.Module.__init__ = init  # type: ignore[method-assign, assignment]
    nn.Module.__call__ = intercepted  # type: ignore[method-assign]
