"""`manage.py pgqueue completion bash|zsh`: print a script that completes subcommands and options in a shell.

The script has the words of this release and of the installed apps, so it must be printed again after an upgrade. It
calls nothing, because starting Django takes longer than a person waits for a completion.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from .output import Output
from .subcommand import Options, Subcommand

SHELLS: Final = ("bash", "zsh")
OF_ZSH: Final = "autoload -U +X bashcompinit && bashcompinit\n"
SCRIPT: Final = """\
# Completes `manage.py pgqueue …` and the alias `pgqueue`. Print it again after an upgrade.
_pgqueue_complete() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" typed="" word index found=0
    [[ "${{COMP_WORDS[0]##*/}}" == pgqueue ]] && found=1
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${{COMP_WORDS[index]}}"
        if [[ $found == 0 ]]; then
            [[ $word == pgqueue ]] && found=1
        elif [[ $word != -* ]]; then
            case "$typed $word" in
{parents}
            esac
        fi
    done
    COMPREPLY=()
    [[ $found == 1 ]] || return 0
    case "$typed" in
{cases}
    esac
}}
complete -o default -F _pgqueue_complete manage.py pgqueue
"""


def completion(subcommands: Callable[[], Sequence[Subcommand]]) -> Subcommand:
    """Return the subcommand. `subcommands` returns all of them, also those of apps."""

    def run(options: Options, out: Output) -> None:
        prefix = OF_ZSH if options["shell"] == "zsh" else ""
        out.stdout.write(prefix + script(subcommands()), ending="")

    return Subcommand("completion", "Print a script that completes these commands in a shell.", _add_arguments, run)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="The shell that reads the script.")


def script(subcommands: Sequence[Subcommand]) -> str:
    """Return the script, in the language of bash."""
    words = {"": [each.name for each in subcommands], **dict(_words_after(subcommands, ""))}
    parents = "|".join(f'"{typed}"' for typed in words if typed)
    cases = "\n".join(
        f'        "{typed}") COMPREPLY=($(compgen -W "{" ".join(following)}" -- "$current")) ;;'
        for typed, following in words.items()
    )
    return SCRIPT.format(parents=f'                {parents}) typed="$typed $word" ;;', cases=cases)


def _words_after(subcommands: Sequence[Subcommand], before: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what can follow each subcommand: its actions, or its options and the choices of its arguments."""
    for each in subcommands:
        typed = f"{before} {each.name}"
        if each.actions:
            yield typed, [action.name for action in each.actions]
            yield from _words_after(each.actions, typed)
            continue
        parser = ArgumentParser()
        each.add_arguments(parser)
        options = [text for action in parser._actions for text in action.option_strings if text.startswith("--")]
        choices = [
            str(choice) for action in parser._actions if not action.option_strings for choice in action.choices or ()
        ]
        yield typed, [*choices, *sorted(options)]
