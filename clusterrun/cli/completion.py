"""`clusterrun completion`: prints the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL; names of runs are completed too.

    \b
    Examples:
      clusterrun completion bash
      clusterrun completion zsh
      clusterrun completion fish

    \b
    To switch it on:
      bash   eval "$(clusterrun completion bash)"       in ~/.bashrc (bash 4.4 or newer)
      zsh    eval "$(clusterrun completion zsh)"        in ~/.zshrc
      fish   clusterrun completion fish > ~/.config/fish/completions/clusterrun.fish
    """
    from clusterrun.cli.main import COMPLETION_VARIABLE, root

    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise click.UsageError(f"this version of click knows no completion for {shell}")
    print(shell_class(root, {}, "clusterrun", COMPLETION_VARIABLE).source())
