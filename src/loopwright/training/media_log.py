"""Logging of images, histograms, texts and tables: the methods of trainers, and the way from them
to callbacks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, public

if TYPE_CHECKING:
    from ..metrics.media import Media

MAX_WAITING = 1000  # items that are logged before training; later ones are dropped


class MediaLog:
    """The media of one run on their way to `on_media` of its callbacks.

    What is logged before training waits for its start, when the callbacks that write it are ready.
    Several items of one name and step are numbered, so that a step that is taken again replaces
    each by itself.
    """

    def __init__(self, run: Any) -> None:
        self.waiting: list[Media] | None = []  # logged before training; None once it has begun
        self._run = run  # a `TrainingRun`, which imports this module
        self._is_muted = False
        self._step = -1  # of the items that were numbered last
        self._counts: dict[str, int] = {}  # of the items of that step, by name
        # step and counts, as the steps of an epoch ended
        self._before_end: tuple[int, dict[str, int]] = (-1, {})
        self._said: set[str] = set()

    def open(self, method: str, name: Any) -> str | None:
        """Return the call of a method as errors name it; None where nothing records what it
        logs."""
        if not isinstance(name, str) or not name.strip():
            given = repr(name) if isinstance(name, str) else f"of type {type(name).__name__}"
            raise ConfigurationError(
                "media-name",
                f"{method}: the first argument is {given}: give a name first, such as 'samples', "
                "and then the value.",
            )
        call = f"{method}({name!r})"
        return call if self._is_needed and self._has_listener(call) else None

    def add(self, name: str, content: Any, count: int = 1, bad: int = 0) -> None:
        """Give an item to the callbacks, now or when training begins.

        `count` is the number of its images, and `bad` that of its values which are NaN or infinite.
        """
        from ..metrics.media import Media

        if bad:
            self._say_once(
                f"values of {name}",
                f"{name!r}: {bad} values are NaN or infinite: images show them as black, and "
                "histograms leave them out.",
            )
        update, step, epoch, samples, seconds = self._run.place()
        if step != self._step:
            self.renumber(step)
        position = self._counts.get(name, 0)
        self._counts[name] = position + count
        media = Media(name, content, update, step, epoch, samples, seconds, time.time(), position)
        if self.waiting is None:
            self._run.emit("on_media", media)
            return
        if len(self.waiting) == MAX_WAITING:
            self._say_once("full", f"{name!r} is dropped: {MAX_WAITING} logged items already wait.")
            return
        self.waiting.append(media)
        self._say_once(
            "before",
            f"{name!r} was logged before training: it will be recorded when training starts.",
        )

    def add_files(self, name: str, paths: Sequence[Path]) -> None:
        """Log PNG files that an interface has written, with their names as captions, where
        something records them."""
        if paths and self._is_needed and self._run.hooks["on_media"]:
            from ..metrics.media import Images

            images = tuple(path.read_bytes() for path in paths)
            self.add(name, Images(images, tuple(path.stem for path in paths)), len(paths))

    def begin(self) -> None:
        """Training begins: give the callbacks what was logged before it."""
        waiting = self.waiting or ()
        self.waiting = None
        if waiting and self._has_listener(f"{waiting[0].name!r}"):
            for media in waiting:
                self._run.emit("on_media", media)

    def take_over(self, earlier: MediaLog) -> None:
        """Go on with what was logged before training, in a run that another one began."""
        self.waiting = list(earlier.waiting or ())

    def count_on(self, step: int, counts: Mapping[str, int]) -> None:
        """Number the items of a step from these numbers on, which were logged before a resume point
        was saved in it."""
        self._step = step
        self._counts = dict(counts)

    def end_steps(self) -> None:
        """Note that an epoch's steps are over; a run resumed in its evaluation logs again what
        comes from here on."""
        step = self._run.progress.step
        self._before_end = step, dict(self._counts) if self._step == step else {}

    def counts_at(self) -> dict[str, int]:
        """How many items of the current step a resumed run will not log again, by name: those
        before an evaluation, once the steps of an epoch are over."""
        step, counts = self._before_end
        progress = self._run.progress
        if progress.in_epoch and progress.step == step:
            return counts
        return dict(self._counts) if progress.step == self._step else {}

    def renumber(self, step: int = -1) -> None:
        """Number the items of a step from zero again: it is another step, or the same one taken
        again."""
        self._step = step
        self._counts = {}

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Log nothing in this block: a step is tried out and not taken."""
        before = self._is_muted
        self._is_muted = True
        try:
            yield
        finally:
            self._is_muted = before

    @property
    def _is_needed(self) -> bool:
        """Whether this process logs what a user's step is logging now."""
        return self._run.runtime.is_main and not self._is_muted

    def _has_listener(self, call: str) -> bool:
        """Whether a callback gets the item, or may get it once training begins; if none does, a
        line says so once."""
        if self.waiting is not None or self._run.hooks["on_media"]:
            return True
        advice = self._run.message_names.record_media
        self._say_once("nobody", f"{call}: this value is not recorded anywhere. {advice}")
        return False

    def _say_once(self, key: str, line: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._run.say(line)


def _media_of(trainer: Any) -> MediaLog:
    """The log of the run that a trainer, or the core of an interface's trainer, owns."""
    log: MediaLog = trainer._core.run.media
    return log


class MediaMethods:
    """The methods of a trainer that log something else than numbers; values belong to the step that
    is under way.

    They may be called anywhere in the program: in steps, in callbacks, in evaluations, before and
    after `train`.
    """

    @public
    def log_image(
        self,
        name: str,
        image: Any,
        *,
        caption: str = "",
        value_range: tuple[float, float] | None = None,
    ) -> None:
        """Log an image.

        Args:
            name: The name under which images of several steps are one series.
            image: A tensor or array of shape (C, H, W), (H, W) or (H, W, C) with 1, 3 or 4
                channels, of uint8 or of floats from 0 to 1, or a PIL image.
            caption: A text to show with it.
            value_range: The values that become black and white, such as (-1, 1); values outside are
                cut off.

        Example:
            >>> import torch
            >>> from loopwright import Callback
            >>> class Samples(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         trainer.log_image("noise", torch.rand(3, 8, 8), caption="uniform")
        """

        media = _media_of(self)
        if call := media.open("log_image", name):
            from ..metrics.media import Images, encode_png, read_image

            pixels, bad = read_image(call, image, value_range)
            media.add(name, Images((encode_png(pixels),), (str(caption),)), bad=bad)

    @public
    def log_images(
        self,
        name: str,
        images: Any,
        *,
        captions: Sequence[str] | None = None,
        value_range: tuple[float, float] | None = None,
    ) -> None:
        """Log several images, which are shown side by side.

        Args:
            name: The name under which images of several steps are one series.
            images: A batch (N, C, H, W), (N, H, W, C) or (N, H, W), a list of images as `log_image`
                takes them, or a dict of images by caption.
            captions: A text for each image.
            value_range: As for `log_image`.

        Example:
            >>> import torch
            >>> from loopwright import Callback
            >>> class Triplets(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         x = torch.rand(3, 8, 8)
            ...         trainer.log_images("pairs", {"input": x, "output": 1 - x, "target": x})
        """

        media = _media_of(self)
        if call := media.open("log_images", name):
            from ..metrics.media import read_images

            found, bad = read_images(call, images, captions, value_range)
            media.add(name, found, len(found.files), bad)

    @public
    def log_histogram(self, name: str, values: Any, *, bins: int = 64) -> None:
        """Log how values are distributed; NaN and infinite ones are left out, and a line says so
        once.

        Args:
            name: The name under which histograms of several steps are one series.
            values: A tensor or array of any shape, or a list of numbers.
            bins: The number of equal intervals from the smallest to the largest value.

        Example:
            >>> from loopwright import Callback
            >>> class Weights(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         trainer.log_histogram("weight", trainer.model.weight)
        """

        media = _media_of(self)
        if call := media.open("log_histogram", name):
            from ..metrics.media import count_values

            histogram, bad = count_values(call, values, bins)
            media.add(name, histogram, bad=bad)

    @public
    def log_text(self, name: str, text: str) -> None:
        """Log a text, such as a generated sentence.

        Args:
            name: The name under which texts of several steps are one series.
            text: The text.

        Example:
            >>> from loopwright import Callback
            >>> class Sentences(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         trainer.log_text("sample", "once upon a time")
        """

        media = _media_of(self)
        if media.open("log_text", name):
            media.add(name, str(text))

    @public
    def log_table(self, name: str, rows: Any, columns: Sequence[str] | None = None) -> None:
        """Log a table.

        Args:
            name: The name under which tables of several steps are one series.
            rows: A list of dicts, a dict of columns, or rows of values with `columns`.
            columns: The names of the columns, where the rows have none; otherwise which of them to
                log.

        Example:
            >>> from loopwright import Callback
            >>> class Errors(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         trainer.log_table("errors", [["cat", 3], ["dog", 1]], columns=["class", "count"])
        """

        media = _media_of(self)
        if call := media.open("log_table", name):
            from ..metrics.media import read_table

            media.add(name, read_table(call, rows, columns))

    @public
    def log_figure(self, name: str, figure: Any, *, caption: str = "") -> None:
        """Log a figure of matplotlib as an image; it stays open, so close it with
        `plt.close(figure)`.

        Args:
            name: The name under which figures of several steps are one series.
            figure: The figure.
            caption: A text to show with it.

        Example:
            >>> from loopwright import Callback
            >>> class Losses(Callback):
            ...     def on_train_end(self, trainer):
            ...         trainer.log_figure("losses", trainer.history.plot())
        """

        media = _media_of(self)
        if media.open("log_figure", name):
            from ..metrics.media import Images, draw_figure

            media.add(name, Images((draw_figure(figure),), (str(caption),)))
