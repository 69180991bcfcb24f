"""Enter the sandbox, then execute a command: `python -I -S exec.py POLICY TIER -- COMMAND...`.

The script is started by its path and without the module site, so that it starts in about 30 ms and
no file of the working folder can replace a module. The exit code is 126 if the sandbox or the
command does not start.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # -I removes this package's folder from the path, and the package may not be installed.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

    from cuagent.sandbox.enter import enter
    from cuagent.sandbox.policy import SandboxError, Tier, policy_from_json

    try:
        enter(policy_from_json(sys.argv[1]), Tier(sys.argv[2]))
        os.execvp(sys.argv[4], sys.argv[4:])
    except (SandboxError, OSError) as error:
        print(f"{sys.argv[4]}: {error}", file=sys.stderr)
        sys.exit(126)
