"""A port of 127.0.0.1 that is kept for one server, also while it is not running: docs/decisions/0471."""

import socket


class HeldPort:
    def __init__(self):
        # Whoever names the port and binds with SO_REUSEADDR too, as servers do, may listen at it: this one never does.
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = self._socket.getsockname()[1]

    def close(self):
        self._socket.close()
