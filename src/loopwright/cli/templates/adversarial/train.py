"""Learn to colour drawings of shapes, with pairs of images and a GAN (pix2pix). `python train.py`

Start it again to resume where it stopped.
"""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image, ImageDraw  # pip install 'loopwright[images]'

from loopwright.interfaces.adversarial import Config, Pix2pixTrainer, load_config

SIZE = 32


def write_pairs(folder: Path, count: int, seed: int) -> None:
    """Files with an outline on the left and the coloured shape on the right: put your own pairs in
    these folders."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    for number in range(count):
        pair = Image.new("RGB", (2 * SIZE, SIZE), "white")
        draw = ImageDraw.Draw(pair)
        is_round = chance.random() < 0.5
        left = chance.randint(2, 10)
        top = chance.randint(2, 10)
        box = (left, top, left + chance.randint(10, 18), top + chance.randint(10, 18))
        shape = draw.ellipse if is_round else draw.rectangle
        shape(box, outline="black")
        shape(
            (box[0] + SIZE, box[1], box[2] + SIZE, box[3]),
            fill="crimson" if is_round else "royalblue",
        )
        pair.save(folder / f"{number:03d}.png")


def main() -> None:
    config: Config = load_config("config.yaml")
    root = Path(config.dataloader.dataroot)
    for seed, (split, count) in enumerate({"train": 64, "val": 8, "test": 8}.items()):
        if not (root / split).is_dir():
            write_pairs(root / split, count, seed)

    trainer = Pix2pixTrainer(config)
    for epoch in range(trainer.remaining_epochs()):
        trainer.train_paired(epoch, callback_kwargs={"on_epoch_start": {"print_train_start": True}})
        trainer.print_end_of_epoch()
    trainer.save_checkpoint()
    trainer.save_examples()
    print(f"Inputs, generated images and targets: {trainer.experiment_dir}/examples")


if __name__ == "__main__":
    main()
