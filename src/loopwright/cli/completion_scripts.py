"""The scripts that shells complete with. Names of files are only ever compared and offered, never expanded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .completion import Argument, Command

DEPTH = 5  # of folders below runs/

BASH = r"""# Completion of `loopwright` for bash, made by `loopwright completion bash`.

_loopwright_table() {  # what may come in a command: sets inner, flags, values (option=kind:words) and places
    inner="" flags="" values="" places=""
    case "$1" in
@TABLE@
    esac
}

_loopwright_runs() {
    echo last
    find -L runs -maxdepth @DEPTH@ -name run.json 2>/dev/null | sed 's|/run\.json$||'
}

_loopwright_offer() {  # the lines of the input that begin with the current word
    local line
    while IFS= read -r line; do
        if [[ $line == "$cur"* ]]; then COMPREPLY+=("$line"); fi
    done
}

_loopwright_kind() {  # offer what a kind of argument may be
    local line
    case "$1" in
        words:*) _loopwright_offer < <(tr ',' '\n' <<< "${1#words:}") ;;
        run:) compopt -o filenames 2>/dev/null
              _loopwright_offer < <(_loopwright_runs)
              if [[ ${#COMPREPLY[@]} -eq 0 ]]; then _loopwright_offer < <(compgen -d -- "$cur"); fi ;;
        yaml:) compopt -o filenames 2>/dev/null
              while IFS= read -r line; do
                  if [[ -d $line || $line == *.yaml || $line == *.yml ]]; then COMPREPLY+=("$line"); fi
              done < <(compgen -f -- "$cur") ;;
        folder:) compopt -o filenames 2>/dev/null; _loopwright_offer < <(compgen -d -- "$cur") ;;
        file:) compopt -o filenames 2>/dev/null; _loopwright_offer < <(compgen -f -- "$cur") ;;
    esac
}

_loopwright() {
    local cur="${COMP_WORDS[COMP_CWORD]}" path="" word value pending="" number=0 inner flags values places i
    COMPREPLY=()
    _loopwright_table ""
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        if [[ $word == "=" ]]; then continue; fi
        if [[ -n $pending ]]; then pending=""; continue; fi
        if [[ $word == -* && $word != -[0-9]* ]]; then
            for value in $values; do
                if [[ $value == "$word="* ]]; then pending="${value#*=}"; fi
            done
        elif [[ " $inner " == *" $word "* ]]; then
            path="${path:+$path }$word"
            _loopwright_table "$path"
        else
            number=$((number + 1))
        fi
    done
    if [[ $cur == "=" ]]; then cur=""; fi
    if [[ -n $pending ]]; then
        _loopwright_kind "$pending"
    elif [[ $cur == -* ]]; then
        _loopwright_offer < <(tr ' ' '\n' <<< "$flags")
    elif [[ -n $inner ]]; then
        _loopwright_offer < <(tr ' ' '\n' <<< "$inner")
    else
        for value in $places; do
            if [[ $number -eq 0 || $value == *+ ]]; then _loopwright_kind "${value%+}"; break; fi
            number=$((number - 1))
        done
    fi
}

complete -F _loopwright loopwright
"""

ZSH = r"""#compdef loopwright
# Completion of `loopwright` for zsh, made by `loopwright completion zsh`.

_loopwright_table() {  # what may come in a command: sets inner, flags, values (option=kind:words) and places
    inner="" flags="" values="" places=""
    case "$1" in
@TABLE@
    esac
}

_loopwright_runs() {
    local -a found
    found=(last ${(f)"$(find -L runs -maxdepth @DEPTH@ -name run.json 2>/dev/null | sed 's|/run\.json$||')"})
    compadd -a found
    _files -/
}

_loopwright_kind() {
    local -a offered
    case "$1" in
        words:*) offered=(${(s:,:)1#words:}); compadd -a offered ;;
        run:) _loopwright_runs ;;
        yaml:) _files -g '*.(yaml|yml)' ;;
        folder:) _files -/ ;;
        file:) _files ;;
    esac
}

