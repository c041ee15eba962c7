"""An engine without a model: the real messages, socket and slab, and made-up tokens.

In a test, as a thread of the same process:

    with FakeEngine(tmp_path) as engine:
        client = AsyncClient(engine.address, engine.slab_path)
        engine.script.pieces = ["Hello", " world"]

or as a process that can be killed:

    python -m tests.fake_engine --address ipc:///DIR/engine.sock --slab /DIR/engine.slab
    (prints "ready"; every field of `Script` that is a number is an option, e.g. --step-seconds 0.01)

A `Task` gets Admitted, `Progress` and `PromptProbs` if asked, one Delta a step and its Final. Token i is the i-th
piece of `script.pieces`, or of "w0 w1 w2 …". `max_tokens`, `stop`, `stream`, `seed`, `timings_per_token`, `n_probs`
(see `logits`) and `post_sampling_probs` are honoured. An `Embed` gets one vector per input (see `vector`), the last
input's first; with pooling "none" one per token, with "rank" a score, which is the number of tokens. Control
messages get a plausible reply. What happened is in `received` (all messages) and `aborted` (ids).
`until` waits for a condition with a deadline.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from ipc import messages as m
from ipc.server import Server, TcpBind, boot_nonce
from ipc.slab import Slab, State

N_CTX = 1024
N_EMBD = 8
DEFAULT_TOKENS = 16  # of an answer without `max_tokens`
BAD_ACTION = m.Error(400, "invalid_request_error", "no such slot")


@dataclass
class Script:
    """How the engine behaves; may be changed while it runs."""

    pieces: list[str] | None = None  # of every answer, which then ends with "eos"; None: "w0 ", "w1 ", …
    refuse: m.Error | None = None  # answer to every Task and Embed
    mute: bool = False  # tasks get no answer, not even Admitted
    hold: bool = False  # tasks are admitted and then wait in the queue
    step_seconds: float = 0.0  # length of a step
    n_slots: int = 4  # tasks that generate at the same time
    n_vocab: int = 64
    n_rows: int = 16  # of the slab
    n_embed_tokens: int | None = None  # of an input; None: no embeddings
    pooling: str = "mean"
    scale: float = 1.0  # of vectors and scores
    die_after: int = 0  # break off, like a killed process, after so many steps


@dataclass
class Sequence:
    """A task that runs."""

    client: bytes
    task: m.Task
    text: str = ""
    sent: int = 0  # characters of `text`
    tokens: list[int] = field(default_factory=list)
    probs: list[m.TokenProbs] = field(default_factory=list)
    reason: str = ""
    stopping_word: str = ""
    n_sent: int = 0  # tokens

    @property
    def key(self) -> tuple[bytes, int]:
        return self.client, self.task.id

    @property
    def n_prompt(self) -> int:
        return len(self.task.tokens) // 4

    def timings(self) -> m.Timings:
        return m.Timings(prompt_n=self.n_prompt, prompt_ms=1.0, predicted_n=len(self.tokens), predicted_ms=2.0)


def logits(token: int, n_vocab: int) -> np.ndarray:
    """Logits that were the source of `token`: it has 0, a token at distance d has -d."""
    return -np.abs(np.arange(n_vocab, dtype=np.float32) - token % n_vocab)


def vector(tokens: np.ndarray) -> np.ndarray:
    """The embedding of an input: the sum of its tokens, then their number, then zeros."""
    out = np.zeros(N_EMBD, np.float32)
    out[:2] = tokens.sum(), tokens.size
    return out


def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until `condition()` holds; AssertionError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not true after {seconds:g} s"
        time.sleep(0.002)


class FakeEngine:
    """`start` runs it in a thread; `die` ends it without a word, `hang` and `resume` are SIGSTOP and SIGCONT."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        address: str = "",
        slab_path: str = "",
        script: Script | None = None,
        tcp: TcpBind | None = None,
    ) -> None:
        folder = folder or Path(tempfile.mkdtemp(prefix="fake"))
        self.address = address or f"ipc://{folder}/engine.sock"
        self.slab_path = slab_path or f"{folder}/engine.slab"
        self.script = script or Script()
        self.tcp = tcp
        self.received: list[m.ToEngine] = []
        self.aborted: list[int] = []
        self.boots = 0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "FakeEngine":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, state: State = State.READY) -> "FakeEngine":
        """Bind and serve; after `die` or `close` it is a new engine at the old address."""
        self.open(state)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def open(self, state: State = State.READY) -> None:
        """Bind without serving yet, for a caller that runs `step` itself."""
        self.boot = boot_nonce()
        self.boots += 1
        self.slab = Slab.create(self.slab_path, self.script.n_rows, self.script.n_vocab)
        self.slab.state = state
        self.server = Server(self.address, self.slab, self.tcp)
        self._queue: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._out: dict[bytes, list[m.Result]] = defaultdict(list)
        self._stopping = False
        self._awake = threading.Event()
        self._awake.set()
        self._asleep = threading.Event()

    def close(self) -> None:
        """End: every open task gets an error."""
        if self._join():
            self.end()

    def end(self) -> None:
        """`close` for a caller that runs `step` itself."""
        for sequence in [*self._running, *self._queue]:
            self._fail(sequence, m.Error(503, "unavailable_error", "the engine is shutting down"))
        self._flush()
        self.server.close()
        self.slab.close()

    def die(self) -> None:
        """End as kill -9 does: no Finals, the slab's file stays."""
        if self._join():
            self.server.close()

    def hang(self) -> None:
        """Do nothing, not even a beat, until `resume`."""
        self._asleep.clear()
        self._awake.clear()
        assert self._asleep.wait(5), "the engine's thread does not come to a halt"

    def resume(self) -> None:
        """Go on after `hang`."""
        self._awake.set()

    def got(self, kind: type) -> list[m.ToEngine]:
        """Messages of one kind that arrived so far."""
        return [message for message in self.received if isinstance(message, kind)]

    def _join(self) -> bool:
        """Stop the thread; False when it was stopped before."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        self._stopping = True
        self._awake.set()
        thread.join(10)
        return True

    def _run(self) -> None:
        while not self._stopping:
            if not self._awake.is_set():
                self._asleep.set()
                self._awake.wait()
            self.step()
            if self.script.die_after and self.slab.steps >= self.script.die_after:
                self.server.close()
                return

    # the loop

    def step(self) -> None:
        """Receive, admit, one token for every running task, send."""
        self.slab.beat()
        busy = self._running and not self.script.hold
        self.server.poll(round(1000 * self.script.step_seconds) if busy else 50)
        for client, message in self.server.receive():
            self.received.append(message)
            self._dispatch(client, message)
        while self._queue and len(self._running) < self.script.n_slots and not self.script.hold:
            self._start(self._queue.popleft())
        for sequence in list(self._running):
            self._generate(sequence)
        self.slab.steps += bool(self._running)
        self.slab.active = len(self._running) + len(self._queue)
        self._flush()

    def _dispatch(self, client: bytes, message: m.ToEngine) -> None:
        match message:
            case m.Hello():
                self._drop(client)
                self.server.send(client, self.welcome())
            case m.Task() | m.Embed() if self.script.mute:
                pass
            case m.Task() | m.Embed() if self.script.refuse is not None:
                self._out[client].append(m.Final(message.id, "error", self.script.refuse))
            case m.Task():
                self._out[client].append(m.Admitted(message.id, len(self._queue)))
                self._queue.append(Sequence(client, message))
            case m.Embed():
                self._embed(client, message)
            case m.Abort():
                self._abort((client, message.id))
            case m.Bye():
                self._drop(client)
            case _:
                self.server.send(client, self._reply(message))

    def _start(self, sequence: Sequence) -> None:
        task = sequence.task
        self._running.append(sequence)
        n = sequence.n_prompt
        if task.progress:
            self._out[sequence.client].append(m.Progress(task.id, n, 0, n, 1.0))
        if task.prompt_probs:
            rows = [self._put(sequence.client, int(token)) for token in np.frombuffer(task.tokens, "<i4")[1:]]
            self._out[sequence.client].append(m.PromptProbs(task.id, 1, rows))

    def _generate(self, sequence: Sequence) -> None:
        task, index = sequence.task, len(sequence.tokens)
        n_pieces = DEFAULT_TOKENS if self.script.pieces is None else len(self.script.pieces)
        limited = self.script.pieces is not None or task.max_tokens is None
        if limited and index >= n_pieces:
            sequence.reason = "eos"
        elif task.max_tokens is not None and index >= task.max_tokens:
            sequence.reason = "limit"
        else:
            sequence.text += f"w{index} " if self.script.pieces is None else self.script.pieces[index]
            sequence.tokens.append(index)
            if task.n_probs:
                sequence.probs.append(self._probs(sequence, index))
            self._apply_stop(sequence)
        self._emit(sequence)

    def _apply_stop(self, sequence: Sequence) -> None:
        for word in sequence.task.stop:
            if word in sequence.text:
                sequence.text = sequence.text[: max(sequence.sent, sequence.text.index(word))]
                sequence.reason, sequence.stopping_word = "word", word

    def _emit(self, sequence: Sequence) -> None:
        task, out = sequence.task, self._out[sequence.client]
        fresh = sequence.tokens[sequence.n_sent :]
        if fresh and (task.stream or sequence.reason):
            timings = sequence.timings() if task.timings_per_token else None
            out.append(m.Delta(task.id, sequence.text[sequence.sent :], fresh, sequence.probs, timings))
            sequence.sent, sequence.n_sent, sequence.probs = len(sequence.text), len(sequence.tokens), []
        if sequence.reason:
            self._finish(sequence)

    def _finish(self, sequence: Sequence, error: m.Error | None = None) -> None:
        for place in (self._running, self._queue):
            if sequence in place:
                place.remove(sequence)
        final = m.Final(sequence.task.id, sequence.reason, error, sequence.stopping_word)
        final.n_prompt, final.timings = sequence.n_prompt, sequence.timings()
        final.n_past = final.n_prompt + len(sequence.tokens)
        final.seed = sequence.task.sampling.seed or 0
        self._out[sequence.client].append(final)

    def _fail(self, sequence: Sequence, error: m.Error) -> None:
        sequence.reason = "error"
        self._finish(sequence, error)

    def _abort(self, key: tuple[bytes, int]) -> None:
        self.aborted.append(key[1])
        for sequence in [s for s in [*self._running, *self._queue] if s.key == key]:
            sequence.reason = "abort"
            self._finish(sequence)

    def _drop(self, client: bytes) -> None:
        for sequence in [s for s in [*self._running, *self._queue] if s.client == client]:
            self._abort(sequence.key)
        self._out.pop(client, None)

    def _flush(self) -> None:
        out, self._out = self._out, defaultdict(list)
        for client, results in out.items():
            if not self.server.send(client, m.Step(results)):
                self._drop(client)

    # what it says

    def welcome(self) -> m.Welcome:
        """What this engine serves."""
        n_vocab = self.script.n_vocab
        model = m.ModelInfo("fake.gguf", "fake", "fake", 1000, 2000, "F32", n_vocab, N_CTX, N_EMBD, N_EMBD, 1, 1)
        n, n_embed = self.script.n_slots, self.script.n_embed_tokens
        model.pooling = "none" if n_embed is None else self.script.pooling
        sizes = {"n_slots": n, "n_ctx": n * N_CTX, "n_ctx_slot": N_CTX, "n_batch": 512, "n_ubatch": 128}
        return m.Welcome(
            m.PROTOCOL, self.boot, model, **sizes, slab=self.slab_path, build="fake", pid=1, n_embed_tokens=n_embed
        )

    def _put(self, client: bytes, token: int) -> m.RowRef:
        return self.slab.put(logits(token, self.script.n_vocab), client)

    def _probs(self, sequence: Sequence, token: int) -> m.TokenProbs:
        if sequence.task.post_sampling_probs:
            return m.TokenProbs(token, None, [(token, 0.75), (token + 1, 0.25)])
        return m.TokenProbs(token, self._put(sequence.client, token))

    def _embed(self, client: bytes, embed: m.Embed) -> None:
        tokens = np.frombuffer(embed.tokens, "<i4")
        inputs = np.split(tokens, np.cumsum(np.frombuffer(embed.lengths, "<i4"))[:-1])
        with np.errstate(invalid="ignore"):
            found = [self._vectors(part) * np.float32(self.script.scale) for part in reversed(inputs)]
        rows = self.slab.put_joined([floats.ravel() for floats in found], client)
        counts = [len(floats) for floats in found] if self.script.pooling == "none" else []
        timings = m.Timings(prompt_n=tokens.size)
        self._out[client] += [
            m.Admitted(embed.id),
            m.Vectors(embed.id, list(reversed(range(len(inputs)))), rows, counts),
            m.Final(embed.id, "done", n_prompt=tokens.size, timings=timings),
        ]

    def _vectors(self, tokens: np.ndarray) -> np.ndarray:
        if self.script.pooling == "none":
            return np.stack([vector(tokens[i : i + 1]) for i in range(tokens.size)])
        return np.array([[tokens.size]], np.float32) if self.script.pooling == "rank" else vector(tokens)[None]

    def _reply(self, message: m.ToEngine) -> m.Reply:
        match message:
            case m.GetSlots(id=id):
                return m.SlotsReply(id, self._slots(), len(self._queue))
            case m.GetMetrics(id=id):
                values = {
                    "requests_processing": float(len(self._running)),
                    "requests_deferred": float(len(self._queue)),
                }
                return m.MetricsReply(id, values)
            case m.SlotAction(id=id, slot=slot) if slot < self.script.n_slots:
                return m.SlotReply(id, slot, 7, 42, 1.0)
            case m.SlotAction(id=id):
                return m.Failure(id, BAD_ACTION)
            case m.GetLora(id=id) | m.SetLora(id=id) | m.LoadLora(id=id) | m.DropLora(id=id):
                return m.LoraReply(id, [])
            case m.EndReasoning(id=id):
                return m.Done(id)
        raise AssertionError(f"no reply to {message!r}")

    def _slots(self) -> list[m.SlotState]:
        states = [m.SlotState(i, N_CTX, i < len(self._running)) for i in range(self.script.n_slots)]
        for state, sequence in zip(states, self._running, strict=False):
            state.has_task, state.task, state.state = True, sequence.task.id, "generating"
            state.n_prompt, state.n_decoded = sequence.n_prompt, len(sequence.tokens)
        return states


def main() -> None:
    """Run as a process until it is killed."""
    parser = argparse.ArgumentParser(description="an engine without a model")
    parser.add_argument("--address", required=True)
    parser.add_argument("--slab", required=True)
    numbers = [one for one in fields(Script) if type(one.default) in (int, float)]
    for one in numbers:
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=type(one.default), default=one.default)
    given = parser.parse_args()
    script = Script(**{one.name: getattr(given, one.name) for one in numbers})
    engine = FakeEngine(Path(), address=given.address, slab_path=given.slab, script=script)
    engine.open()
    print("ready", flush=True)
    while not script.die_after or engine.slab.steps < script.die_after:
        engine.step()
    sys.exit(1)


if __name__ == "__main__":
    main()
