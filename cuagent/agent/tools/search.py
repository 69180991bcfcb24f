"""`python -I -S search.py < REQUEST > ANSWER`: for `grep` where there is no ripgrep.

A process of its own, because an expression that backtracks for ever can only be killed.
Request: {"pattern", "files": [[shown name, path], ...], "largest", "longest_line", "most"};
answer: {"lines": the first of them, "count": of all}.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def matches(request: dict[str, Any]) -> Iterator[str]:
    """`name:number: line`, in the order of the files."""
    expression = re.compile(request["pattern"])
    for name, path in request["files"]:
        try:
            if Path(path).stat().st_size > request["largest"]:
                continue
            text = Path(path).read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if expression.search(line):
                yield f"{name}:{number}: {line[: request['longest_line']]}"


if __name__ == "__main__":
    given = json.load(sys.stdin)
    found = list(matches(given))
    json.dump({"lines": found[: given["most"]], "count": len(found)}, sys.stdout)
