"""What every command starts with: its configuration, its store, who calls, and how it answers."""

import functools
import getpass
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import click

from sendonce.config import Config, config_path, load_config
from sendonce.stores.base import Store

Command = TypeVar("Command", bound=Callable[..., Any])


class Unfinished(Exception):
    """The command did its work and the answer is not good: exit code 1, everything was said already."""


class WrongCall(click.ClickException):
    """The call cannot be carried out as it stands: exit code 2, one line that names the thing and the mend."""

    exit_code = 2

    def __init__(self, message: str, reason: str = "wrong_call") -> None:
        super().__init__(message)
        self.reason = reason


class Failed(click.ClickException):
    """The call was right, the work could not be done: exit code 1, one line that names the thing and the mend."""

    exit_code = 1

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class Session:
    """One call of one command. `config_file` is None when there is no file: the defaults hold."""

    config_file: Path | None
    store_option: str | None
    as_json: bool
    subscription_option: str | None = None

    @cached_property
    def config(self) -> Config:
        return load_config(self.config_file, os.environ, store=self.store_option, subscription=self.subscription_option)

    @property
    def store_given(self) -> str | None:
        """The store's URL by the option or the environment; None where the settings file says it."""
        return self.store_option or os.environ.get("SENDONCE_STORE") or None

    @cached_property
    def store(self) -> Store:
        """The store, opened on first use. StoreRefused says how to make one."""
        from sendonce.stores.opening import shared_store

        return shared_store(self.config.store)

    @property
    def rejects_folder(self) -> Path:
        """Where loads list the rows that they did not take: beside the store's file, wherever the command is called."""
        from sendonce.stores.sqlite import sqlite_path

        if not self.config.store.startswith("sqlite:"):
            return Path(".sendonce/rejects").absolute()
        return sqlite_path(self.config.store).parent / "rejects"

    @property
    def by(self) -> str:
        """Who is written down as the author of a change: user@host."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container's user may have no name
            user = str(os.getuid())
        return f"{user}@{socket.gethostname()}"


def with_session(command: Command) -> Command:
    """Adds --store, --config and --json; the command gets a `Session` first."""
    return with_session_whose_json_is("One JSON document on standard output, for machines.")(command)


def with_session_whose_json_is(what: str) -> Callable[[Command], Command]:
    """The same for commands whose --json gives something else: `what`, as their help says it."""
    return functools.partial(_with_session, what)


def _with_session(json_help: str, command: Command) -> Command:
    @click.option("--json", "as_json", is_flag=True, help=json_help)
    @click.option("--config", metavar="FILE", help="Settings file. [SENDONCE_CONFIG, ./sendonce.yaml]")
    @click.option("--store", metavar="URL", help="Store to use. [SENDONCE_STORE, the settings file]")
    @functools.wraps(command)
    def with_options(*args: Any, store: str | None, config: str | None, as_json: bool, **options: Any) -> Any:
        context = click.get_current_context()
        context.find_root().obj = as_json
        return command(Session(config_path(config, os.environ), store, as_json), *args, **options)

    return with_options  # type: ignore[return-value]
