"""Tools that find mistakes in a training program."""

from .resume_check import check_resume

__all__ = ["check_resume"]
