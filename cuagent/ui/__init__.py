"""The views: consumers of typed events, for people (`terminal`) and for programs (`jsonl`).

The engine does not import them. `text` and `table` only format the data of lower packages.
"""
