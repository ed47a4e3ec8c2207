"""A generator as an ONNX file, which is only kept if it computes what the network does."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...checkpoint.atomic import staged_file
from ...components import evaluating
from ...errors import LoopwrightError, MissingExtraError
from .reading import ConfigSource
from .tester import Tester

TOLERANCE = 1e-4


class ExportError(LoopwrightError):
    """An exported network does not compute what it should."""


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
    runtime = _runtime()
    batch = torch.export.Dim("batch")
    with staged_file(Path(path)) as staging, evaluating([network], ()), torch.no_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's exporter warns about torch
            program = torch.onnx.export(
                network,
                (torch.cat([example, example]),),  # an example of one would make the batch size a constant
                dynamo=True,
                verbose=False,
                opset_version=opset_version,
                input_names=list(input_names),
                output_names=list(output_names),
                dynamic_shapes=({0: batch},),
            )
        assert program is not None
        program.save(str(staging), external_data=False)
        session = runtime.InferenceSession(str(staging), providers=["CPUExecutionProvider"])
        (output,) = session.run(None, {input_names[0]: example.cpu().numpy()})
        difference = float((torch.from_numpy(output) - network(example).cpu()).abs().max())
        if not difference <= tolerance:
            raise ExportError(
                f"The network exported to {path} differs from torch's by {difference:.3g}, more than {tolerance:g}; it "
                "was not kept. Try another opset_version, or raise `tolerance`."
            )
    return difference


def _runtime() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("ONNX export needs three packages: pip install 'loopwright[onnx]'.") from error
    return onnxruntime


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
        export_onnx(
            self.gen, path, example, opset_version=opset_version, input_names=input_names, output_names=output_names
        )
        return path
