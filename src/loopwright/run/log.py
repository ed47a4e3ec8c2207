"""`log.txt`: what a run said, with the time it said it; what it is told with Python's logging goes there too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

run_logger = logging.getLogger("loopwright.run")


@contextmanager
def logging_to(path: Path) -> Iterator[logging.Logger]:
    """Append to this file whatever is logged meanwhile; gives the logger for the run's own lines.

    What a program without handlers of its own prints for warnings is still printed, but for the run's own lines, which
    whoever runs it hears of in other ways.
    """
    root = logging.getLogger()
    handlers: list[logging.Handler] = [logging.FileHandler(path, encoding="utf-8", delay=True)]
    handlers[0].setFormatter(logging.Formatter(FORMAT))
    if not root.handlers:
        handlers.append(_printing())  # python does that itself only as long as there is no other handler
    level = run_logger.level
    run_logger.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield run_logger
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        handlers[0].close()
        run_logger.setLevel(level)


def _printing() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.name != run_logger.name)
    return handler
