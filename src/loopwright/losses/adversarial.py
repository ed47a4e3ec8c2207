"""What a discriminator's verdict costs."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ConfigurationError


class GANLoss(nn.Module):
    """How far a discriminator's prediction is from the truth, or from what the generator wants it to be.

    "bce" takes the prediction as a logit (binary cross-entropy), "lsgan" as a number (least squares). The target is
    True for real, False for generated, or a tensor of the prediction's shape, for soft labels.
    """

    def __init__(self, mode: Literal["bce", "lsgan"] = "bce") -> None:
        super().__init__()
        if mode not in ("bce", "lsgan"):
            raise ConfigurationError(f"GANLoss({mode!r}): use 'bce' or 'lsgan'.")
        self.mode = mode

    def forward(self, prediction: Tensor, target: bool | Tensor) -> Tensor:
        if not isinstance(target, Tensor):
            target = prediction.new_full(prediction.shape, float(target))
        if self.mode == "bce":
            return F.binary_cross_entropy_with_logits(prediction, target)
        return F.mse_loss(prediction, target)
