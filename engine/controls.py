"""Answers what clients ask about the engine itself: slots, metrics, thinking control."""

from dataclasses import dataclass

import msgspec

from engine.lora_controls import LoraControls
from engine.memory import Memory
from engine.metrics import Metrics
from engine.sequence import Phase, Sequence
from engine.sequences import Sequences
from engine.slot import Slot
from engine.slot_actions import SlotActions
from engine.vocab import Vocab
from ipc.messages import (
    Control,
    Done,
    DropLora,
    EndReasoning,
    Error,
    Failure,
    GetLora,
    GetMetrics,
    GetSlots,
    LoadLora,
    MetricsReply,
    SetLora,
    SlotAction,
    SlotsReply,
    SlotState,
)
from ipc.server import Server


@dataclass(eq=False)
class Controls:
    """Control messages. What takes time is answered by `run_deferred`."""

    slots: list[Slot]
    memory: Memory
    metrics: Metrics
    sequences: Sequences
    vocab: Vocab
    server: Server
    lora: LoraControls
    actions: SlotActions

    @property
    def busy(self) -> bool:
        """Whether a file is being read or written for somebody."""
        return self.lora.busy or self.actions.busy

    def handle(self, client: bytes, message: Control) -> None:
        match message:
            case GetSlots():
                states = [self._state(slot, message.debug) for slot in self.slots]
                self.server.send(client, SlotsReply(message.id, states, len(self.sequences.queue)))
            case GetMetrics():
                busy = sum(not slot.idle for slot in self.slots)
                values = self.metrics.values(busy, len(self.sequences.queue), reset=message.reset)
                accepted = self.metrics.accepted_per_position
                self.server.send(client, MetricsReply(message.id, values, accepted))
            case SlotAction():
                self.actions.take(client, message)
            case EndReasoning():
                self._end_reasoning(client, message)
            case GetLora() | SetLora() | LoadLora() | DropLora():
                self.lora.handle(client, message)

    def run_deferred(self) -> None:
        """Carry out what has become possible: actions on slots that are idle now, adapters that have been loaded."""
        self.lora.take_loaded()
        self.actions.run()

    def close(self) -> None:
        """Finish what is being read or written."""
        self.lora.close()
        self.actions.close()

    def _end_reasoning(self, client: bytes, message: EndReasoning) -> None:
        found = self._named(client, message)
        able = [one for one in (sequence.sampler.reasoning for sequence in found) if one is not None]
        able = [one for one in able if one.controllable]
        for reasoning in able:
            reasoning.end()
        if able:
            self.server.send(client, Done(message.id))
            return
        text = "reasoning control not enabled for this completion" if found else "no active completion for this id"
        self._fail(client, message.id, 404, "not_found_error", text)

    def _named(self, client: bytes, message: EndReasoning) -> list[Sequence]:
        if message.label:
            return [sequence for sequence in self.sequences.all() if sequence.task.label == message.label]
        found = self.sequences.get((client, message.task))
        return [found] if found is not None else []

    def _state(self, slot: Slot, debug: bool) -> SlotState:
        sequence = slot.sequence or slot.previous
        state = SlotState(slot.id, slot.n_ctx, not slot.idle)
        if debug:
            state.n_past = slot.n_past
            state.pos_min, state.pos_max = self.memory.held(slot)
        if sequence is None:
            return state
        running = slot.sequence is not None
        state.has_task, state.task = True, sequence.task.id
        state.state = sequence.phase.value if running else "idle"
        state.n_prompt = len(sequence.prompt)
        state.n_prompt_processed, state.n_prompt_cached = sequence.n_evaluated, sequence.n_cached
        state.n_decoded = len(sequence.output) if running else 0
        state.n_remain = sequence.n_remaining if running else None
        state.has_next_token = running and sequence.phase is Phase.GENERATING
        state.has_new_line = sequence.has_new_line
        state.params = msgspec.structs.replace(sequence.task, tokens=b"", message_starts=[])
        if debug:
            self._add_texts(state, sequence)
        return state

    def _add_texts(self, state: SlotState, sequence: Sequence) -> None:
        state.prompt = self.vocab.decode(sequence.prompt, special=True).decode("utf-8", "replace")
        state.generated = sequence.generated

    def _fail(self, client: bytes, request: int, code: int, kind: str, text: str) -> None:
        self.server.send(client, Failure(request, Error(code, kind, text)))
