"""A worker on another machine: one run of a trial, in a job of a cluster.

It gets what to run from the tuner, over the connection that it reports by: nothing that could be
executed lies in a file.
"""

from __future__ import annotations

import base64
import os
import pickle
import sys

from . import worker


def main() -> None:
    """Never returns."""
    env = dict(os.environ)
    client = worker.open_client(env)
    given = pickle.loads(base64.b64decode(client.call("/tune/payload", {})["payload"]))
    client.close()
    sys.path[:] = given["path"]
    sys.argv = given["argv"]
    worker.seed_generators(env["CAIRN_TRIAL_ID"])
    trainable = pickle.loads(given["trainable"])
    sys.exit(worker.run(trainable, given["settings"], env))


if __name__ == "__main__":
    main()
