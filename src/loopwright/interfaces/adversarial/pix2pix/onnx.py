"""A generator as an ONNX file, which is only kept if it computes what the network does."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....checkpoint.onnx import TOLERANCE, ExportError, export_module
from ....errors import ConfigurationError
from ..._shared import on_first_process
from ..config import Config
from ..reading import ConfigSource, load_config
from .tester import Tester, config_in

logger = logging.getLogger("loopwright")

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
    """Write a network in eval mode to an ONNX file for any batch size; the largest difference to
    torch's output.

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
    """Converts the generator of an experiment:
    `ONNXConverter(experiment_dir, load_epoch=200).convert_model()`.

    Without a config, the experiment's newest copy of it is used. `in_channels`, `crop_size` and
    `device` take the place of what the config says.
    """

    def __init__(
        self,
        experiment_dir: str | os.PathLike[str],
        config: ConfigSource = None,
        load_epoch: int | str | None = None,
        in_channels: int | None = None,
        crop_size: int | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        settings: Config = load_config(
            config_in(Path(experiment_dir)) if config is None else config
        )
        if device is not None:
            settings.common.device = str(device)
        load = settings.dataloader.load
        # the config checks it
        self.in_channels = load.input_nc = in_channels or load.input_nc  # type: ignore[assignment]
        self.crop_size = load.crop_size = crop_size or load.crop_size
        super().__init__(settings, experiment_dir, load_epoch=load_epoch)

    def convert_model(
        self,
        export_params: bool = True,
        opset_version: int = 18,
        do_constant_folding: bool = True,
        input_names: Sequence[str] = ("input",),
        output_names: Sequence[str] = ("output",),
        suppress_onnx_warnings: bool = True,
    ) -> Path:
        """Write `epoch{n}.onnx` to the experiment's directory, compare it with torch, and return
        its path.

        The exporter folds constants and is quiet in any case: `do_constant_folding` and
        `suppress_onnx_warnings` are accepted as the published program has them.
        """
        _check_arguments(export_params, opset_version)
        for name, is_usual in (
            ("do_constant_folding", do_constant_folding),
            ("suppress_onnx_warnings", suppress_onnx_warnings),
        ):
            if not is_usual:
                logger.warning(
                    "convert_model(%s=False) has no effect: torch's exporter always does that.",
                    name,
                )
        path = self._directory() / f"epoch{self.loaded_epoch}.onnx"
        generator = torch.Generator().manual_seed(0)
        size = (1, self.in_channels, self.crop_size, self.crop_size)
        example = (torch.rand(size, generator=generator) * 2 - 1).to(self.device)
        export = partial(
            export_onnx,
            opset_version=opset_version,
            input_names=input_names,
            output_names=output_names,
        )
        on_first_process(self._engine.runtime, lambda: export(self.gen, path, example))
        return path


def _check_arguments(export_params: Any, opset_version: Any) -> None:
    if (
        not isinstance(export_params, bool)
        or not isinstance(opset_version, int)
        or isinstance(opset_version, bool)
    ):
        raise ConfigurationError(
            f"convert_model was given export_params={export_params!r} and "
            f"opset_version={opset_version!r}; expected True and a whole number: name them, as in "
            "convert_model(opset_version=18)."
        )
    if not export_params:
        raise ConfigurationError(
            "convert_model was given export_params=False; a file without weights cannot be "
            "checked: leave the argument out."
        )
