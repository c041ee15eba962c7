"""Decides what each decode step evaluates. Pure policy: no ctypes, no sockets, no clock of its own."""

from dataclasses import dataclass

from engine.regime import Key
from engine.sequence import Phase
from engine.slot import Slot

_SMOOTHING = 0.2  # weight of the newest measurement
_GAP_FACTOR = 2.5  # without a target, a step with prompt work may take this much of a plain decode step
_FIRST_SHARE = 64  # prompt tokens beside generated ones before costs are known
_TILE = 64  # queries that flash attention takes together on a CPU; fewer cost as much
_SMALLEST_PIECE = 32  # of a prompt, so that prompts end


@dataclass(slots=True)
class Chunk:
    """Evaluate the next `n` tokens of `slot`, the last `n_draft` of which are guesses.

    `output` says whether the last known token (and every guess) yields logits.
    """

    slot: Slot
    n: int
    output: bool
    n_draft: int = 0


class Cost:
    """What steps cost, learned from measurements: a plain decode step by its size, and a prompt token beside it."""

    def __init__(self) -> None:
        self._decode_ms: dict[int, float] = {}  # by the bit length of the number of generated tokens
        self.prompt_token_ms: float | None = None

    def observe(self, n_decode: int, n_prompt: int, ms: float) -> None:
        """A step with `n_decode` generated and `n_prompt` prompt tokens took `ms`."""
        if n_decode and not n_prompt:
            size = n_decode.bit_length()
            self._decode_ms[size] = _blend(self._decode_ms.get(size), ms)
        elif n_prompt:
            base = (self.decode_ms(n_decode) or 0.0) if n_decode else 0.0
            self.prompt_token_ms = _blend(self.prompt_token_ms, max(0.0, ms - base) / n_prompt)

    def decode_ms(self, n_decode: int) -> float | None:
        """A plain step with `n_decode` tokens, from the nearest size that was measured."""
        size = n_decode.bit_length()
        nearest = min(self._decode_ms, key=lambda known: abs(known - size), default=None)
        return None if nearest is None else self._decode_ms[nearest]


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)


