"""The errors Loopwright raises; every message says what happened, what was expected and what to do."""


class LoopwrightError(Exception):
    """Base of every error that is ours, so that one `except` catches them all."""


class ConfigurationError(LoopwrightError, ValueError):
    """The trainer was put together in a way that cannot train."""


class DataError(LoopwrightError, ValueError):
    """The data cannot be iterated, batched or resumed as asked."""


class CheckpointError(LoopwrightError):
    """A checkpoint is damaged, incomplete, or does not fit what it is loaded into."""


class NonFiniteLossError(LoopwrightError, FloatingPointError):
    """A loss or gradient norm was NaN or infinite; the optimizer step it belongs to was not taken."""


class Interrupted(SystemExit):
    """A signal ended training after the update it came in. Leaves the program with 130 (SIGINT) or 143 (SIGTERM)."""


class MissingExtraError(LoopwrightError, ImportError):
    """An optional package is needed; the message names the pip command."""
