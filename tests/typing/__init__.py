"""A program that uses Loopwright, as a type checker sees it."""  # noqa: A005
