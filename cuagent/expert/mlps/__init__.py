"""Linear layers of few rows that follow each other, such as those of squeeze-and-excitation blocks,
in one kernel."""
