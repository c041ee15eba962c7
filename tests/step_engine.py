"""An engine on `FakeContext`, driven step by step without sockets."""

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from engine.adapters import Adapters
from engine.admission import Admission, Limits
from engine.archive import Archive
from engine.batch import Batch
from engine.candidates import Candidates
from engine.checkpoints import Checkpoints
from engine.controls import Controls
from engine.decoder import Decoder
from engine.diskcache import DiskCache
from engine.draft import Drafters
from engine.emitter import Emitter
from engine.hostcache import HostCache
from engine.identity import Identity
from engine.loop import Engine
from engine.lora_controls import LoraControls
from engine.memory import Memory
from engine.metrics import Metrics
from engine.outbox import Outbox
from engine.placement import Placement
from engine.reuse import Reuse
from engine.scheduler import Scheduler
from engine.sequences import Sequences
from engine.slot import Slot
from engine.slot_actions import SlotActions
from engine.speculation import Speculation
from ipc.messages import Abort, Admitted, Delta, Final, ModelInfo, RowRef, Sampling, Step, Task, ToClient, Welcome
from ipc.slab import State
from tests.fake_context import N_VOCAB, FakeContext, FakeVocab

MODEL = ModelInfo("fake.gguf", "fake", "fake", 1, 1, "F32", N_VOCAB, 4096, 8, 8, 1, 2)


class FakeServer:
    """Messages to the engine wait in `incoming`; what it sends is kept by client."""

    def __init__(self) -> None:
        self.incoming: deque[tuple[bytes, object]] = deque()
        self.sent: dict[bytes, list[ToClient]] = defaultdict(list)
        self.gone: set[bytes] = set()

    def poll(self, timeout_ms: int) -> bool:
        if timeout_ms and not self.incoming:
            time.sleep(0.0005)  # what the engine waits for happens on another thread, if at all
        return bool(self.incoming)

    def receive(self) -> list[tuple[bytes, object]]:
        messages = list(self.incoming)
        self.incoming.clear()
        return messages

    def send(self, client: bytes, message: ToClient) -> bool:
        if client in self.gone:
            return False
        self.sent[client].append(message)
        return True


class FakeAdapter:
    """An adapter file that is not there."""

    meta: ClassVar[dict[str, str]] = {}

    def __init__(self, path: str, tag: int = 1, invocation: tuple[int, ...] = ()) -> None:
        self.path, self.tag, self.invocation_tokens = path, tag, list(invocation)

    def close(self) -> None:
        pass


class FakeSlab:
    """Every row travels inline."""

    state = State.READY
    steps = 0
    active = 0
    path = ""

    def put(self, vector: np.ndarray, owner: bytes) -> RowRef:
        return RowRef(0, 0, vector.astype("<f4").tobytes())


