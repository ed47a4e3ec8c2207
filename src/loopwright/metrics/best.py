"""The one notion of best: how two values compare, which metric a run goes by, and what names of
metrics say of both.

Whatever looks for the best (callbacks, kept models, commands, sweeps, interfaces) calls this
module. It imports no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, TypeVar

from ..errors import ConfigurationError
from ..text import counted

Mode: TypeAlias = Literal["min", "max"]
T = TypeVar("T")


def sort_key(value: float | None, mode: Mode) -> tuple[bool, float]:
    """Sort key that puts better values first: the rule that all functions of this module compare
    values by.

    Infinities rank as numbers. NaN, and None for a value that was never measured, come after every
    number.
    """
    if value is None or math.isnan(value):
        return True, 0.0
    return False, value if mode == "min" else -value


def is_better(value: float, best: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Whether a value improves on the best one so far by more than `min_delta`.

    NaN is never better, and any number is better than NaN or None. Of equal values the earlier one
    stays the best.
    """
    (is_missing, cost), (was_missing, lowest) = sort_key(value, mode), sort_key(best, mode)
    if is_missing or was_missing:
        return was_missing and not is_missing
    return lowest - cost > min_delta


def ranked(
    items: Iterable[T], value_of: Callable[[T], float | None], mode: Mode | Callable[[T], Mode]
) -> list[T]:
    """Items sorted by their values, best first; equal ones keep their order. The mode may depend on
    the item."""
    return sorted(
        items, key=lambda item: sort_key(value_of(item), mode(item) if callable(mode) else mode)
    )


