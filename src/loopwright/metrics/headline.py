"""The one metric that stands for a run, where there is room for one or several could decide."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from loopwright.metrics.direction import EVALUATION, direction_of, words_of

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
