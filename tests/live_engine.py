"""The fake engine in the real one's place: what `Server(engine="tests.live_engine")` runs.

Takes address and slab from the server's configuration, and from the environment
FAKE_LOAD (seconds that the load takes), FAKE_STEP (seconds of a step), FAKE_SLOTS, and FAKE_FAIL (a load error's text).
"""

import os
import signal
import sys
import time
from pathlib import Path

from ipc import config
from ipc.slab import State
from tests.fake_engine import FakeEngine, Script


def main() -> None:
    """Load, serve, and on SIGTERM end every task with an error."""
    settings = config.ambient()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    if "FAKE_FAIL" in os.environ:
        sys.exit(f"error: {os.environ['FAKE_FAIL']}")
    script = Script(
        step_seconds=float(os.environ.get("FAKE_STEP", "0.02")), n_slots=int(os.environ.get("FAKE_SLOTS", "4"))
    )
    address, slab_path = settings.engine_address(), str(settings.slab_path())
    engine = FakeEngine(Path(), address=address, slab_path=slab_path, script=script)
    engine.open(State.LOADING)
    loaded_at = time.monotonic() + float(os.environ.get("FAKE_LOAD", "0"))
    while time.monotonic() < loaded_at and not stopping:
        engine.slab.load_progress += 0.001
        engine.slab.beat()
        time.sleep(0.005)
    engine.slab.state = State.READY
    while not stopping:
        engine.step()
    engine.end()


if __name__ == "__main__":
    main()
