"""``cmq completion``."""

from enum import Enum
from typing import Annotated

from cyclopts import App, Parameter

from cmq_cli.session import Session


class Shell(Enum):
    """The shells for which there is a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_of(root: App) -> App:
    """Build the command that prints the completion script of a command tree."""
    command = App(name="completion")

    @command.default
    def completion(shell: Shell, /, *, session: Annotated[Session, Parameter(parse=False)]) -> None:
        """Print a script that completes commands and options in a shell.

        For bash: eval "$(cmq completion bash)" in ~/.bashrc. For zsh: cmq completion zsh > a file named _cmq in a
        folder of $fpath. For fish: cmq completion fish > ~/.config/fish/completions/cmq.fish

        Parameters
        ----------
        shell
            bash, zsh or fish.
        """
        script = root.generate_completion(prog_name="cmq", shell=shell.value)
        session.output.raw(script.encode())

    return command