class Stepped:
    """`submit` tasks, `run` steps, read `text`, `final` and `tokens` of each."""

    engine: Engine
    server: FakeServer
    slots: list[Slot]
    _ids = 0

    def submit(self, prompt: list[int], max_tokens: int | None = 4, client: bytes = b"c", **fields: object) -> int:
        self._ids += 1
        tokens = np.array(prompt, "<i4").tobytes()
        sampling = fields.pop("sampling", None) or Sampling(temperature=0)
        task = Task(self._ids, tokens, sampling, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
        self.server.incoming.append((client, task))
        return self._ids

    def abort(self, task: int, client: bytes = b"c") -> None:
        self.server.incoming.append((client, Abort(task)))

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self.engine.step()

    def run(self, limit: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(limit):
            self.engine.step()
            if not self.server.incoming and not self.engine._n_open:
                return
        raise AssertionError(f"not done after {limit} steps")

    def results(self, task: int, client: bytes = b"c") -> list[object]:
        steps = [message for message in self.server.sent[client] if isinstance(message, Step)]
        return [result for step in steps for result in step.results if result.id == task]

    def admitted(self, task: int) -> bool:
        return any(isinstance(result, Admitted) for result in self.results(task))

    def tokens(self, task: int, client: bytes = b"c") -> list[int]:
        return [token for r in self.results(task, client) if isinstance(r, Delta) for token in r.tokens]

    def text(self, task: int, client: bytes = b"c") -> str:
        return "".join(r.text for r in self.results(task, client) if isinstance(r, Delta))

    def finals(self, task: int, client: bytes = b"c") -> list[Final]:
        return [r for r in self.results(task, client) if isinstance(r, Final)]

    def final(self, task: int, client: bytes = b"c") -> Final:
        (final,) = self.finals(task, client)
        return final


class StepEngine(Stepped):
    """An engine whose model is plain Python."""

    def __init__(
        self,
        *,
        n_slots: int = 2,
        n_ctx: int = 64,
        unified: bool = True,
        n_ubatch: int = 16,
        context_shift: bool = False,
        similarity: float = 0.1,
        max_queue: int | None = None,
        make_drafters: Callable[[], Drafters] | None = None,
        n_swa: int = 0,
        recurrent: bool = False,
        n_host_bytes: int = 0,
        disk: DiskCache | None = None,
        move_idle: bool = False,
        n_checkpoints: int = 32,
        folder: str | None = None,
    ) -> None:
        self.now = 0.0
        n_slot = n_ctx if unified else n_ctx // n_slots
        self.context = FakeContext(n_ctx, n_slots, unified, n_swa, recurrent)
        self.server, slab, vocab = FakeServer(), FakeSlab(), FakeVocab()
        self.slots = [Slot(i, n_slot) for i in range(n_slots)]
        self.memory = Memory(
            self.context, self.slots, unified=unified, n_cells=n_ctx, n_swa=n_swa, partial=not recurrent
        )
        self.metrics, outbox = Metrics(), Outbox(self.server)
        emitter = Emitter(vocab, slab, outbox)  # type: ignore[arg-type]
        sequences = Sequences(emitter, self.metrics)
        scheduler = Scheduler(n_ubatch)
        speculation = Speculation(make_drafters, self.metrics, n_ubatch)
        clock = self._clock
        host = HostCache(n_host_bytes) if n_host_bytes else None
        self.archive = archive = Archive(self.slots, self.memory, host, disk, clock, move_idle=move_idle)
        checkpoints = Checkpoints(self.memory, limit=n_checkpoints, min_step=64, n_ubatch=n_ubatch, n_bytes=1 << 20)
        self.adapters = adapters = Adapters(self.context)
        self.identity = identity = Identity("0" * 32, adapters)
        actions = SlotActions(
            folder,
            self.slots,
            self.memory,
            archive,
            identity,
            N_VOCAB,
            self.server,  # type: ignore[arg-type]
            clock,
        )
        reuse = Reuse(self.slots, self.memory, archive, checkpoints)
        lora = LoraControls(adapters, sequences, self.server, FakeAdapter)  # type: ignore[arg-type]
        decoder = Decoder(
            context=self.context,  # type: ignore[arg-type]
            batch=Batch(max(n_ctx, n_ubatch)),
            slots=self.slots,
            memory=self.memory,
            archive=archive,
            speculation=speculation,
            adapters=adapters,
            sequences=sequences,
            emitter=emitter,
            metrics=self.metrics,
            cost=scheduler.cost,
            clock=clock,
            context_shift=context_shift,
        )
        self.engine = Engine(
            welcome=Welcome(1, "boot", MODEL, n_slots, n_ctx, n_slot, n_ctx, n_ubatch, ""),
            server=self.server,  # type: ignore[arg-type]
            slab=slab,  # type: ignore[arg-type]
            slots=self.slots,
            admission=Admission(vocab, Candidates(N_VOCAB), None, adapters, Limits(n_slots, n_slot, max_queue), clock),  # type: ignore[arg-type]
            sequences=sequences,
            placement=Placement(self.slots, self.memory, reuse, sequences, emitter, clock, similarity),
            archive=archive,
            checkpoints=checkpoints,
            scheduler=scheduler,
            speculation=speculation,
            decoder=decoder,
            embedder=None,
            controls=Controls(self.slots, self.memory, self.metrics, sequences, vocab, self.server, lora, actions),  # type: ignore[arg-type]
            outbox=outbox,
        )

    def _clock(self) -> float:
        self.now += 0.01
        return self.now
