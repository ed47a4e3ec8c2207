"""A trained generator on images that it has never seen, with the losses of each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....data.order import permutation
from ....data.random import preserved_rng
from ....errors import ConfigurationError
from ....losses import Laplacian, Sobel
from ....runtime.modes import evaluating
from ..._shared import on_first_process
from ..experiment import directory_of
from ..images import PARTS, write_image
from ..reading import ConfigSource, config_copies
from ..trainer import Trainer
from .dataset import PairedDataset
from .networks import UnetGenerator


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
            config = config_in(Path(experiment_dir))
        super().__init__(config, quicksetup=False)
        self.experiment_dir = (
            directory_of(self.config) if experiment_dir is None else Path(experiment_dir)
        )
        if dataroot is not None:
            self.config.dataloader.dataroot = os.fspath(dataroot)
        if load_epoch is not None:
            # the config checks it
            self.config.train.load.load_epoch = load_epoch  # type: ignore[assignment]
        self.gen = self._build_generator()
        self.load_checkpoint("G", self.gen)
        self.losses: dict[str, nn.Module] = {
            "L1": nn.L1Loss(),
            "Sobel": Sobel(),
            "Laplacian": Laplacian(),
        }
        for loss in self.losses.values():
            loss.to(self.device)

    def _build_generator(self) -> nn.Module:
        settings = self.config.train.generator
        load = self.config.dataloader.load
        return UnetGenerator(
            input_size=load.crop_size,
            in_channels=load.input_nc,
            features=settings.features,
            n_downs=settings.n_downs,
            block_type=settings.block_type,
            upconv_type=settings.upsample_type,
        ).to(self.device)

    def run_test(self, image_count: int | None = None, silent: bool = False) -> list[TestResult]:
        """Test `image_count` images, other ones each time, or all of them; write triplets and a log
        of their losses.

        Unless `silent`, a line says how many.
        """
        if image_count is not None and (type(image_count) is not int or image_count < 1):
            raise ConfigurationError(
                f"run_test was given image_count={image_count!r}; expected a whole number of "
                "images from 1, or leave it out for all of them."
            )
        dataset = PairedDataset(
            self.config, Path(self.config.dataloader.dataroot) / "test", is_train=False
        )
        runtime = self._engine.runtime
        folder, number = on_first_process(runtime, lambda: _next_folder(self._directory() / "test"))
        order = permutation(self.config.common.seed or 0, number, len(dataset)).tolist()
        chosen = sorted(order[:image_count])
        if not silent:
            self._print(f"Testing {len(chosen)} images of {dataset.root}", capture=False)
        own: list[TestResult] = []
        with evaluating([self.gen], ()), torch.no_grad(), preserved_rng():
            for index in chosen[runtime.rank :: runtime.world]:
                own.append(self._test_one(dataset.paths[index], dataset[index], folder))
        results = sorted(
            (result for part in runtime.gather_objects(own) for result in part), key=_source
        )
        on_first_process(runtime, lambda: _write_log(folder, self.loaded_epoch, results))
        return results

    def _test_one(self, source: Path, pair: tuple[Tensor, Tensor], folder: Path) -> TestResult:
        x, y = (image.unsqueeze(0).to(self.device) for image in pair)
        output = self.gen(x)
        losses = {name: loss(output, y).item() for name, loss in self.losses.items()}
        pictures = {part: folder / f"{source.stem}_{part}.png" for part in PARTS}
        for part, image in zip(PARTS, (x, output, y), strict=True):
            write_image(pictures[part], image[0])
        return TestResult(source, losses, pictures)


def _source(result: TestResult) -> Path:
    return result.source


def _write_log(folder: Path, epoch: int, results: list[TestResult]) -> None:
    log = {"epoch": epoch, "images": [_as_json(result, folder) for result in results]}
    (folder / "log.json").write_text(json.dumps(log, indent=2) + "\n")


def config_in(directory: Path) -> Path:
    copies = config_copies(directory)
    if not copies:
        raise ConfigurationError(
            f"{directory} has no train1_config.json, so its generator cannot be built: pass "
            "`config=`."
        )
    return copies[-1][1]


def _next_folder(parent: Path) -> tuple[Path, int]:
    parent.mkdir(parents=True, exist_ok=True)
    numbers = [
        int(match[1])
        for path in parent.iterdir()
        if (match := re.fullmatch(r"test(\d+)", path.name))
    ]
    number = max(numbers, default=0) + 1
    folder = parent / f"test{number}"
    folder.mkdir()
    return folder, number


def _as_json(result: TestResult, folder: Path) -> dict[str, Any]:
    pictures = {part: str(path.relative_to(folder)) for part, path in result.pictures.items()}
    return {"source": str(result.source), "losses": dict(result.losses), "pictures": pictures}
