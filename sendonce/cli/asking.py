"""Asking before much is changed at once; scripts say so beforehand."""

import sys

import click

from sendonce.cli.session import WrongCall


def ask(question: str, command: str, *, yes: bool) -> None:
    """Ask unless `yes`. WrongCall where nobody is there to answer; Abort if the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise WrongCall(f"nobody is here to be asked: {question}; `{command} --yes` does it", "not_confirmed")
    click.confirm(question, abort=True, err=True)
