"""The views: they show typed events to people (`terminal`) and write them for programs (`jsonl`).

The engine does not import them. `text` and `table` only format the data of lower packages.
"""
