"""GET /health: whether requests can be served. Reads shared memory only; never waits for the engine."""

from falcon.asgi import Request, Response

from api.errors import ApiError, encode
from api.service import Service

OK = encode({"status": "ok"})


class Health:
    """`{"status": "ok"}`, or 503 with the reason."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer at once."""
        reason = self.service.unavailable()
        if reason:
            raise ApiError(503, reason)
        resp.data = OK


class Readiness:
    """Middleware: 503 for everything while no request can be served."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def process_request(self, req: Request, resp: Response) -> None:
        """Raise 503 unless the service is ready."""
        await self.service.connected()
        self.service.check()
