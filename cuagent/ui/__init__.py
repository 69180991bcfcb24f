"""The views: consumers of typed events, for people (`terminal`) and for programs (`jsonl`).

The engine knows none of them. `text` and `table` turn the data of the rooms below into lines and
do nothing else.
"""
