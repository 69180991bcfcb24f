"""Run a function in a forked child that enters the sandbox."""

from __future__ import annotations

import os
import pickle
import select
import signal
from collections.abc import Callable
from typing import Any

from cuagent.sandbox import Policy, Tier, enter


def in_child(policy: Policy, tier: Tier, work: Callable[[], Any]) -> Any:
    """Call `work` in a forked child in the sandbox; return its result or its exception.

    The result is pickled, because the child runs trusted code of these tests. The worker's own
    channel carries no pickles.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        with_pipe = Policy(**{**vars(policy), "fds": (*policy.fds, writer)})
        try:
            enter(with_pipe, tier)
            result = work()
        except BaseException as error:  # noqa: BLE001 - the child's process boundary
            result = error
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(result, pipe)
            pipe.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], 120)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        result = (
            pickle.load(pipe) if ready else TimeoutError("the child did not answer within 120 s")
        )
    os.waitpid(pid, 0)
    return result
