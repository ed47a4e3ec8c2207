"""Pix2pix on real photographs: what did the photograph look like whose edges these are?

python examples/pix2pix/train.py                      # about two minutes of one processor core
python examples/pix2pix/train.py --epochs 1 --limit 4  # a quick try
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from photographs import write_pairs
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from loopwright.interfaces.adversarial import Pix2pixTrainer, Tester, load_config

GAP = 2  # pixels between the patches of a picture


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/pix2pix"))
    parser.add_argument("--epochs", type=int, help="how many, instead of what the config says")
    parser.add_argument(
        "--limit", type=int, help="patches of each photograph and split, for a quick try"
    )
    options = parser.parse_args()

    root = options.out / "data"
    counts = write_pairs(root, limit=options.limit)
    print(f"Patches: {counts['train']} to train on, {counts['test']} held out", flush=True)

    config = load_config(Path(__file__).with_name("config.yaml"))
    config.dataloader.dataroot, config.common.output_directory = str(root), str(options.out)
    trainer = Pix2pixTrainer(config)
    held_out = trainer.build_dataloader("test")
    untrained = (
        mean_l1(trainer.gen, held_out, trainer.device) if trainer.loaded_epoch == 0 else None
    )
    for epoch in range(trainer.remaining_epochs(options.epochs)):
        trainer.train_paired(epoch, callback_kwargs={"on_epoch_start": {"print_train_start": True}})
        trainer.save_checkpoint()
        trainer.save_examples()
        trainer.print_end_of_epoch()

    results = Tester(experiment_dir=trainer.experiment_dir).run_test()
    trained = sum(result.losses["L1"] for result in results) / len(results)
    print(f"L1 on held-out patches: trained generator {trained:.3f}")
    if untrained is not None:
        print(f"                        untrained generator {untrained:.3f}")
    print(f"                        mean image {mean_image_l1(trainer.train_loader, held_out):.3f}")
    picture = triplets(trainer.gen, held_out, trainer.device)
    picture.save(options.out / "triplets.jpg")
    print(f"Edges, output and photograph of some of them: {options.out / 'triplets.jpg'}")


@torch.no_grad()
def mean_l1(network: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]], device: str) -> float:
    """The mean absolute error of a pixel, whose values are -1 to 1."""
    was_training = network.training
    network.eval()
    errors = [(network(x.to(device)).cpu() - y).abs().mean((1, 2, 3)) for x, y in loader]
    network.train(was_training)
    return torch.cat(errors).mean().item()


def mean_image_l1(
    training: DataLoader[tuple[Tensor, Tensor]], loader: DataLoader[tuple[Tensor, Tensor]]
) -> float:
    """The error of answering with the mean of all photographs that were trained on."""
    mean = torch.cat([y for _, y in training]).mean(0, keepdim=True)
    return torch.cat([(y - mean).abs().mean((1, 2, 3)) for _, y in loader]).mean().item()


@torch.no_grad()
def triplets(
    network: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]], device: str
) -> Image.Image:
    """Held-out patches, evenly chosen: edges, what the generator makes of them, and the
    photograph; four triplets in each of six rows, with white between them."""
    dataset = loader.dataset
    chosen = torch.linspace(0, len(dataset) - 1, 24).long().tolist()
    images = []
    was_training = network.training
    network.eval()
    for index in chosen:
        x, y = dataset[index]
        images += [x, network(x.unsqueeze(0).to(device))[0].cpu(), y]
    network.train(was_training)
    size = images[0].shape[-1]
    picture = Image.new("RGB", (12 * (size + GAP) - GAP, 6 * (size + GAP) - GAP), "white")
    for number, image in enumerate(images):
        pixels = image.add(1).mul(127.5).round().byte().permute(1, 2, 0).numpy()
        row, column = divmod(number, 12)
        picture.paste(Image.fromarray(pixels), (column * (size + GAP), row * (size + GAP)))
    return picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST)


if __name__ == "__main__":
    main()