def first_best(items: Iterable[T], value_of: Callable[[T], float | None], mode: Mode) -> T | None:
    """The first item with the best value; None where no item has a number."""
    found = next(iter(ranked(items, value_of, mode)), None)
    return None if found is None or sort_key(value_of(found), mode)[0] else found


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The best value of a metric, when it was measured, and how long nothing was better.

    Args:
        value: The best value; None before there is one.
        at: The epoch, update or sample of the best value.
        num_bad: How many values in a row have not improved on it.
        most_bad: The longest such row so far.
    """

    value: float | None = None
    at: int = 0
    num_bad: int = 0
    most_bad: int = 0

    def after(
        self,
        value: float,
        at: int,
        mode: Mode,
        min_delta: float = 0.0,
        *,
        takes_first: bool = False,
    ) -> BestSoFar:
        """The state after one more value; an improvement has `num_bad` 0.

        Args:
            value: The value; NaN is no improvement.
            at: The epoch, update or sample of the value.
            mode: Which values are better.
            min_delta: An improvement is better by more than this.
            takes_first: The first value is an improvement even if it is NaN, for whoever has to
                keep something.
        """
        is_first = takes_first and self.value is None
        if is_first or is_better(value, self.value, mode, min_delta):
            return BestSoFar(value, at, 0, self.most_bad)
        num_bad = self.num_bad + 1
        return BestSoFar(self.value, self.at, num_bad, max(num_bad, self.most_bad))


# What names of metrics say about their direction

_SMALLER = """
loss losses logloss error errors err cost penalty risk regret residual surprisal violation violations
inaccuracy imprecision
mse rmse nrmse msle rmsle rmspe mae mape smape mase wape medae l1 l2 huber hinge brier ece eer epe ade fde mpjpe
nll bce ce cross_entropy crossentropy xent kl kld kldiv kldivergence jsd div divergence mmd emd
perplexity ppl bpc bpb bpd bits_per_byte bits_per_char bits_per_dim bits_per_token wer cer ter mer
fid kid fvd fad cmmd lpips dists niqe brisque distance dist discrepancy hausdorff chamfer wasserstein levenshtein
hamming inertia davies_bouldin fpr fnr fdr false_positive_rate false_negative_rate false_discovery_rate
false_alarm_rate false_positives false_negatives false_alarms wrong incorrect misclassified mistakes misses
failure failures failed negative_log_likelihood neg_log_likelihood negative_loglikelihood neg_loglikelihood
negative_elbo neg_elbo latency duration time seconds sec secs minutes hours ms memory
"""
_LARGER = """
accuracy acc top correct f1 fbeta precision recall sensitivity specificity tpr tnr ppv npv true_positive_rate
true_negative_rate positive_predictive_value negative_predictive_value true_positives true_negatives
auc auroc auprc rocauc prauc roc ap map mar iou miou giou io_u dice jaccard tversky pck pckh oks pq mota motp hota
idf1 r2 rsquared r_squared explained_variance concordance cindex c_index kappa mcc matthews correlation corr
corr_coef correlation_coefficient pearson spearman kendall pcc ccc plcc srcc similarity agreement
bleu sacrebleu gleu rouge rougel rougelsum chrf meteor cider spice bertscore comet exact_match pass
psnr ssim msssim ms_ssim snr sdr sisdr sisnr pesq stoi mos signal_noise_ratio signal_to_noise_ratio
signal_distortion_ratio ndcg dcg mrr hit hits success win_rate solve_rate reward rewards return returns fitness
quality utility elo score scores likelihood loglikelihood loglik elbo nmi ari ami purity homogeneity completeness
silhouette calinski_harabasz throughput per_second per_sec fps speed speedup mfu
neg_mean_squared_error neg_root_mean_squared_error neg_mean_absolute_error neg_median_absolute_error
neg_mean_squared_log_error neg_mean_absolute_percentage_error neg_max_error neg_log_loss neg_brier_score
"""
_UNCLEAR = """
neg negative minus inverse inv reciprocal gap drop diff difference delta change ratio weight weights scale std stdev
variance var norm grad gradient reduction increase decrease improvement gain coef coefficient threshold margin survival
"""
SMALLER = frozenset(_SMALLER.split())
LARGER = frozenset(_LARGER.split())
# with one of these in a name, its other words do not say which way is better
UNCLEAR = frozenset(_UNCLEAR.split())
ENDINGS = ("accuracy", "precision", "recall", "loss", "error")  # also without a gap before them
# they say nothing beside another known word: a `fid_score` is a FID
WEAK = frozenset(("score", "scores"))

EVALUATION = (
    "eval",
    "evaluation",
    "val",
    "valid",
    "validation",
    "test",
    "dev",
    "holdout",
    "heldout",
)
# whose metrics are better in the same direction
PREFIXES = (
    *EVALUATION,
    "train",
    "training",
    "ema",
    "online",
)
LONGEST = max(entry.count("_") + 1 for entry in SMALLER | LARGER | UNCLEAR)

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")


@lru_cache(maxsize=4096)
def direction_of(metric: str) -> Mode | None:
    """Whether smaller or larger values of a metric are better, by its name; None where the name
    does not say it.

    The last known word decides, so a `dice_loss` is a loss; a name such as `loss_accuracy` is
    ambiguous.
    """
    found = list(_entries(words_of(plain_name(metric))))
    if any(entry in UNCLEAR for entry in found):
        return None
    found = [entry for entry in found if entry not in WEAK] or found
    modes: list[Mode] = ["min" if entry in SMALLER else "max" for entry in found]
    if not modes or (modes[-1] == "max" and "min" in modes):
        return None
    return modes[-1]


def words_of(metric: str) -> list[str]:
    """The words of a name in small letters: split at everything but letters and digits, and at
    capitals."""
    words: list[str] = []
    for token in re.findall(r"[A-Za-z0-9]+", metric):
        words += (
            [token.lower()]
            if _known(token.lower())
            else [part.lower() for part in _PARTS.findall(token)]
        )
    return words


def plain_name(metric: str) -> str:
    """The metric itself, of one that `BestMetric` adds: `best_<metric>` or
    `<metric>_at_best_<other>`."""
    return metric.partition("_at_best_")[0].removeprefix("best_")


def _entries(words: list[str]) -> Iterator[str]:
    """The entries of the tables that a name consists of, the longest first where several fit."""
    at = 0
    while at < len(words):
        for length in range(min(LONGEST, len(words) - at), 0, -1):
            text = "_".join(words[at : at + length])
            entry = _known(text) or (_ending(text) if length == 1 else None)
            if entry is not None:
                yield entry
                break
        at += length


def _known(text: str) -> str | None:
    """The entry that a text is, with or without a number at its end."""
    for entry in (text, text.rstrip("0123456789")):
        if entry in SMALLER or entry in LARGER or entry in UNCLEAR:
            return entry
    return None


def _ending(word: str) -> str | None:
    """The entry that a word without any gaps ends in, as in `multiclassaccuracy`."""
    return next((entry for entry in ENDINGS if word.rstrip("0123456789").endswith(entry)), None)


class Directions:
    """The modes of the metrics of a run: as callbacks were given them, then losses of steps, then
    the names."""

    def __init__(self) -> None:
        self.given: dict[str, Mode] = {}  # of the metrics that callbacks watch
        self.watched: list[str] = []  # those metrics in the order of the callbacks
        self.losses: set[str] = set()  # names in steps, to which evaluations add prefixes
        # prefixes of metrics that callbacks measure in evaluations of their own
        self.eval_keys: set[str] = set()

    def of(self, metric: str) -> Mode | None:
        """The mode of a metric; None where it is not known, or where its name contradicts the
        step's losses."""
        name = plain_name(metric)
        if metric in self.given or name in self.given:
            return self.given.get(metric) or self.given[name]
        if self._is_loss(name, (*PREFIXES, *self.eval_keys)):
            return "min"
        by_name = direction_of(name)
        if any(name.endswith((f"_{loss}", f"/{loss}")) for loss in self.losses):
            return "min" if by_name != "max" else None
        return by_name

    def _is_loss(self, name: str, prefixes: Collection[str]) -> bool:
        if name in self.losses:
            return True
        rests = [
            name[len(p) + 1 :] for p in prefixes if name.startswith((f"{p}_", f"{p}/", f"{p}."))
        ]
        return any(self._is_loss(rest, prefixes) for rest in rests if rest)


