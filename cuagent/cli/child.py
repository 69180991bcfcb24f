"""Ask a child process for facts about a device.

The command's own process must not open the device: it would occupy memory and a CUDA context while
other processes measure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from cuagent.cli.exits import Refused

LIMIT_S = 600
"""Time limit in seconds for the child; measuring a device's rates takes the longest."""


def ask_child(statements: str, value: str, problem: str) -> Any:
    """Run Python `statements` in a child process, and return the value of the expression `value`
    there.

    The value is transferred as JSON. Raises Refused with `problem` and the last line of the error
    if the child fails.
    """
    code = f"import json; {statements}; print(json.dumps([{value}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise Refused(f"{problem} ({why[0]})")
    return json.loads(done.stdout.strip().splitlines()[-1])
