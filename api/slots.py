"""GET /slots: what each slot of the engine is doing; `spec/endpoints.md` §8."""

from typing import Any

from falcon.asgi import Request, Response

from api.errors import ApiError, encode, unsupported
from api.params import Params
from api.service import Service
from ipc.messages import GetSlots, SlotsReply, SlotState

DISABLED = "This server does not support slots endpoint. Start it with `--slots`"


class Slots:
    """The slots' states, without what people wrote unless debugging is on."""

    def __init__(self, service: Service, debug: bool = False) -> None:
        """`debug`: with prompts, texts and full settings."""
        self.service = service
        self.debug = debug

    async def on_get(self, req: Request, resp: Response) -> None:
        """An array with one object per slot; 503 when none is idle and the query asks for that."""
        if not self.service.config.http.slots:
            raise unsupported(DISABLED)
        reply: SlotsReply = await self.service.client.call(GetSlots(0, debug=self.debug))
        if req.get_param("fail_on_no_slot") and all(slot.is_processing for slot in reply.slots):
            raise ApiError(503, "no slot available")
        resp.data = encode([self.shown(slot) for slot in reply.slots])

    def shown(self, slot: SlotState) -> dict[str, Any]:
        """One slot."""
        shown: dict[str, Any] = {
            "id": slot.id,
            "n_ctx": slot.n_ctx,
            "speculative": slot.speculative,
            "is_processing": slot.is_processing,
        }
        if slot.has_task:
            shown |= self.task(slot)
        if slot.has_task and self.debug:
            shown |= {"prompt": slot.prompt, "generated": slot.generated}
        return shown

    def task(self, slot: SlotState) -> dict[str, Any]:
        """What belongs to the slot's present or last task."""
        schema = self.service.fields
        params = Params(slot.params) if slot.params is not None else schema.defaults
        idle = not slot.is_processing
        next_token = {
            "has_next_token": slot.has_next_token,
            "has_new_line": slot.has_new_line,
            "n_remain": -1 if idle or slot.n_remain is None else slot.n_remain,
            "n_decoded": 0 if idle else slot.n_decoded,
        }
        return {
            "id_task": slot.task,
            "n_prompt_tokens": slot.n_prompt,
            "n_prompt_tokens_processed": slot.n_prompt_processed,
            "n_prompt_tokens_cache": slot.n_prompt_cached,
            "params": schema.settings(params, full=self.debug),
            "next_token": [next_token],
        }
