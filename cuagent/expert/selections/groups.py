"""Name the second result of a selection: the indices of the selected elements."""

from __future__ import annotations

PLACES = "places"
"""`Node.op` of the node with the indices of a selection's elements."""
