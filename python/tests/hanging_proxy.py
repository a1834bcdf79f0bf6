"""A way to a server on this machine on which requests can get stuck."""

import threading

from gate import Gate


class HangingProxy(Gate):
    """Passes connections on to a port until hang() is called: then requests of that method wait
    for go_on()."""

    def __init__(self, port):
        self._method = None
        self._stuck = threading.Event()
        self._free = threading.Event()
        self._free.set()
        super().__init__(port)

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
        super().close()

    def _pass(self, way, data):
        if way == "up" and self._method is not None and data.startswith(self._method):
            self._stuck.set()
            self._free.wait()
        super()._pass(way, data)
