"""The adversarial interface: paired image translation with a generator and a discriminator.

from loopwright.interfaces.adversarial import Pix2pixTrainer
"""

from .config import AdversarialConfig as Config
from .config import ConfigManager, load_config
from .images import PairedDataset
from .losses import EpochSchedule as Schedule
from .losses import LMHistory, LMLoss, LossManager, Scheduler, TorchScheduler, read_loss_log
from .pix2pix import (
    Discriminator,
    Pix2pixTrainer,
    ResidualUnetBlock,
    UnetBlock,
    UnetGenerator,
    pix2pix,
)
from .tester import ExportError, ONNXConverter, Tester, TestResult
from .trainer import Trainer

__all__ = [
    "Config",
    "ConfigManager",
    "Discriminator",
    "ExportError",
    "LMHistory",
    "LMLoss",
    "LossManager",
    "ONNXConverter",
    "PairedDataset",
    "Pix2pixTrainer",
    "ResidualUnetBlock",
    "Schedule",
    "Scheduler",
    "TestResult",
    "Tester",
    "TorchScheduler",
    "Trainer",
    "UnetBlock",
    "UnetGenerator",
    "load_config",
    "pix2pix",
    "read_loss_log",
]
