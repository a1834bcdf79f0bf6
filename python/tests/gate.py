"""A proxy that tests put between a client and a server, to count and to hold up what passes."""

import socket
import threading


class Gate:
    """Forwards connections to a server, counts the bytes of both ways, and holds one of them up at a number of bytes."""

    def __init__(self, port):
        self._target = port
        self.up = self.down = 0
        self._holds = {}  # the way → at how many bytes
        self._pumps = 0
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, way, at):
        with self._changed:
            self._holds[way] = getattr(self, way) + at

    def wait_until_held(self, child):
        """Returns when not a byte more gets through; the child must still be at it."""
        with self._changed:
            for way, at in self._holds.items():
                held = self._changed.wait_for(lambda w=way, a=at: getattr(self, w) >= a, 120)
                assert held and child.poll() is None, "it was over before it was held up"

    def release(self):
        """Lets everything through."""
        with self._changed:
            self._holds = {}
            self._changed.notify_all()

    def open(self):
        """Lets everything through, and returns when what a killed client had sent has arrived."""
        self.release()
        with self._changed:
            assert self._changed.wait_for(lambda: self._pumps == 0, 120), "connections stay open"

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._changed:
                self._pumps += 2
            for args in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._pump, args=args, daemon=True).start()

    def _pass(self, way, data):
        """Returns when the data may go on."""
        with self._changed:
            self._changed.wait_for(lambda: getattr(self, way) < self._holds.get(way, float("inf")))
            setattr(self, way, getattr(self, way) + len(data))
            self._changed.notify_all()

    def _pump(self, source, sink, way):
        try:
            while data := source.recv(1 << 16):
                self._pass(way, data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self._changed:
            self._pumps -= 1
            self._changed.notify_all()

    def close(self):
        self._listener.close()
