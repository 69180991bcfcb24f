"""The views of a run: they show typed events to people (`terminal`) and write them for programs
(`jsonl`).

The engine does not import the views. `text` and `table` only format the data of lower packages.
"""
