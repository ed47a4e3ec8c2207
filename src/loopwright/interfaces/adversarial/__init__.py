"""The adversarial interface: paired image translation with a generator and a discriminator.

from loopwright.interfaces.adversarial import Pix2pixTrainer
"""

from .config import Config
from .losses import LMHistory, LMLoss, LossManager, read_loss_log
from .pix2pix.dataset import PairedDataset
from .pix2pix.networks import Discriminator, ResidualUnetBlock, UnetBlock, UnetGenerator
from .pix2pix.onnx import ExportError, ONNXConverter, export_onnx
from .pix2pix.tester import Tester, TestResult
from .pix2pix.trainer import Pix2pixTrainer, pix2pix
from .reading import ConfigManager, load_config
from .scheduling import Schedule, Scheduler, TorchScheduler
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
