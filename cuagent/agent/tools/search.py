"""Search files for the tool `grep`: `python -I -S search.py < REQUEST > ANSWER`.

REQUEST is JSON: {"pattern", "work": descriptor of the work folder, "files": names in it, "largest",
"longest_line", "most"}. ANSWER is JSON: {"lines": the first matches, "count": number of all}.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def matches(request: dict[str, Any]) -> Iterator[str]:
    """Yield `name:number: line` for each matching line, in the order of the files."""
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
    # -I removes the folder that holds cuagent from the path, and cuagent may not be installed
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    given = json.load(sys.stdin)
    found = list(matches(given))
    json.dump({"lines": found[: given["most"]], "count": len(found)}, sys.stdout)
