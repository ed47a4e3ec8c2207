__version__ = "0.1.0"
# as `pyproject.toml` has it, for those who install without pip or with `--no-deps`
OLDEST_TORCH = (
    2,
    11,
)
