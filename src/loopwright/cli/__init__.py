"""The command line: `loopwright ...`, also `python -m loopwright ...`. One module for each group of
commands."""

from .app import main as main

__all__ = ["main"]
