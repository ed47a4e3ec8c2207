"""A generator as an ONNX file, which is only kept if it computes what the network does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ...onnx_files import TOLERANCE, ExportError, export_module
from .processes import by_first
from .reading import ConfigSource
from .tester import Tester

__all__ = ["ExportError", "ONNXConverter", "export_onnx"]


def export_onnx(
    network: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor,
    *,
    opset_version: int = 18,
    input_names: Sequence[str] = ("input",),
    output_names: Sequence[str] = ("output",),
    tolerance: float = TOLERANCE,
) -> float:
    """Write a network in eval mode to an ONNX file for any batch size; the largest difference to torch's output.

    The file is run and compared before it takes its name.
    """
    report = export_module(
        network,
        torch.cat([example, example]),  # an example of one would make the batch size a constant
        Path(path),
        opset=opset_version,
        names=(input_names, output_names),
        tolerance=tolerance,
    )
    return report.max_difference


class ONNXConverter(Tester):
    """Converts the generator of an experiment: `ONNXConverter(experiment_dir, load_epoch=200).convert_model()`."""

    def __init__(
        self,
        experiment_dir: str | os.PathLike[str],
        config: ConfigSource = None,
        load_epoch: int | str | None = None,
        crop_size: int | None = None,
    ) -> None:
        super().__init__(config, experiment_dir, load_epoch=load_epoch)
        self.crop_size = crop_size or self.config.dataloader.load.crop_size

    def convert_model(
        self,
        opset_version: int = 18,
        input_names: Sequence[str] = ("input",),
        output_names: Sequence[str] = ("output",),
    ) -> Path:
        """Write `epoch{n}.onnx` to the experiment's directory, checked against torch; the path."""
        path = self._directory() / f"epoch{self.loaded_epoch}.onnx"
        generator = torch.Generator().manual_seed(0)
        size = (1, self.config.dataloader.load.input_nc, self.crop_size, self.crop_size)
        example = (torch.rand(size, generator=generator) * 2 - 1).to(self.device)
        export = partial(export_onnx, opset_version=opset_version, input_names=input_names, output_names=output_names)
        by_first(self._engine.runtime, lambda: export(self.gen, path, example))
        return path