class WatchedMetric:
    """A metric whose best value is looked for: its direction, and the best value so far.

    Callbacks that keep the best or stop a run hold one, and save what of `so_far` they need. With
    mode "auto", the mode is known for certain once the metric is settled (`settle_all`).

    Args:
        name: The metric.
        given: The user's argument: "min", "max" or "auto".
        owner: The name of the callback in error messages.
        argument: The name of the callback's argument for the mode in error messages.
        choices: What the user writes there for "min" and for "max", in error messages.
        min_delta: An improvement is better than the best value so far by more than this.
        takes_first: The first value counts as the best even if it is NaN.

    >>> watched = WatchedMetric("eval_loss", "auto", "EarlyStopping", min_delta=0.1)
    >>> [watched.add(value, at=epoch) for epoch, value in enumerate([0.5, 0.45, 0.3, 0.3], 1)]
    [True, False, True, False]
    >>> watched.so_far
    BestSoFar(value=0.3, at=3, num_bad=1, most_bad=1)
    >>> watched.standstill(now=0.3)
    'eval_loss has not improved for 1 epoch (now 0.3, best 0.3 in epoch 3)'
    """

    def __init__(
        self,
        name: str,
        given: str,
        owner: str,
        argument: str = "mode",
        *,
        choices: tuple[str, str] = ('"min"', '"max"'),
        min_delta: float = 0.0,
        takes_first: bool = False,
    ) -> None:
        if not isinstance(name, str):
            raise ConfigurationError(
                "metric-name",
                f"{owner} watches {name!r}, which is not the name of a metric: pass a name such "
                "as 'eval_loss', and pass other arguments by name.",
            )
        if given not in ("auto", "min", "max"):
            raise ConfigurationError(
                "metric-mode", f"{owner}({argument}={given!r}): use 'min', 'max' or 'auto'."
            )
        self.name = name
        self.given = given
        self.owner = owner
        self.argument = argument
        self.choices = choices
        self.min_delta = min_delta
        self.takes_first = takes_first
        self.so_far = BestSoFar()
        self._mode: Mode | None = "min" if given == "min" else "max" if given == "max" else None

    def add(self, value: float, at: int = 0) -> bool:
        """Take one more value, measured at an epoch, update or sample; whether it is the best."""
        self.so_far = self.so_far.after(
            value, at, self.mode, self.min_delta, takes_first=self.takes_first
        )
        return self.so_far.num_bad == 0

    def standstill(self, now: float, unit: str = "epoch", n: int = 1) -> str:
        """That the metric has not improved, as the reason of a stop.

        Args:
            now: The latest value.
            unit: What `at` counts.
            n: How many of them lie between two values.
        """
        best = self.so_far
        time = counted(best.num_bad * n, unit)
        found = "never a number"
        if best.value is not None:
            found = f"best {best.value:.6g} in {unit} {best.at}"
        return f"{self.name} has not improved for {time} (now {now:.6g}, {found})"

    @property
    def is_given(self) -> bool:
        """Whether the user gave the mode."""
        return self.given != "auto"

    @property
    def mode(self) -> Mode:
        mode = self._mode or direction_of(self.name)
        if mode is None:
            raise self._unknown(
                "this name does not say whether smaller or larger values are better"
            )
        return mode

    def settle(self, directions: Directions) -> None:
        """Take the mode that the run knows; refuse none, and the opposite of another callback's."""
        if not self.is_given:
            self._mode = directions.of(self.name)
            if self._mode is None and direction_of(self.name) is not None:
                raise self._unknown(
                    "this name ends like a loss of this run but also says that larger values are "
                    "better"
                )
        if directions.given.setdefault(self.name, self.mode) != self.mode:
            raise ConfigurationError(
                "opposite-modes",
                f"{self.owner} has {self.argument}={self.mode!r} for {self.name!r}, but another "
                "callback has the opposite: one of them would take the worst value for the best. "
                "Use the same mode for both.",
            )

    def _unknown(self, why: str) -> ConfigurationError:
        smaller, larger = (f"{self.argument}={choice}" for choice in self.choices)
        return ConfigurationError(
            "unknown-direction",
            f"{self.owner} watches {self.name!r}, and {why}: pass {smaller} or {larger}.",
        )


