"""Faults to inject into a verdict, and the reasons with which the verdict may then end.

A candidate's faults are bodies of its forward. The machine's faults are signals to a process at a
random moment of a verdict. test_faults.py injects each fault once, benchmarks/faults.py many faults
in random order.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cuagent.verify import Reason, Referee, Verdict

HONEST = "return self.honest(x)"


@dataclass(frozen=True)
class Fault:
    """A fault: the body of the candidate's forward, or a signal that a process receives during the
    verdict."""

    reasons: tuple[Reason, ...]
    body: str = HONEST
    victim: str = ""
    """Process that receives `signal`: worker, oracle or fork server; "" for no signal."""
    signal: int = signal.SIGKILL


MOMENT = (Reason.INFRASTRUCTURE, Reason.ACCEPTED)
"""Possible reasons after a fault at a random moment. Killing a process after its last request has
no effect."""
FAULTS = {
    "hangs": Fault((Reason.TIMED_OUT,), "while True: pass"),
    "sleeps without end": Fault((Reason.TIMED_OUT,), "import time; time.sleep(1e6)"),
    "stops itself": Fault(
        (Reason.TIMED_OUT,), "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    ),
    "kills itself": Fault((Reason.CRASHED,), "import os; os.kill(os.getpid(), 9)"),
    "aborts": Fault((Reason.CRASHED,), "import os; os.abort()"),
    "reads at nothing": Fault((Reason.CRASHED,), "import ctypes; ctypes.string_at(0)"),
    "leaves": Fault((Reason.CRASHED,), "import os; os._exit(0)"),
    "garbage record": Fault(
        (Reason.CRASHED,), "import os; os.write(3, os.urandom(24)); return self.honest(x)"
    ),
    "closes the channel": Fault((Reason.CRASHED,), "import os; os.close(3); return self.honest(x)"),
    "a gigabyte of output": Fault(
        (Reason.ACCEPTED, Reason.TIMED_OUT),
        """
        import os
        if not hasattr(self, "said"):
            self.said = True
            for _ in range(1 << 10): os.write(1, b"x" * (1 << 20))
        return self.honest(x)
        """,
    ),
    "fork bomb": Fault(
        (Reason.RAISED, Reason.CRASHED, Reason.TIMED_OUT),
        """
        import os
        while True:
            os.fork()
        """,
    ),
    "fills the disk": Fault(
        (Reason.RAISED, Reason.CRASHED, Reason.TIMED_OUT),
        """
        import os
        for n in range(1 << 20):
            with open(f"file{n}", "wb") as file:
                file.truncate(1 << 20)
                file.write(b"x" * (1 << 24))
        """,
    ),
    "worker killed": Fault((Reason.CRASHED, Reason.ACCEPTED), victim="worker"),
    "worker stopped": Fault(
        (Reason.TIMED_OUT, Reason.ACCEPTED), victim="worker", signal=signal.SIGSTOP
    ),
    "oracle killed": Fault(MOMENT, victim="oracle"),
    "fork server killed": Fault(MOMENT, victim="fork server"),
}


def suffer(
    referee: Referee, judged: Callable[[str], Verdict], fault: Fault, dice: random.Random
) -> Verdict:
    """Verify a candidate while the fault is injected; return the verdict."""
    if not fault.victim:
        return judged(fault.body)
    strike = threading.Thread(target=_strike, args=(referee, fault, dice.uniform(0.0, 0.6)))
    strike.start()
    try:
        return judged(fault.body)
    finally:
        strike.join()


def _strike(referee: Referee, fault: Fault, after_s: float) -> None:
    time.sleep(after_s)
    with contextlib.suppress(ProcessLookupError, OSError):
        end = os.pidfd_open(_victim(referee, fault.victim))
        signal.pidfd_send_signal(end, fault.signal)
        if fault.signal == signal.SIGKILL:  # wait for its end before the next verdict
            select.select([end], [], [], 10.0)
        os.close(end)


def _victim(referee: Referee, name: str) -> int:
    fork_server, oracle = referee.fork_server._process.pid, referee.oracle.pid
    if name == "worker":
        children = Path(f"/proc/{fork_server}/task/{fork_server}/children").read_text().split()
        others = [int(pid) for pid in children if int(pid) != oracle]
        if not others:
            raise ProcessLookupError
        return others[0]
    return {"fork server": fork_server, "oracle": oracle}[name]
