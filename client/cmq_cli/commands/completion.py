"""``cmq completion``: completion of commands and options in a shell."""

from typing import Literal

from cyclopts import App

from cmq_cli.options import CurrentSession


def completion_of(root: App) -> App:
    """Build the command that prints the completion script of a command tree."""
    command = App(name="completion")

    @command.default
    def completion(shell: Literal["bash", "zsh", "fish"], /, *, session: CurrentSession) -> None:
        """Print a script that completes commands and options in a shell.

        For bash: eval "$(cmq completion bash)" in ~/.bashrc. For zsh: cmq completion zsh > a file named _cmq in a
        folder of $fpath. For fish: cmq completion fish > ~/.config/fish/completions/cmq.fish

        Parameters
        ----------
        shell
            bash, zsh or fish.
        """
        session.output.raw(root.generate_completion(prog_name="cmq", shell=shell).encode())

    return command
