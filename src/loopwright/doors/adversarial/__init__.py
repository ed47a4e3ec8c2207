"""The adversarial door: paired image translation with a generator and a discriminator.

from loopwright.doors.adversarial import Pix2pixTrainer
"""

from .config import Config
from .dataset import PairedDataset
from .loss_log import read_loss_log
from .losses import LMHistory, LMLoss, LossManager
from .networks import Discriminator, ResidualUnetBlock, UnetBlock, UnetGenerator
from .objective import pix2pix
from .onnx import ExportError, ONNXConverter, export_onnx
from .pix2pix_trainer import Pix2pixTrainer
from .reading import ConfigManager, load_config
from .scheduling import Schedule, Scheduler, TorchScheduler
from .tester import Tester, TestResult
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
    "export_onnx",
    "load_config",
    "pix2pix",
    "read_loss_log",
]
