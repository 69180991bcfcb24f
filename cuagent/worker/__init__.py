"""The processes that run models, and the narrow ways into and out of them.

`Nursery` is the warm process; `Session` is one model running in a process forked from it, either an
untrusted candidate or a trusted reference; `Arena` is memory that the referee owns and lends to
them. See docs/VERIFIER.md for who holds what.
"""

from cuagent.worker.arena import Arena, Layout, layout_of
from cuagent.worker.arms import Order
from cuagent.worker.channel import Status
from cuagent.worker.nursery import Nursery, NurseryError
from cuagent.worker.session import Block, Session, SessionEnded

__all__ = [
    "Arena",
    "Block",
    "Layout",
    "Nursery",
    "NurseryError",
    "Order",
    "Session",
    "SessionEnded",
    "Status",
    "layout_of",
]
