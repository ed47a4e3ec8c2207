"""The adversarial interface: paired image translation with a generator and a discriminator.

from loopwright.interfaces.adversarial import Pix2pixTrainer
"""

from .config import Config, ConfigManager, load_config
from .dataset import PairedDataset
from .losses import LMHistory, LMLoss, LossManager, read_loss_log
from .networks import Discriminator, ResidualUnetBlock, UnetBlock, UnetGenerator
from .pix2pix import Pix2pixTrainer, pix2pix
from .scheduling import Schedule, Scheduler, TorchScheduler
from .tester import ExportError, ONNXConverter, Tester, TestResult, export_onnx
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
