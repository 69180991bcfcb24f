"""The time line of a run says what each candidate gained, and why the next one was tried."""

from __future__ import annotations

from typing import Any

import pytest
from user_runs import events_of

SLOW = {"accepted": False, "reason": "too slow", "detail": "1.90x over eager instead of 2.00x"}


@pytest.mark.parametrize(
    ("record", "events"),
    [
        ({"type": "device", "what": "ladder", "seconds": 8.54}, ["ladder 8.5 s"]),
        (
            {"type": "judgement", "attempt": 2, "effort": "quick", "verdict": SLOW},
            ["judged 2 (quick): too slow, 1.90x over eager instead of 2.00x"],
        ),
        (
            {
                "type": "message",
                "role": "assistant",
                "content": "Attempt 1 is correct: 2.00x over eager.\nNext: use other tiles.\n- a",
            },
            ["expert: Attempt 1 is correct: 2.00x over eager.", "expert: Next: use other tiles."],
        ),
        ({"type": "message", "role": "tool", "content": "ok"}, []),
        ({"type": "end", "stop": "submitted"}, ["end: submitted"]),
    ],
)
def test_events_of_a_record(record: dict[str, Any], events: list[str]) -> None:
    assert events_of(record) == events
