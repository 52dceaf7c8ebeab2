"""``sandlot completion``: the shell's completion script."""

from __future__ import annotations

import click

from sandlot.cli._verb import Verb


@click.command(
    "completion",
    cls=Verb,
    short_help="Print a shell's completion script.",
    epilog="""\b
Examples:
  eval "$(sandlot completion bash)"           in ~/.bashrc
  eval "$(sandlot completion zsh)"            in ~/.zshrc
  sandlot completion fish > ~/.config/fish/completions/sandlot.fish""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    from click.shell_completion import get_completion_class

    root = ctx.find_root().command
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(root, {}, "sandlot", "_SANDLOT_COMPLETE").source())
