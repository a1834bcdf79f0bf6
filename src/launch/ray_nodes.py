"""ray_nodes BUNDLE SHIM DIRECTORY KEY NODES RANKS: starts the shims of a launch on several nodes of Ray.

The shim that keeps the launch starts this, in Ray's job, as it would start srun on Slurm. It reserves
NODES different nodes with BUNDLE (JSON: resource to amount) on each, all or none, starts
`SHIM DIRECTORY node:KEY:INDEX` on each inside of an actor, and stands between: what comes by its input
goes to all of them, and what they say goes to its output, a line each (docs/format/launches.md), in which
`@running` and `@done` are those of all nodes. RANKS are those of a node. The actors end with this process,
and the shims with their actors, whose end is the end of their input.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
# What Ray says about a process is for that process.
OF_RAY = lambda name: name.startswith("RAY_") or name in DEVICES  # noqa: E731
READ_BYTES = 1 << 16
TURN_SECONDS = 0.05
# In which Ray notices that a node is gone: an actor may have died alone.
NODE_SECONDS = 30


class Node:
    """The shim of one node, in an actor there. `read` waits, beside `tell`."""

    def place(self):
        """Which node this is, and where ranks may meet: an address of it, and a port that is free now."""
        with socket.socket() as free:
            free.bind(("", 0))
            node = ray.get_runtime_context().get_node_id()
            return node, ray.util.get_node_ip_address(), free.getsockname()[1]

    def start(self, argv, environment):
        own = {name: value for name, value in os.environ.items() if OF_RAY(name)}
        self.shim = subprocess.Popen(
            argv, env={**environment, **own}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def read(self):
        """What it says next; nothing when it has ended."""
        said = os.read(self.shim.stdout.fileno(), READ_BYTES)
        if not said:
            self.shim.wait()
        return said

    def tell(self, command):
        try:
            self.shim.stdin.write(command)
            self.shim.stdin.flush()
        except BrokenPipeError:
            pass  # its end is heard by read


class Link:
    """A node, seen from here."""

    def __init__(self, actor, node, first_rank):
        self.actor = actor
        self.node = node
        self.first_rank = first_rank
        self.reading = actor.read.remote()
        self.telling = None
        self.untold = b""
        self.line = b""
        self.running = self.done = self.ended = self.lost = False

    def send(self):
        """Commands in their order: one call at a time."""
        if self.telling is None and self.untold and not self.ended:
            self.telling, self.untold = self.actor.tell.remote(self.untold), b""


class Relay:
    def __init__(self, say):
        self.say = say
        self.links = []
        self.told_running = False
        self.all_well = True

    def hear(self, link, said):
        *lines, link.line = (link.line + said).split(b"\n")
        for line in lines:
            if line == b"@running":
                link.running = True
            elif line == b"@done":
                link.done = True
            else:
                self.all_well = self.all_well and not line.startswith(b"@failed ")
                link.done = link.done or line.startswith(b"@failed ")
                self.say(line)
        if not self.told_running and all(each.running for each in self.links):
            self.told_running = True
            self.say(b"@running")

    def end(self, link, why):
        link.ended = True
        if link.done:
            return
        self.all_well = False
        link.lost = True
        why = " ".join(str(why).split())[:500]
        self.say(f"@lost {link.first_rank} the node of rank {link.first_rank} is lost: {why}".encode())

    def turn(self):
        """Deals with what was answered since the last one."""
        calls = {}
        for link in self.links:
            link.send()
            if not link.ended:
                calls[link.reading] = (link, False)
            if link.telling is not None:
                calls[link.telling] = (link, True)
        for call in ray.wait(list(calls), timeout=TURN_SECONDS)[0]:
            link, is_telling = calls[call]
            try:
                answer = ray.get(call)
            except ray.exceptions.RayError as error:
                answer = error
            if is_telling:
                link.telling = None  # whoever is not there is missed by the other call
            elif isinstance(answer, Exception):
                self.end(link, answer)
            elif answer:
                self.hear(link, answer)
                link.reading = link.actor.read.remote()
            else:
                self.end(link, "its shim ended without a word")


def have_vanished(nodes):
    """Whether Ray has no such nodes any more, all of them, after a while."""
    deadline = time.monotonic() + NODE_SECONDS
    while {each["NodeID"] for each in ray.nodes() if each["Alive"]} & nodes:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)  # it tells when it is asked
    return True


def commands_of(descriptor):
    """A queue of what comes, read by a thread. At its end nobody is left to work for."""
    commands = queue.Queue()

    def read():
        while said := os.read(descriptor, READ_BYTES):
            commands.put(said)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return commands


def taken(commands):
    said = b""
    while not commands.empty():
        said += commands.get()
    return said


def start(bundle, shim, directory, key, nodes, ranks, commands):
    """The links to all nodes; None when a stop came first."""
    group = placement_group([bundle] * nodes, strategy="STRICT_SPREAD", name=key)
    before = b""
    while not group.wait(1):
        before += taken(commands)
        if b"stop " in before:
            return None
    amounts = dict(bundle)
    options = {
        "num_cpus": amounts.pop("CPU", 0),
        "num_gpus": amounts.pop("GPU", 0),
        "memory": amounts.pop("memory", None),
        "resources": amounts,
        "max_concurrency": 4,
    }
    actors = [
        ray.remote(Node)
        .options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, index), **options)
        .remote()
        for index in range(nodes)
    ]
    environment = {name: value for name, value in os.environ.items() if not OF_RAY(name)}
    places = ray.get([actor.place.remote() for actor in actors])
    _, address, port = places[0]
    environment.setdefault("MASTER_ADDR", address)
    environment.setdefault("MASTER_PORT", str(port))
    ray.get(
        [
            actor.start.remote([shim, directory, f"node:{key}:{index}"], environment)
            for index, actor in enumerate(actors)
        ]
    )
    links = [Link(actor, places[index][0], index * ranks) for index, actor in enumerate(actors)]
    for link in links:
        link.untold = before
    return links


def main(bundle, shim, directory, key, nodes, ranks):
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever Ray prints is not for the shim

    def say(line):
        output.write(line + b"\n")
        output.flush()

    commands = commands_of(os.dup(0))
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="error")
        # Ray's stop of the job signals every process of it: the shim passes it on, in order.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        relay = Relay(say)
        links = start(json.loads(bundle), shim, directory, key, int(nodes), int(ranks), commands)
    except Exception as error:  # of whatever Ray has to say
        say(b"@failed Ray: " + " ".join(str(error).split())[-500:].encode())
        return 1
    if links is None:
        say(b"@failed stopped before its nodes were free")
        return 1
    relay.links = links
    while not all(link.ended for link in links):
        said = taken(commands)
        for link in links:
            link.untold += said
        relay.turn()
    if relay.all_well:
        say(b"@done")
    lost = {link.node for link in links if link.lost}
    if lost and have_vanished(lost):
        say(b"@vanished")
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
