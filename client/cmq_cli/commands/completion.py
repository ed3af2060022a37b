"""``cmq completion``: completion of commands and options in a shell."""

from enum import Enum

from cyclopts import App

from cmq_cli.options import CurrentSession


class Shell(Enum):
    """The shells for which there is a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_of(root: App) -> App:
    """Build the command that prints the completion script of a command tree."""
    command = App(name="completion")

    @command.default
    def completion(shell: Shell, /, *, session: CurrentSession) -> None:
        """Print a script that completes commands and options in a shell.

        For bash: eval "$(cmq completion bash)" in ~/.bashrc. For zsh: cmq completion zsh > a file named _cmq in a
        folder of $fpath. For fish: cmq completion fish > ~/.config/fish/completions/cmq.fish

        Parameters
        ----------
        shell
            bash, zsh or fish.
        """
        session.output.raw(root.generate_completion(prog_name="cmq", shell=shell.value).encode())

    return command
