"""What `loss_compute` may return, and what becomes of it."""

import pytest
import torch

from loopwright.interfaces.configured.core import result_of

from .parts import CustomTrainer, Seen, build_trainer

one, two = torch.tensor(1.0), torch.tensor(2.5)


def test_a_dict_gives_named_losses_and_their_sum():
    result = result_of({"mse": one, "mae": two})
    assert result.total_loss.item() == 3.5
    assert result.losses_to_log == {"mse": one, "mae": two}
    assert result.additional_outputs is None


@pytest.mark.parametrize(("kind", "count"), [(list, 1), (list, 3), (tuple, 2), (tuple, 3)])
def test_a_list_or_tuple_of_any_length_gives_numbered_losses(kind, count):
    result = result_of(kind([one, two, one][:count]))
    assert list(result.losses_to_log) == ["loss_0", "loss_1", "loss_2"][:count]
    assert result.total_loss.item() == [1.0, 3.5, 4.5][count - 1]


@pytest.mark.parametrize(
    ("losses", "names"),
    [({"mse": one}, ["mse"]), (one, ["loss"]), ([one], ["loss_0"]), ((one, two), None)],
)
def test_additional_outputs_may_come_with_losses_of_every_form(losses, names):
    result = result_of((losses, {"logits": two}))
    assert list(result.losses_to_log) == (names or ["loss_0", "loss_1"])
    assert result.additional_outputs == {"logits": two}


def test_a_loss_that_is_called_loss_is_not_taken_for_the_sum():
    class Named(CustomTrainer):
        def loss_compute(self, forward_output, targets):
            losses = super().loss_compute(forward_output, targets)
            return {"loss": losses["mse"], "other": losses["mae"]}

    row = build_trainer(Named).train().epochs[0]
    assert row["loss"] == pytest.approx(row["loss/loss"] + row["other"])
    assert row["loss"] == build_trainer().train().epochs[0]["loss"]


def test_additional_outputs_reach_the_callbacks():
    class Telling(CustomTrainer):
        def loss_compute(self, forward_output, targets):
            return super().loss_compute(forward_output, targets), {"prediction": forward_output}

    seen = Seen()
    build_trainer(Telling, callbacks=[seen]).train()
    assert [result.outputs["prediction"].shape for result in seen.results] == [(8,)] * 8