_loopwright() {
    local where="" word value pending="" inner flags values places
    local -i number=0 i
    local -a offered
    _loopwright_table ""
    for ((i = 2; i < CURRENT; i++)); do
        word="${words[i]}"
        if [[ -n $pending ]]; then pending=""; continue; fi
        if [[ $word == -* && $word != -[0-9]* ]]; then
            for value in ${=values}; do
                if [[ $value == "$word="* ]]; then pending="${value#*=}"; fi
            done
        elif [[ " $inner " == *" $word "* ]]; then
            where="${where:+$where }$word"
            _loopwright_table "$where"
        else
            number=$((number + 1))
        fi
    done
    if [[ -n $pending ]]; then
        _loopwright_kind "$pending"
    elif [[ ${words[CURRENT]} == -* ]]; then
        offered=(${=flags}); compadd -a offered
    elif [[ -n $inner ]]; then
        offered=(${=inner}); compadd -a offered
    else
        for value in ${=places}; do
            if [[ $number -eq 0 || $value == *+ ]]; then _loopwright_kind "${value%+}"; break; fi
            number=$((number - 1))
        done
    fi
}

if [[ $funcstack[1] == _loopwright ]]; then _loopwright "$@"; else compdef _loopwright loopwright; fi
"""

FISH = r"""# Completion of `loopwright` for fish, made by `loopwright completion fish`.

function __loopwright_at --description 'whether these are the first words after loopwright that are no options'
    set -l found
    for word in (commandline -opc)[2..-1]
        string match -q -- '-*' $word; or set -a found $word
    end
    test (count $found) -ge (count $argv); or return 1
    for i in (seq (count $argv))
        test "$found[$i]" = "$argv[$i]"; or return 1
    end
end

function __loopwright_runs
    echo last
    find -L runs -maxdepth @DEPTH@ -name run.json 2>/dev/null | string replace -r '/run\.json$' ''
    __fish_complete_directories (commandline -ct)
end

function __loopwright_yaml
    for path in (__fish_complete_path (commandline -ct))
        string match -qr '(/|\.ya?ml)(\t|$)' -- $path; and echo $path
    end
end

complete -c loopwright -f
@TABLE@
"""


def bash_script(commands: Sequence[Command]) -> str:
    """What bash evaluates."""
    return _filled(BASH, _cases(commands))


def zsh_script(commands: Sequence[Command]) -> str:
    """What zsh loads."""
    return _filled(ZSH, _cases(commands))


def fish_script(commands: Sequence[Command]) -> str:
    """What fish sources."""
    return _filled(FISH, (line for command in commands for line in _fish_lines(command)))


def _filled(template: str, lines: Iterable[str]) -> str:
    return template.replace("@TABLE@", "\n".join(lines)).replace("@DEPTH@", str(DEPTH))


def _cases(commands: Sequence[Command]) -> Iterator[str]:
    """A branch for each command, with everything in it that the parser knows."""
    for command in commands:
        flags = " ".join(name for option in command.options for name in option.names)
        valued = [(name, option) for option in command.options for name in option.names if option.kind != "flag"]
        values = " ".join(f"{name}={_kind(option)}" for name, option in valued)
        places = " ".join(_kind(place) + ("+" if place.is_repeated else "") for place in command.places)
        table = {"inner": " ".join(command.commands), "flags": flags, "values": values, "places": places}
        assignments = "; ".join(f"{name}={_quoted(text)}" for name, text in table.items() if text)
        yield f"        {_quoted(' '.join(command.path))}) {assignments} ;;"


def _kind(argument: Argument) -> str:
    return f"{argument.kind}:{','.join(argument.words)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_lines(command: Command) -> Iterator[str]:
    where = f"__loopwright_at {' '.join(command.path)}" if command.path else "__fish_use_subcommand"
    inner = f"; and not __fish_seen_subcommand_from {' '.join(command.commands)}" if command.commands else ""
    for name, text in command.commands.items():
        yield f"complete -c loopwright -n {_fish(where + (inner if command.path else ''))} -a {name} -d {_fish(text)}"
    for option in command.options:
        names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
        values = "" if option.kind == "flag" else f" -r{_fish_values(option)}"
        yield f"complete -c loopwright -n {_fish(where)} {names}{values} -d {_fish(option.help)}"
    for place in command.places:
        if values := _fish_values(place):
            yield f"complete -c loopwright -n {_fish(where)}{values}"


def _fish_values(argument: Argument) -> str:
    """How fish offers what an argument may be."""
    if argument.kind == "words":
        return f" -a {_fish(' '.join(argument.words))}"
    sources = {"run": "__loopwright_runs", "yaml": "__loopwright_yaml", "folder": "__fish_complete_directories"}
    if argument.kind == "file":
        return " -F"
    return f" -a '({sources[argument.kind]})'" if argument.kind in sources else ""


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
