"""A trained generator: on images that it has never seen, with the losses of each; and as an ONNX
file, which is only kept if it computes what the network does."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn

from ...checkpoint.onnx import TOLERANCE, ExportError, export_module
from ...data.order import permutation
from ...data.random import preserved_rng
from ...errors import ConfigurationError
from ...losses import Laplacian, Sobel
from ...runtime.modes import evaluating
from .._shared import on_first_process
from .config import AdversarialConfig as Config
from .config import ConfigSource, load_config, num_copies
from .experiment import directory_of
from .images import PARTS, PairedDataset, write_triplet
from .pix2pix import build_generator
from .trainer import Trainer

__all__ = ["ExportError", "ONNXConverter", "TestResult", "Tester"]


@dataclass(frozen=True, slots=True)
class TestResult:
    """One image: which file, its losses by name, and the pictures that were written of it."""

    __test__ = False  # pytest, that is no test

    source: Path
    losses: Mapping[str, float]
    pictures: Mapping[str, Path]


class Tester(Trainer):
    """Runs the generator of an experiment over the images in `{dataroot}/test`.

    Without a config, the experiment's newest copy of it is used. Nothing of the experiment is
    changed; results go to its folder `test`.
    """

    __test__ = False  # pytest, that is no test

    def __init__(
        self,
        config: ConfigSource = None,
        experiment_dir: str | os.PathLike[str] | None = None,
        dataroot: str | os.PathLike[str] | None = None,
        load_epoch: int | str | None = None,
    ) -> None:
        if config is None and experiment_dir is not None:
            config = config_in(experiment_dir)
        super().__init__(config, quicksetup=False)
        self.experiment_dir = Path(experiment_dir or directory_of(self.config))
        if dataroot is not None:
            self.config.dataloader.dataroot = os.fspath(dataroot)
        if load_epoch is not None:
            # the config checks it
            self.config.train.load.load_epoch = load_epoch  # type: ignore[assignment]
        self.gen = build_generator(self.config).to(self.device)
        self.load_checkpoint("G", self.gen)
        losses = {"L1": nn.L1Loss(), "Sobel": Sobel(), "Laplacian": Laplacian()}
        self.losses = {name: loss.to(self.device) for name, loss in losses.items()}

    def run_test(self, image_count: int | None = None, silent: bool = False) -> list[TestResult]:
        """Test `image_count` images, other ones each time, or all of them; write triplets and a log
        of their losses.

        Unless `silent`, a line says how many.
        """
        dataset = PairedDataset(
            self.config, Path(self.config.dataloader.dataroot) / "test", is_train=False
        )
        results = on_first_process(self._core.runtime, lambda: self._test(dataset, image_count))
        if not silent:
            self._print(f"Tested {len(results)} images of {dataset.root}")
        return results

    def _test(self, dataset: PairedDataset, image_count: int | None) -> list[TestResult]:
        parent = self.experiment_dir / "test"
        number = next(number for number in count(1) if not (parent / f"test{number}").exists())
        folder = parent / f"test{number}"
        folder.mkdir(parents=True)
        order = permutation(self.config.common.seed or 0, number, len(dataset)).tolist()
        with evaluating([self.gen], ()), torch.no_grad(), preserved_rng():
            results = [
                self._test_one(dataset.list_files[index], dataset[index], folder)
                for index in sorted(order[:image_count])
            ]
        log = {"epoch": self.loaded_epoch, "images": [asdict(result) for result in results]}
        (folder / "log.json").write_text(json.dumps(log, indent=2, default=str) + "\n")
        return results

    def _test_one(self, source: Path, pair: tuple[Tensor, Tensor], folder: Path) -> TestResult:
        x, y = (image.unsqueeze(0).to(self.device) for image in pair)
        output = self.gen(x)
        losses = {name: loss(output, y).item() for name, loss in self.losses.items()}
        paths = write_triplet(folder, source.stem, (x[0], output[0], y[0]))
        return TestResult(source, losses, dict(zip(PARTS, paths, strict=True)))


def config_in(directory: str | os.PathLike[str]) -> Path:
    """The newest copy of the config of an experiment."""
    number = num_copies(Path(directory))
    if number == 0:
        raise ConfigurationError(
            "no-config-copy",
            f"{directory} has no train1_config.json, so its generator cannot be built: pass "
            "`config=`.",
        )
    return Path(directory) / f"train{number}_config.json"


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
        settings: Config = load_config(config_in(experiment_dir) if config is None else config)
        load = settings.dataloader.load
        # the config checks it
        load.input_nc = in_channels or load.input_nc  # type: ignore[assignment]
        load.crop_size = crop_size or load.crop_size
        settings.common.device = str(device or settings.common.device)
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
        """Write `epoch{n}.onnx` to the experiment's directory for any batch size, compare it with
        torch, and return its path.

        The exporter writes the weights, folds constants and is quiet in any case: `export_params`,
        `do_constant_folding` and `suppress_onnx_warnings` are accepted and change nothing.
        """
        path = self.experiment_dir / f"epoch{self.loaded_epoch}.onnx"
        generator = torch.Generator().manual_seed(0)
        # an example of one would make the batch size a constant
        load = self.config.dataloader.load
        size = (2, load.input_nc, load.crop_size, load.crop_size)
        example = (torch.rand(size, generator=generator) * 2 - 1).to(self.device)
        convert = partial(
            export_module,
            self.gen,
            example,
            path,
            opset=opset_version,
            names=(input_names, output_names),
            tolerance=TOLERANCE,
        )
        on_first_process(self._core.runtime, convert)
        return path
