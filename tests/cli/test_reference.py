"""The parser and docs/cli.md say the same: commands, options and exit codes.

`python -m tests.cli.test_reference` writes the tables of the page from the parser.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopwright.cli.app import Parser, build_parser, short_usage
from loopwright.cli.output import EXIT_CODES

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
SEARCHES = "lr-find-and-batch-size-find"
COMMON = ("--help", "--debug")  # of every command: named once


def commands_of(parser: Parser) -> list[Parser]:
    """The commands of a parser, or of a group of commands."""
    groups = [action for action in parser._actions if isinstance(action.choices, dict)]
    return [command for group in groups for command in group.choices.values()]


def parsers(parser: Parser | None = None) -> Iterator[Parser]:
    """The parser and those of all commands."""
    parser = parser or build_parser()
    yield parser
    for command in commands_of(parser):
        yield from parsers(command)


def commands() -> list[Parser]:
    """The parsers of commands that do something, without the groups of commands."""
    return [parser for parser in parsers() if not commands_of(parser)]


# The tables of the page


def command_table() -> str:
    lines = ["| command | what it does |", "|---|---|"]
    lines += [
        f"| [`{parser.prog}`](#{anchor(parser)}) | {cell(first_sentence(parser))} |"
        for parser in commands()
    ]
    return "\n".join(lines)


def anchor(parser: Parser) -> str:
    """The section about a command; its entry of the reference where it has none."""
    name = parser.prog.split()[1]
    section = {"lr-find": SEARCHES, "batch-size-find": SEARCHES}.get(name, name)
    return section if section in headings() else parser.prog.replace(" ", "-")


def headings() -> set[str]:
    lines = [
        line.lstrip("# ")
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    ]
    return {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines}


def code_table() -> str:
    rows = [f"| `{code}` | {cell(what)} |" for code, what in EXIT_CODES.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])


def reference() -> str:
    """Every command with its usage and its options; what is common to all stands once."""
    parts = ["Every command has `-h` or `--help`, and `--debug` to show the traceback of an error."]
    for parser in commands():
        lines = [
            f"### {parser.prog}",
            "",
            first_sentence(parser) + ".",
            "",
            f"`{short_usage(parser)}`",
        ]
        rows = [f"| `{names}` | {cell(what)} |" for names, what in arguments(parser)]
        parts.append(
            "\n".join([*lines, "", "| argument | meaning |", "|---|---|", *rows])
            if rows
            else "\n".join(lines)
        )
    return "\n\n".join(parts)


def arguments(parser: Parser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.option_strings and action.option_strings[-1] in COMMON:
            continue
        value = (
            ""
            if action.nargs == 0
            else "|".join(map(str, action.choices or ())) or str(action.metavar)
        )
        names = ", ".join(action.option_strings)
        yield f"{names} {value}".strip() if names else value, str(action.help) % vars(action)


def first_sentence(parser: Parser) -> str:
    return str(parser.description).split("\n")[0].rstrip(".")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


BLOCKS = {"commands": command_table, "exit codes": code_table, "reference": reference}


def with_tables(text: str) -> str:
    """The page with its tables as the parser has them."""
    for name, table in BLOCKS.items():
        start = f"<!-- {name}: python -m tests.cli.test_reference -->"
        before, rest = text.split(start)
        text = (
            f"{before}{start}\n\n{table()}\n\n<!-- /{name} -->{rest.split(f'<!-- /{name} -->')[1]}"
        )
    return text


def test_the_page_has_the_commands_options_and_exit_codes_of_the_parser() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run `python -m tests.cli.test_reference`"


def test_every_link_within_the_page_has_its_heading() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"\(#([\w-]+)\)", text)) <= headings()


# Help


def test_help_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [
        (parser.prog, line) for parser in parsers() for line in parser.format_help().splitlines()
    ]
    assert len(lines) > 500
    assert [(prog, line) for prog, line in lines if len(line) > 80] == []


def test_help_has_examples_that_can_be_parsed() -> None:
    for parser in [*parsers()][1:]:
        text = str(parser.epilog).replace("\\\n", " ")
        examples = [line.strip() for line in text.splitlines() if line.startswith("  loopwright ")]
        assert examples, parser.prog
        assert any(example.startswith(parser.prog) for example in examples)
        for example in examples:
            words = shlex.split(example.split(" > ")[0])[1:]
            assert build_parser().parse_known_args(words)[0].function


def test_every_argument_is_explained_in_plain_lower_case() -> None:
    actions = [(parser.prog, action) for parser in commands() for action in parser._actions]
    helps = [(prog, action.dest, str(action.help or "")) for prog, action in actions]
    assert [
        entry
        for entry in helps
        if not entry[2] or entry[2].endswith(".") or entry[2].startswith("(")
    ] == []


# Exit codes


def test_exit_codes_are_listed_once_in_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    top, *others = (parser.format_help() for parser in parsers())
    listed = [
        int(code) for code in re.findall(r"^  (\d+) ", top.split("exit codes:")[1], flags=re.M)
    ]
    assert listed == list(EXIT_CODES)
    assert [text for text in others if "exit codes:" in text] == []


def main() -> int:
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.name} has the {len(commands())} commands of the parser.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
