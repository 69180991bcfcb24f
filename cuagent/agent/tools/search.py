"""`python -I -S search.py < REQUEST > ANSWER`: the process in which `grep` searches.

Request: {"pattern", "work": descriptor of the work folder, "files": names in it, "largest",
"longest_line", "most"}; answer: {"lines": the first of them, "count": of all}.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def matches(request: dict[str, Any]) -> Iterator[str]:
    """`name:number: line`, in the order of the files."""
    from cuagent.sandbox.beneath import read_beneath

    expression = re.compile(request["pattern"])
    for name in request["files"]:
        try:
            data = read_beneath(request["work"], name, request["largest"])
        except OSError:
            continue
        if len(data) > request["largest"]:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if expression.search(line):
                yield f"{name}:{number}: {line[: request['longest_line']]}"


if __name__ == "__main__":
    # -I leaves out the folder that holds cuagent, and it may be installed nowhere on the path.
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    given = json.load(sys.stdin)
    found = list(matches(given))
    json.dump({"lines": found[: given["most"]], "count": len(found)}, sys.stdout)