def settle_all(watched: Iterable[WatchedMetric], directions: Directions) -> None:
    """Settle the watched metrics of one run; a mode that was given for one callback holds for all
    of the metric."""
    metrics = list(watched)
    directions.given = {}
    directions.watched = list(dict.fromkeys(metric.name for metric in metrics))
    for metric in sorted(metrics, key=lambda metric: not metric.is_given):
        metric.settle(directions)


# Which metric a run goes by

# that leave a loss the loss
ASIDE = frozenset(("train", "training", "epoch", "mean", "avg", "average"))
TOTAL = frozenset(("total", "sum", "overall"))
GENERATOR = frozenset(("g", "gen", "generator"))
ADVERSARIAL = frozenset(("gan", "adv", "adversarial"))  # how well a discriminator is deceived
DISCRIMINATOR = frozenset(("d", "dis", "disc", "discriminator", "critic"))
MACHINE = frozenset(
    ("time", "seconds", "sec", "memory", "throughput", "fps", "latency", "duration", "speed", "lr")
)


def headline(metrics: Iterable[str], eval_keys: Collection[str] = ()) -> str | None:
    """The metric to go by: of an evaluation before training, a loss before others, the first of
    equals.

    Of losses, `loss` itself comes first, then a total, then a generator's other than its
    adversarial one; a discriminator's come last, since they do not say how good a model is.
    `eval_keys` are the prefixes of metrics that callbacks measure on data of their own.
    """
    return next(iter(by_importance(metrics, eval_keys)), None)


def by_importance(metrics: Iterable[str], eval_keys: Collection[str] = ()) -> list[str]:
    """Metrics in the order in which a run would go by them (see `headline`)."""
    return sorted(
        metrics, key=lambda name: (not is_evaluation(name, eval_keys), _rank(name, eval_keys))
    )


def is_evaluation(metric: str, eval_keys: Collection[str] = ()) -> bool:
    """Whether a metric comes from an evaluation, by what its name begins with."""
    words = words_of(metric)
    return bool(words) and (
        words[0] in EVALUATION or any(metric.startswith((f"{k}_", f"{k}/")) for k in eval_keys)
    )


def _rank(metric: str, eval_keys: Collection[str]) -> int:
    own = next(
        (metric[len(key) + 1 :] for key in eval_keys if metric.startswith((f"{key}_", f"{key}/"))),
        metric,
    )
    words = [word for word in words_of(own) if word not in ASIDE]
    words = words[1:] if words[:1] and words[0] in EVALUATION else words
    known = set(words)
    if words[:1] == ["best"] or "_at_best_" in metric:
        return 8
    if MACHINE & known:
        return 7
    if words == ["loss"]:
        return 0
    if known & TOTAL:
        return 1
    if known & DISCRIMINATOR:
        return 5
    if known & GENERATOR:
        return 3 if known & ADVERSARIAL else 2
    if known & {"loss", "losses"}:
        return 3
    return 4 if direction_of(own) is not None else 6
