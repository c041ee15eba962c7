"""Reading a request body: a JSON object within the size limit."""

from typing import Any

import msgspec
from falcon.asgi import Request

from api.errors import ApiError, invalid
from api.fields import kind_of

MEBI = 1 << 20
decode = msgspec.json.Decoder().decode


async def read_json(req: Request, max_mib: int) -> Any:
    """The decoded body; the Content-Type is not looked at."""
    limit = max_mib * MEBI
    if (req.content_length or 0) > limit:
        raise too_large(max_mib)
    data = await req.stream.read(limit + 1)
    if len(data) > limit:
        raise too_large(max_mib)
    return decode(data)


async def read_object(req: Request, max_mib: int) -> dict[str, Any]:
    """The decoded body, which must be an object."""
    body = await read_json(req, max_mib)
    if not isinstance(body, dict):
        raise invalid(f"The request body must be a JSON object, but is {kind_of(body)}")
    return body


def too_large(max_mib: int) -> ApiError:
    """413 with the limit."""
    return ApiError(413, f"The request body is larger than {max_mib} MiB")
