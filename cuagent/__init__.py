"""cuagent makes a PyTorch module faster with custom kernels and proves the result.

Importing the package is cheap: torch, the provider SDKs and the terminal libraries are imported
on first use.
"""

__version__ = "0.1.0"
