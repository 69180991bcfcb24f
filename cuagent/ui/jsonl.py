"""The view for a program: one JSON object per line for each event, as it happens.

Every object has `type` (the event's name in snake case) and `time` (seconds since the epoch); the
other keys are the event's own fields, named as in `cuagent.record.results`, secrets masked.
"""

from __future__ import annotations

import json
import re
import time
from typing import TextIO

from cuagent.events import Event
from cuagent.record import public, redactor


class JsonLines:
    """Writes events to `stream` and flushes after each, so that a reader gets the event
    immediately."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._redact = redactor()

    def __call__(self, event: Event) -> None:
        """Write one event as a line."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
        line = {"type": name, "time": round(time.time(), 3)} | self._redact(public(event))
        self.stream.write(json.dumps(line) + "\n")
        self.stream.flush()
