"""One WSGI application on one port, by waitress: threads, time-outs and size limits set for small, short requests.

It speaks plain HTTP and belongs behind a proxy that speaks TLS (RFC 8058 asks for https). It writes no access log: the
path of a request holds a token.
"""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import waitress

_HEADERS_MAX: Final = 16 << 10
_THREADS: Final = 8
_CONNECTIONS: Final = 500
# A connection on which nothing moves is dropped after this many seconds.
_IDLE_S: Final = 20


def serve(
    application: Callable[..., Any], host: str, port: int, body_max: int, listening: Callable[[str, int], None]
) -> None:
    """Serve until SIGINT or SIGTERM; requests in hand end first. OSError if the port cannot be had.

    port: 0 takes any that is free. listening: told the address once connections are taken.
    """
    server = waitress.create_server(
        application,
        host=host,
        port=port,
        threads=_THREADS,
        connection_limit=_CONNECTIONS,
        channel_timeout=_IDLE_S,
        cleanup_interval=5,
        max_request_header_size=_HEADERS_MAX,
        max_request_body_size=body_max,
        expose_tracebacks=False,
        ident=None,
        log_socket_errors=False,
        clear_untrusted_proxy_headers=True,
    )
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        places = getattr(server, "effective_listen", None) or [(server.effective_host, server.effective_port)]
        listening(*places[0])
        server.run()  # returns when it is interrupted
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
