"""The studio on a port of this machine."""

from __future__ import annotations

import socket

import uvicorn

from discreet.errors import InvalidParameter, whole
from discreet.ledger import Ledger
from discreet.studio.application import application


def listener_on(port: int) -> socket.socket:
    """A socket that listens on loopback; 0 takes a free port. A browser that comes early waits for the server."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", whole("port", port, at_least=0, at_most=65535)))
        listener.listen()
    except OSError:
        listener.close()
        remedy = "is in use or not allowed; leave it out to take a free one."
        raise InvalidParameter("port", port, remedy) from None
    return listener


def serve(listener: socket.socket, token: str, ledger: Ledger | None = None) -> None:
    """Answer those who know the token until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(application(ledger, token=token), log_level="error", access_log=False)
    config.timeout_graceful_shutdown = (
        1  # a browser that keeps its connection open does not keep the studio open
    )
    uvicorn.Server(config).run(sockets=[listener])
