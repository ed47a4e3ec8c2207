"""Generated mistakes: each gives one readable report with file and line, and no other exception."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.config import ConfigError, check, load_config
from tests.config.projects import RUN, SCHEMA, Project

LINES = RUN.splitlines()
KEYED = [
    (number, match[1]) for number, line in enumerate(LINES) if (match := re.search(r"(\w+):", line))
]
SCALAR = [number for number, line in enumerate(LINES) if re.fullmatch(r"[ -]*\w+: [^{\[]\S*", line)]
FREE = {"train", "test", "vars"}  # names of the user's choice, and a key that may be left out
KINDS = [number for number, line in enumerate(LINES) if "kind:" in line and "{" not in line]


def swapped(word: str) -> str:
    """The word with two letters in the middle swapped, or one doubled."""
    for index in range(len(word) // 2, len(word) - 1):
        if word[index] != word[index + 1]:
            return word[:index] + word[index + 1] + word[index] + word[index + 2 :]
    return word + word[-1]


def replaced(number: int, line: str | None) -> str:
    lines = list(LINES)
    lines[number : number + 1] = [] if line is None else [line]
    return "\n".join(lines) + "\n"


def valued(number: int, value: str) -> str:
    return replaced(number, LINES[number].partition(":")[0] + ": " + value)


def typos():
    for number, key in KEYED:
        if key not in FREE:
            line = LINES[number].replace(f"{key}:", f"{swapped(key)}:", 1)
            yield pytest.param(replaced(number, line), key, id=f"typo-{number + 1}-{swapped(key)}")


def wrong():
    for number in SCALAR:
        yield pytest.param(valued(number, "{unheard: [1]}"), id=f"mapping-{number + 1}")
        yield pytest.param(valued(number, "[[1], 2]"), id=f"list-{number + 1}")
        yield pytest.param(valued(number, "${no.such.key}"), id=f"variable-{number + 1}")
        yield pytest.param(valued(number, "'${unclosed'"), id=f"unclosed-{number + 1}")
        yield pytest.param(
            valued(number, "!!python/object/apply:os.system ['true']"), id=f"tag-{number + 1}"
        )
        yield pytest.param(
            replaced(number, f"{LINES[number]}\n{LINES[number].replace('-', ' ')}"),
            id=f"twice-{number + 1}",
        )
    for number in range(1, len(LINES), 3):
        yield pytest.param(replaced(number, LINES[number] + "\n\t- x"), id=f"tab-{number + 1}")
        yield pytest.param(replaced(number, f"odd: ]\n{LINES[number]}"), id=f"bracket-{number + 1}")
        yield pytest.param(
            replaced(number, f"odd: [\n{LINES[number]}"), id=f"unclosed-list-{number + 1}"
        )
    for number in KINDS:
        for kind in (
            "mine.Nothing",
            "no.such.Thing",
            "os.system",
            "mine.make_net",
            "mine.Shape",
            "12",
            "null",
        ):
            yield pytest.param(valued(number, kind), id=f"kind-{number + 1}-{kind}")
        yield pytest.param(
            replaced(number, LINES[number].replace("kind: ", "knid: ")), id=f"nokind-{number + 1}"
        )
    for key in ("n: 64", "width: ${vars.width}", "in_features: 4", "max_updates: 37"):
        number = next(number for number, line in enumerate(LINES) if line.strip() == key)
        yield pytest.param(replaced(number, None), id=f"missing-{key.partition(':')[0]}")
    for text in (
        "defaults: [run.yaml]",
        "defaults: [gone.yaml]",
        "defaults: 3",
        "modules: /nowhere",
        "sweep: 3",
        "tags: a",
    ):
        yield pytest.param(RUN + text + "\n", id=text)
    yield pytest.param("[" * 1000, id="deep")
    yield pytest.param("- " + RUN.replace("\n", "\n  "), id="a list")


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Project:
    """One project for all: the module in it does not change."""
    return Project(tmp_path_factory.mktemp("malformed"))


def report(project: Project, text: str) -> ConfigError:
    """All that is wrong with the text, loaded and checked as a run would."""
    project.file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        raise ConfigError(check(load_config(project.file, environ={}), SCHEMA))
    return caught.value


@pytest.mark.parametrize(("text", "key"), list(typos()))
def test_a_misspelt_key_is_reported_with_the_one_that_exists(shared, text, key):
    error = report(shared, text)
    assert all(problem.file == str(shared.file) and problem.line for problem in error.problems)
    assert any(key in f"{problem.key} {problem.message}" for problem in error.problems), error
    assert len(error.problems) <= 2, error


@pytest.mark.parametrize("text", list(wrong()))
def test_a_mistake_gives_a_report_with_file_and_line(shared, text, request):
    error = report(shared, text)
    assert error.problems
    for problem in error.problems:
        assert problem.file == str(shared.file)
        assert problem.line is not None or "deep" in request.node.callspec.id
        assert problem.message.endswith((".", "?"))
    assert len(error.problems) <= 3, error
    assert "Traceback" not in str(error)


pieces = st.sampled_from(
    [
        "\n",
        " ",
        "  ",
        ":",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "&a ",
        "*a",
        "${",
        "}",
        "!",
        "'",
        '"',
        "#",
        "~",
        "?",
        "|",
        "\t",
        "é",
        "\x00",
        "kind",
        "9" * 30,
        "<<: ",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(RUN)), st.integers(0, 8), pieces), min_size=1, max_size=4)
)
def test_a_file_with_characters_changed_at_random_is_read_or_reported(changes):
    text = RUN
    for position, removed, added in changes:
        text = text[:position] + added + text[position + removed :]
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.file.write_text(text)
        try:
            problems = check(load_config(project.file, environ={}), SCHEMA)
        except ConfigError as error:
            problems = list(error.problems)
            assert problems
        assert all(problem.message and problem.file for problem in problems)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["mine.Net", "AdamW", "x", "${vars.width}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "width", "n", "lr", "callbacks", "args"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(
        [
            "model",
            "model.inner",
            "model.optimizer",
            "datasets",
            "trainer",
            "trainer.callbacks",
            "vars",
        ]
    ),
    values,
)
def test_any_value_in_any_place_is_accepted_or_reported(shared_folder, key, value):
    import json

    problems = []
    try:
        config = load_config(shared_folder.file, [f"{key}={json.dumps(value)}"], environ={})
        problems = check(config, SCHEMA)
    except ConfigError as error:
        problems = list(error.problems)
    assert all(problem.message and problem.key for problem in problems)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory) -> Project:
    return Project(tmp_path_factory.mktemp("values"))
