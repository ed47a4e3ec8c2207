"""Schedulers that are stepped after every optimizer update."""

from .cosine_scheduler import CosineLrScheduler
from .scheduler_base import SchedulerBase, StatefulSchedulerBase
from .wsd_scheduler import WSDLrScheduler

__all__ = ["CosineLrScheduler", "SchedulerBase", "StatefulSchedulerBase", "WSDLrScheduler"]
