"""Try escapes from the sandbox as the current user: `python as_user.py VIEW FOLDER COMMAND...`.

VIEW is "view" or "no view". The script prints as JSON which escapes succeed, the stamp, and the
exit code and output of the command, run under Landlock in FOLDER.
"""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from cuagent.sandbox import Policy, Tier, probe_forked, selftest, stamp, wrap

    view, folder, *command = sys.argv[1:]
    if view == "no view":
        module = import_module("cuagent.sandbox.wrap")
        module.ENTRY = Path(__file__).with_name("exec_without_view.py")
    succeeded = [escape.name for escape in selftest(Tier.LANDLOCK) if escape.got is not None]
    done = subprocess.run(
        wrap(command, Policy(write=(Path(folder),)), Tier.LANDLOCK),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    found = {
        "tier": probe_forked(),
        "stamp": stamp(Tier.LANDLOCK, Policy(memory_bytes=1 << 30)),
        "succeeded": succeeded,
        "code": done.returncode,
        "output": done.stdout,
    }
    print(json.dumps(found))
