"""The expert's intermediate representation (`graph.py`), and the translation of captured operators
into it (`lowering.py`)."""
