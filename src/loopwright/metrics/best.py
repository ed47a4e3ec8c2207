"""Which values of a metric are better: the one table of names, and what a run knows beyond it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Literal, TypeAlias

from ..errors import ConfigurationError

Mode: TypeAlias = Literal["min", "max"]

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
SMALLER, LARGER = frozenset(_SMALLER.split()), frozenset(_LARGER.split())
UNCLEAR = frozenset(_UNCLEAR.split())  # with one of these in a name, its other words do not say which way is better
ENDINGS = ("accuracy", "precision", "recall", "loss", "error")  # also without a gap before them
WEAK = frozenset(("score", "scores"))  # they say nothing beside another known word: a `fid_score` is a FID

EVALUATION = ("eval", "evaluation", "val", "valid", "validation", "test", "dev", "holdout", "heldout")
PREFIXES = (*EVALUATION, "train", "training", "ema", "online")  # whose metrics are better in the same direction
LONGEST = max(entry.count("_") + 1 for entry in SMALLER | LARGER | UNCLEAR)

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*|\d+")


@lru_cache(maxsize=4096)
def direction_of(metric: str) -> Mode | None:
    """Whether smaller or larger values are better, as far as the name says; None where it does not say it.

    The last known word decides, so a `dice_loss` is a loss; a name such as `loss_accuracy` says two things.
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
    """The words of a name in small letters: split at everything but letters and digits, and at capitals."""
    words: list[str] = []
    for token in re.findall(r"[A-Za-z0-9]+", metric):
        words += [token.lower()] if _known(token.lower()) else [part.lower() for part in _PARTS.findall(token)]
    return words


def plain_name(metric: str) -> str:
    """The metric itself, of one that `BestMetric` adds: `best_<metric>` or `<metric>_at_best_<other>`."""
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
    """Which values of the metrics of a run are better: what was said, what steps returned as losses, and the table."""

    def __init__(self) -> None:
        self.said: dict[str, Mode] = {}  # by callbacks that were given a mode
        self.losses: set[str] = set()  # names in steps, to which evaluations add prefixes
        self.eval_keys: set[str] = set()  # what names begin with that come from evaluations of callbacks' own

    def of(self, metric: str) -> Mode | None:
        """None where it is not known; also where the name says one thing and the step another."""
        name = plain_name(metric)
        if metric in self.said or name in self.said:
            return self.said.get(metric) or self.said[name]
        if self._is_loss(name, (*PREFIXES, *self.eval_keys)):
            return "min"
        by_name = direction_of(name)
        if any(name.endswith((f"_{loss}", f"/{loss}")) for loss in self.losses):
            return "min" if by_name != "max" else None
        return by_name

    def _is_loss(self, name: str, prefixes: Collection[str]) -> bool:
        if name in self.losses:
            return True
        rests = [name[len(p) + 1 :] for p in prefixes if name.startswith((f"{p}_", f"{p}/", f"{p}."))]
        return any(self._is_loss(rest, prefixes) for rest in rests if rest)


class WatchedMetric:
    """A metric of which a callback looks for the best values; its `mode` is known once it is settled.

    `given` is what the user said: "min", "max" or "auto". `owner` and `argument` are the names of the callback and of
    its argument in messages.
    """

    def __init__(self, name: str, given: str, owner: str, argument: str = "mode") -> None:
        if not isinstance(name, str):
            raise ConfigurationError(
                f"{owner} watches {name!r}, which is no name of a metric: say which one, such as 'eval_loss', and "
                "give other arguments by name."
            )
        if given not in ("auto", "min", "max"):
            raise ConfigurationError(f"{owner}({argument}={given!r}): use 'min', 'max' or 'auto'.")
        self.name, self.given, self.owner, self.argument = name, given, owner, argument
        self._mode: Mode | None = "min" if given == "min" else "max" if given == "max" else None

    @property
    def is_given(self) -> bool:
        """Whether the user said which values are better."""
        return self.given != "auto"

    @property
    def mode(self) -> Mode:
        mode = self._mode or direction_of(self.name)
        if mode is None:
            raise ConfigurationError(
                f"{self.owner} watches {self.name!r}, a name that does not say whether smaller or larger values are "
                f'better: say {self.argument}="min" or {self.argument}="max".'
            )
        return mode

    def settle(self, directions: Directions) -> None:
        """Find out which values are better in a run; an error where it is not known."""
        if not self.is_given:
            self._mode = directions.of(self.name)
            if self._mode is None and direction_of(self.name) is not None:
                raise ConfigurationError(
                    f"{self.owner} watches {self.name!r}, which ends like a loss of this run, while its name says that "
                    f'larger values are better: say {self.argument}="min" or {self.argument}="max".'
                )
        if directions.said.setdefault(self.name, self.mode) != self.mode:
            raise ConfigurationError(
                f"{self.owner} has {self.argument}={self.mode!r} for {self.name!r}, and another callback the opposite: "
                "one of them would take the worst for the best. Say the same for both."
            )


def settle_all(watched: Iterable[WatchedMetric], directions: Directions) -> None:
    """Settle what is watched in one run: what users said comes first, for those who said nothing too."""
    directions.said = {}
    for metric in sorted(watched, key=lambda metric: not metric.is_given):
        metric.settle(directions)


ASIDE = frozenset(("train", "training", "epoch", "mean", "avg", "average"))  # that leave a loss the loss
TOTAL = frozenset(("total", "sum", "overall"))
GENERATOR = frozenset(("g", "gen", "generator"))
ADVERSARIAL = frozenset(("gan", "adv", "adversarial"))  # how well a discriminator is deceived
DISCRIMINATOR = frozenset(("d", "dis", "disc", "discriminator", "critic"))
MACHINE = frozenset(("time", "seconds", "sec", "memory", "throughput", "fps", "latency", "duration", "speed", "lr"))


def headline(metrics: Iterable[str], eval_keys: Collection[str] = ()) -> str | None:
    """The metric to go by: one of an evaluation before those of training, a loss before others, the first of equals.

    Of losses, the one that is just called so comes first, then a total, then a generator's other than how well it
    deceives; a discriminator's come last, since they do not say how good a model is. `eval_keys` are what the names of
    metrics begin with that callbacks measure on data of their own.
    """
    return min(metrics, key=lambda name: (not is_evaluation(name, eval_keys), _rank(name, eval_keys)), default=None)


def is_evaluation(metric: str, eval_keys: Collection[str] = ()) -> bool:
    """Whether a metric comes from an evaluation, by what its name begins with."""
    words = words_of(metric)
    return bool(words) and (words[0] in EVALUATION or any(metric.startswith((f"{k}_", f"{k}/")) for k in eval_keys))


def _rank(metric: str, eval_keys: Collection[str]) -> int:
    own = next((metric[len(key) + 1 :] for key in eval_keys if metric.startswith((f"{key}_", f"{key}/"))), metric)
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
