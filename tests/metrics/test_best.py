"""The notion of best: how values compare, what names of metrics say, and which metric stands for a
run."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from loopwright import ConfigurationError
from loopwright.metrics.best import (
    LARGER,
    SMALLER,
    UNCLEAR,
    BestSoFar,
    Directions,
    WatchedMetric,
    direction_of,
    headline,
    is_better,
    ranked,
    settle_all,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "callbacks.md"

DOWN = """
loss eval_loss val_loss test_loss train_loss val/loss test.loss eval-loss valLoss ema_loss eval_ema_loss loss_0 loss_12
loss0 D_loss loss_D loss_G_total dice_loss iou_loss accuracy_loss reward_loss eval_loss_epoch CrossEntropyLoss trainloss
error test_error error_rate err meansquarederror mean_squared_error MeanAbsoluteError eval_mean_squared_log_error
mse rmse eval_rmse valRMSE rmse_temperature mae mape test_mae nll eval_nll bce ce cross_entropy CrossEntropy
binary_cross_entropy kl kl_divergence KLDivergence perplexity eval_perplexity ppl bpc bpb bits_per_byte wer test_wer cer
WordErrorRate fid fid_score FrechetInceptionDistance kid lpips distance edit_distance hausdorff_distance dist regret
latency inference_time epoch_seconds seconds_per_step peak_memory_mb false_positive_rate fpr false_negatives
negative_log_likelihood neg_log_likelihood negative_elbo brier_score best_eval_loss loss_at_best_eval_accuracy
expected_calibration_error G_L1 cost penalty inaccuracy max_error hinge_loss
"""
UP = """
accuracy eval_accuracy test_acc valAcc top1 top5 top_5_accuracy top1acc multiclassaccuracy_low f1 F1Score f1_macro
BinaryF1Score fbeta precision average_precision AveragePrecision recall recall@10 eval_recall_at_10 auc roc_auc AUROC
eval_auroc ap mAP mAP50 mAP@0.5:0.95 map_50 iou IoU mIoU MeanIoU mean_io_u dice DiceScore jaccard JaccardIndex r2
R2Score r2_score explained_variance bleu BLEU-4 rouge rouge1 rougeL chrf psnr PeakSignalNoiseRatio
peak_signal_noise_ratio ssim ms_ssim mcc matthews_corr_coef kappa correlation pearson spearman ndcg ndcg@10 mrr hit_rate
hits@10 reward mean_reward episode_return return score test_score likelihood log_likelihood elbo throughput
samples_per_second tokens_per_sec true_positive_rate true_negatives negative_predictive_value specificity
cosine_similarity exact_match success_rate neg_mean_squared_error best_eval_accuracy accuracy_at_best_eval_loss
"""
UNKNOWN = """
foo D_real lr learning_rate grad_norm gradient_norm entropy loss_accuracy error_accuracy accuracy_gap loss_scale
loss_weight loss_ratio accuracy_std neg_loss negative_accuracy one_minus_accuracy time_to_accuracy loss_norm
accuracy_drop rate epoch step num_samples temperature x eval test_ 42 likelihood_ratio loss_reduction
"""


@pytest.mark.parametrize("name", DOWN.split())
def test_smaller_values_are_better(name):
    assert direction_of(name) == "min"


@pytest.mark.parametrize("name", UP.split())
def test_larger_values_are_better(name):
    assert direction_of(name) == "max"


@pytest.mark.parametrize("name", [*UNKNOWN.split(), ""])
def test_a_name_that_does_not_say_it_is_not_guessed(name):
    assert direction_of(name) is None


@pytest.mark.parametrize("entry", sorted(SMALLER | LARGER))
def test_every_entry_of_the_table_is_found_under_a_prefix_and_before_a_number(entry):
    mode = "min" if entry in SMALLER else "max"
    assert (
        direction_of(entry)
        == direction_of(f"eval_{entry}")
        == direction_of(f"test/{entry}_3")
        == mode
    )


def test_the_documentation_shows_the_whole_table():
    text = DOCUMENT.read_text(encoding="utf-8")
    for title, entries in (
        ("Smaller is better", SMALLER),
        ("Larger is better", LARGER),
        ("Says nothing", UNCLEAR),
    ):
        shown = re.search(rf"\*\*{title}\.\*\* (.+)", text)
        assert shown is not None, f"docs/callbacks.md has no line that begins with **{title}.**"
        expected = ", ".join(f"`{entry}`" for entry in sorted(entries))
        assert shown[1] == expected, (
            f"The line of docs/callbacks.md should be:\n**{title}.** {expected}"
        )


def known(*losses: str, **given: str) -> Directions:
    directions = Directions()
    directions.losses |= set(losses)
    directions.given |= given
    return directions


@pytest.mark.parametrize(
    "name", ["foo", "eval_foo", "eval_ema_foo", "holdout_foo", "eval_slow_foo", "best_eval_foo"]
)
def test_what_steps_return_as_a_loss_is_minimised_under_any_prefix(name):
    assert known("foo").of(name) == "min"
    assert known("other").of(name) is None


def test_one_mode_that_was_given_is_enough_for_all_who_watch_the_metric():
    silent, given = (
        WatchedMetric("foo", "auto", "BestModel"),
        WatchedMetric("foo", "min", "EarlyStopping"),
    )
    settle_all([silent, given], directions := Directions())
    assert (silent.mode, given.mode, directions.of("foo")) == ("min", "min", "min")


def test_opposite_modes_for_one_metric_are_refused(mistake):
    watched = [
        WatchedMetric("eval_foo", "min", "EarlyStopping"),
        WatchedMetric("eval_foo", "max", "BestModel"),
    ]
    with mistake("Up or down", '`EarlyStopping("eval_foo", mode="min")` beside `BestModel("eval_foo", mode="max")`',
                 ConfigurationError, match="the opposite"):  # fmt: skip
        settle_all(watched, Directions())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        (["loss"], "loss"),
        (["accuracy", "loss"], "loss"),
        (["loss", "eval_accuracy"], "eval_accuracy"),
        (["loss", "eval_accuracy", "eval_loss"], "eval_loss"),
        (["loss", "accuracy", "test_loss"], "test_loss"),
        (["loss", "val_accuracy"], "val_accuracy"),
        (["train/loss", "val/acc", "val/loss"], "val/loss"),
        (["loss", "valLoss"], "valLoss"),
        (["loss", "validation_f1"], "validation_f1"),
        (["train_loss", "eval_ema_loss", "eval_loss"], "eval_loss"),
        (["loss", "eval_foo", "eval_rmse"], "eval_rmse"),
        (["lr", "epoch_time", "accuracy"], "accuracy"),
        (["D_real", "D_fake", "G_GAN", "G_L1"], "G_L1"),
        (["D_real", "D_fake", "G_GAN"], "G_GAN"),
        (["loss_D", "loss_G"], "loss_G"),
        (["D_real", "G_L1", "total"], "total"),
        (["critic_loss", "generator_loss"], "generator_loss"),
        (["best_eval_loss", "eval_loss"], "eval_loss"),
        (["eval_loss_at_best_eval_accuracy", "eval_accuracy"], "eval_accuracy"),
        (["D_real", "D_fake"], "D_real"),
    ],
)
def test_an_evaluation_comes_first_then_a_loss_then_the_first(names, expected):
    assert headline(names) == expected


def test_a_data_set_that_a_callback_evaluates_is_an_evaluation():
    assert headline(["loss", "night_loss", "night_accuracy"], ["night"]) == "night_loss"
    assert headline(["loss", "night_loss"]) == "loss"


@pytest.mark.parametrize(
    ("value", "best", "mode", "min_delta", "expected"),
    [
        (1.0, 2.0, "min", 0.0, True),
        (2.0, 1.0, "min", 0.0, False),
        (2.0, 1.0, "max", 0.0, True),
        (1.0, 1.0, "min", 0.0, False),
        (1.0, 1.0, "max", 0.0, False),
        (1.5, 2.0, "min", 0.5, False),
        (1.25, 2.0, "min", 0.5, True),
        (math.nan, 2.0, "min", 0.0, False),
        (math.nan, None, "max", 0.0, False),
        (math.nan, math.nan, "max", 0.0, False),
        (math.inf, math.nan, "min", 9.0, True),
        (math.inf, None, "min", 9.0, True),
        (math.inf, math.inf, "max", 0.0, False),
        (-math.inf, 0.0, "min", 9.0, True),
        (5e-324, 0.0, "max", 0.0, True),
    ],
)
def test_a_value_is_better_by_more_than_min_delta_and_never_if_it_is_nan(
    value, best, mode, min_delta, expected
):
    assert is_better(value, best, mode, min_delta) is expected


def test_nan_and_missing_values_rank_last_and_equal_ones_keep_their_order():
    values = [
        ("a", 1.0),
        ("b", math.nan),
        ("c", -math.inf),
        ("d", None),
        ("e", 1.0),
        ("f", math.inf),
    ]
    order = {
        mode: "".join(name for name, _ in ranked(values, lambda pair: pair[1], mode))
        for mode in ("min", "max")
    }
    assert order == {"min": "caefbd", "max": "faecbd"}


def test_values_that_are_no_improvement_are_counted_until_the_next_one():
    so_far, counts = BestSoFar(), []
    for at, value in enumerate([math.nan, 3.0, 2.75, 4.0, 2.0], start=1):
        so_far = so_far.after(value, at, "min", min_delta=0.5)
        counts.append(so_far.num_bad)
    assert counts == [1, 0, 1, 2, 0]
    assert so_far == BestSoFar(2.0, 5, num_bad=0, most_bad=2)
