"""cuagent makes a PyTorch module faster with kernels of its own, and proves that it is.

Importing the package does no work: torch, the provider SDKs and the terminal libraries
are imported where they are used.
"""

__version__ = "0.1.0"
