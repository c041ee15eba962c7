"""Tells a person how the start goes: `python -m api.announce`, a child of the gunicorn master.

It ends once it has told; a process of its own, since sockets made in the master would break in its forks.
"""

import sys

from api.banner import LoadBar, banner, security_warnings
from ipc import config
from ipc.client import Client
from ipc.config import Config
from ipc.messages import Welcome

LOOK_MS = 50


def main() -> None:
    """Warn of open doors, show the load, then what is served and where."""
    settings = config.ambient()
    for warning in security_warnings(settings):
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    print(banner(settings, wait_for_engine(settings)), end="", flush=True)


def wait_for_engine(settings: Config) -> Welcome:
    """What the engine says about itself, as soon as it has loaded; a wait for work, ended by the master."""
    bar = LoadBar(settings.model.name)
    with Client(settings.engine_address(), str(settings.slab_path())) as client:
        while client.info is None:
            client.pump(LOOK_MS)
            if client.slab is not None:
                bar.show(client.slab.load_progress)
        bar.close()
        return client.info


if __name__ == "__main__":
    main()
