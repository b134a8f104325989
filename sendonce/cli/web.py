"""`sendonce web --unsubscribe [--host HOST] [--port PORT]`, `sendonce unsubscribe rotate-key`."""

import click

from sendonce.cli.output import out, print_json
from sendonce.cli.session import Failed, Session, WrongCall, with_session
from sendonce.config.urls import is_loopback
from sendonce.control.unsubscribe import rotate_key


@click.command()
@click.option("--unsubscribe", "unsubscribes", is_flag=True, help="Serve the unsubscribe links, and nothing else.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes any free one.")
@with_session
def web(session: Session, unsubscribes: bool, host: str, port: int) -> None:
    """Serve the unsubscribe links of letters until Ctrl-C or SIGTERM.

    By RFC 8058: a POST unsubscribes, a GET shows a page with a button and changes nothing. It speaks plain HTTP: put a
    proxy that speaks TLS before it, at the base_url of your settings. /healthz tells whether the store answers.
    """
    if not unsubscribes:
        raise WrongCall("say what to serve: `sendonce web --unsubscribe`")
    from sendonce.web.serving import serve
    from sendonce.web.unsubscribe import BODY_MAX, UnsubscribeApp

    application = UnsubscribeApp(session.store)

    def listening(at: str, taken: int) -> None:
        url = f"http://{f'[{at}]' if ':' in at else at}:{taken}"
        if session.as_json:
            print_json({"listening": url})
            return
        out().print(f"Unsubscribe links are served at {url}/TOKEN", markup=False)
        links = session.config.unsubscribe
        if links is None:
            out().print(
                "No letter has such a link yet: set `unsubscribe: {base_url: …}`.", style="yellow", markup=False
            )
        else:
            out().print(f"Letters link to {links.base_url}/TOKEN", style="dim", markup=False)
        if not is_loopback(host):
            out().print("This is plain HTTP: let only your TLS proxy reach it.", style="yellow")

    try:
        serve(application, host, port, BODY_MAX, listening)
    except OSError as fault:
        raise Failed(
            f"cannot listen on {host}:{port} ({fault.strerror or fault}); choose another --host or --port", "listen"
        ) from None


@click.group()
def unsubscribe() -> None:
    """The keys that sign unsubscribe links."""


@unsubscribe.command(name="rotate-key")
@with_session
def rotate(session: Session) -> None:
    """Make a new key for the links of campaigns that are loaded from now on.

    Links that are out stay good, and a loaded campaign keeps its key: repeated requests must repeat their bytes.
    """
    number = rotate_key(session.store)
    if session.as_json:
        print_json({"key": number})
    else:
        out().print(f"Key {number} signs the links of campaigns that are loaded from now on.")