class Scheduler:
    """Every generating slot gets its tokens in every step; prompts take turns in what the step can carry beside them.

    `largest` bounds the tokens of one step (libllama's physical batch), which also bounds how long an abort waits.
    From position `tile_from` on attention is so much of the work that prompts are read in whole tiles.
    """

    def __init__(self, largest: int, target_gap_ms: float | None = None, tile_from: int = 0) -> None:
        self._largest = largest
        self._target_gap_ms = target_gap_ms
        self._tile_from = tile_from
        self.cost = Cost()
        self._acting: Key | None = None  # adapters of the last step
        self._n_steps = 1

    def plan(self, slots: list[Slot]) -> list[Chunk]:
        """The chunks of the next step; empty when there is nothing to evaluate.

        They are in the order of slots: where each sequence has a KV stream of its own, libllama evaluates only
        sequences together that follow each other.
        """
        busy = self._turn([slot for slot in slots if slot.sequence is not None])
        chunks = self._generating(busy)
        reading = [slot for slot in busy if slot.sequence and slot.sequence.phase is Phase.PREFILL]
        if not reading:
            return chunks
        crowd = len(reading) / max(1, len(chunks))
        least = self._least_piece(reading)
        room = self._prompt_share(sum(chunk.n for chunk in chunks), crowd, least)
        return sorted(chunks + self._reading(reading, room, least), key=lambda chunk: chunk.slot.id)

    def _least_piece(self, reading: list[Slot]) -> int:
        """Tokens of a prompt that are worth a step's while; a target for the gaps has them as small as possible."""
        if not self._target_gap_ms and any(slot.n_past >= self._tile_from for slot in reading):
            return _TILE
        return _SMALLEST_PIECE

    def _reading(self, slots: list[Slot], room: int, least: int) -> list[Chunk]:
        """Prompts take turns in long pieces: the shortest rest first in one step, the longest unread in the next.

        Rests of about the same length are read as they came: sequences that start in order end in order, and those that
        go on keep neighbouring slots.
        """
        self._n_steps += 1
        reading = [(slot.sequence, slot) for slot in slots if slot.sequence is not None]
        for sequence, _ in reading:
            sequence.read_at = sequence.read_at or self._n_steps - 1
        shortest = self._n_steps % 2
        reading.sort(
            key=lambda pair: (len(pair[1].todo).bit_length() if shortest else pair[0].read_at, pair[0].precedence)
        )
        chunks = pieces([slot for _, slot in reading], room, least)
        for chunk in chunks:
            if chunk.slot.sequence is not None:
                chunk.slot.sequence.read_at = self._n_steps
        return chunks

    def _generating(self, busy: list[Slot]) -> list[Chunk]:
        """What generating slots need. Forced tokens may be more than fit: they go on in the next step."""
        slots = [slot for slot in busy if slot.sequence and slot.sequence.phase is Phase.GENERATING]
        chunks, room = [], self._largest
        for left, slot in zip(range(len(slots), 0, -1), slots, strict=True):
            todo = len(slot.todo)
            n = min(todo, max(1, room // left))
            n_draft = slot.sequence.n_draft if slot.sequence is not None else 0
            chunks.append(Chunk(slot, n, n == todo, n_draft))
            room -= n
        return chunks

    def _turn(self, busy: list[Slot]) -> list[Slot]:
        """The slots that may run together: a step has one set of adapters, and the sets take turns."""
        keys = sorted({slot.acting for slot in busy if slot.runnable})
        if not keys:
            return []
        later = [key for key in keys if key > self._acting] if self._acting is not None else []
        self._acting = later[0] if later else keys[0]
        return [slot for slot in busy if slot.runnable and slot.acting == self._acting]

    def room_beside(self, chunks: list[Chunk]) -> int:
        """Tokens of other work that may follow a step of `chunks` before the next one."""
        n_decode = sum(chunk.n for chunk in chunks if chunk.output)
        return self._prompt_share(n_decode) if n_decode else self._largest

    def _prompt_share(self, n_decode: int, crowd: float = 1.0, least: int = _SMALLEST_PIECE) -> int:
        """Prompt tokens that a step may carry beside `n_decode` generated ones.

        `crowd` is how many prompts wait for each sequence that generates: a burst of prompts is not held up for the
        sake of the few that were first.
        """
        room = max(0, self._largest - n_decode)
        if not n_decode:
            return room
        decode_ms, token_ms = self.cost.decode_ms(n_decode), self.cost.prompt_token_ms
        if decode_ms is None or token_ms is None:
            return min(room, int(_FIRST_SHARE * max(1.0, crowd)))
        target = self._target_gap_ms or _GAP_FACTOR * decode_ms * max(1.0, crowd)
        affordable = (target - decode_ms) / max(token_ms, 1e-6)
        return min(room, max(least + 1, int(affordable)))  # libllama may take the first token beside generated ones


def pieces(slots: list[Slot], room: int, least: int) -> list[Chunk]:
    """The next pieces of these prompts, the first one first, in `room` tokens.

    A prompt of which less than `least` tokens would fit waits: libllama evaluates sequences together only as far as
    their pieces are equally long, and takes as long for a part of a tile as for a whole one. So where a step has room
    for one tile, an end that does not fill it is read in two steps.
    """
    chunks: list[Chunk] = []
    for slot in slots:
        remaining = len(slot.todo)
        wanted = min(remaining, _step_limit(slot), slot.n_alike)
        n = min(wanted, room)
        if room == least + 1 and n < room:
            n = min(n, _SMALLEST_PIECE + 1)
        if n > 0 and (n == wanted or n >= least or not chunks):
            chunks.append(Chunk(slot, n, n == remaining))
            room -= n
    return chunks


def _step_limit(slot: Slot) -> int:
    """A task that wants its prompt's logits is read in pieces that its reader can keep up with."""
    sequence = slot.sequence
    if sequence is None:
        return 1 << 30
    return min(32 if sequence.task.prompt_probs else 1 << 30, sequence.before_pause(slot.n_past))
