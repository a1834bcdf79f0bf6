"""A way to a server on this machine on which requests can get stuck."""

import socket
import threading


class HangingProxy:
    """Passes connections on to a port until hang() is called: then requests of that method wait
    for go_on()."""

    def __init__(self, port):
        self._target = port
        self._method = None
        self._stuck = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hang(self, method=b""):
        self._free.clear()
        self._stuck.clear()
        self._method = method

    def until_stuck(self):
        """Until a request has arrived that is not passed on."""
        assert self._stuck.wait(60), "no such request came"

    def go_on(self):
        self._method = None
        self._free.set()

    def close(self):
        self.go_on()
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for ends in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source, sink, requests):
        try:
            while data := source.recv(1 << 16):
                if requests and self._method is not None and data.startswith(self._method):
                    self._stuck.set()
                    self._free.wait()
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
