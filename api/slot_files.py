"""POST /slots/{id}?action=save|restore|erase; `spec/endpoints.md` §8."""

from typing import Any

from falcon.asgi import Request, Response

from api.body import read_object
from api.errors import encode, invalid, unsupported
from api.filenames import is_safe
from api.service import Service
from ipc.messages import SlotAction, SlotReply

DISABLED = "This server does not support slots action. Start it with `--slot-save-path`"
SECONDS = 600.0  # that a busy slot and its file may take


class SlotFiles:
    """What a slot holds goes to a file and comes back. An action on a busy slot waits until it is idle."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_post(self, req: Request, resp: Response, slot: str) -> None:
        """The action's outcome; the slot's number wraps around."""
        if self.service.config.engine.slot_save_path is None:
            raise unsupported(DISABLED)
        action = req.get_param("action") or ""
        if action not in ("save", "restore", "erase"):
            raise invalid("Invalid action")
        name = "" if action == "erase" else await self._filename(req)
        reply = await self._ask(_number(slot), action, name)
        resp.data = encode(shown(action, name, reply))

    async def _filename(self, req: Request) -> str:
        body = await read_object(req, self.service.config.http.max_body_mib)
        name = body.get("filename")
        if not isinstance(name, str) or not is_safe(name):
            raise invalid("Invalid filename")
        return name

    async def _ask(self, number: int, action: str, name: str) -> SlotReply:
        control = SlotAction(0, number % self.service.info.n_slots, action, name)
        reply: SlotReply = await self.service.client.call(control, SECONDS)
        return reply


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise invalid("Invalid slot ID") from None


def shown(action: str, name: str, reply: SlotReply) -> dict[str, Any]:
    """The answer in the contract's names."""
    match action:
        case "save":
            counts = {"n_saved": reply.n_tokens, "n_written": reply.n_bytes, "timings": {"save_ms": reply.ms}}
        case "restore":
            counts = {"n_restored": reply.n_tokens, "n_read": reply.n_bytes, "timings": {"restore_ms": reply.ms}}
        case _:
            return {"id_slot": reply.slot, "n_erased": reply.n_tokens}
    return {"id_slot": reply.slot, "filename": name, **counts}
