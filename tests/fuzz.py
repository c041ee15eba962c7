"""Request bodies as no client should send them, for hypothesis."""

from typing import Any

from hypothesis import strategies as st

from api.table import CONSTRAINTS, TABLE

INTS = [-(2**63) - 1, -(2**31), -2, -1, 0, 1, 2, 3, 64, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 10**25]
FLOATS = [-3.4e38, -1e30, -1.0, -0.0, 0.0, 1e-45, 1e-7, 0.1, 0.5, 0.99, 1.0, 1.5, 1e30, 3.4e38, 1e39, 1e308]
TEXTS = ["", "a", "\n", "\x00", "é", "😀", "<|im_end|>", "a" * 5000, "(", "{{", "\\", 'root ::= "a"', "kpt", "-1"]

scalars = st.none() | st.booleans() | st.sampled_from(INTS) | st.sampled_from(FLOATS) | st.sampled_from(TEXTS)
scalars |= st.integers() | st.floats() | st.text(max_size=6)  # NaN included: some clients write it
wild = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(TEXTS) | st.text(max_size=4), inner),
    max_leaves=8,
)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.sampled_from([0, 1, 2, 3, 5, 64]) | st.sampled_from(INTS),
    "float": st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 1.5, 5.0]) | st.sampled_from(FLOATS),
    "bool": st.booleans(),
    "str": st.sampled_from(TEXTS),
    "[str]": st.lists(st.sampled_from(TEXTS), max_size=4),
}
schemas = st.recursive(
    st.booleans()
    | st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "null", "nope", 3, ["null"]])}),
    lambda inner: st.dictionaries(
        st.sampled_from(["items", "additionalProperties", "not", "anyOf", "properties", "$ref", "enum", "const"]),
        inner | st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | wild,
        max_size=3,
    ),
    max_leaves=6,
)
grammars = st.lists(
    st.sampled_from([*"()*+?|.x\n", "root", "::=", '"a"', "[a-z]", "{2}", "{,3}", "start:"]), max_size=12
).map(" ".join)
prompts = (
    st.text(max_size=20)
    | st.lists(st.integers(-1, 300), max_size=8)
    | st.lists(st.integers(0, 200) | st.text(max_size=5), max_size=5)
    | st.lists(st.text(max_size=5) | st.lists(st.integers(0, 200), max_size=4), max_size=3)
)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "prompt": prompts,
    "json_schema": schemas,
    "response_format": st.fixed_dictionaries({"type": st.just("json_schema"), "json_schema": schemas}),
    "grammar": grammars,
    "lark": grammars,
    "regex": grammars,
    "samplers": st.lists(
        st.sampled_from(["top_k", "xtc", "temp", "infill", "adaptive_p", "dry", "penalties", "typ_p"])
    ),
    "logit_bias": st.lists(st.lists(wild, min_size=2, max_size=2), max_size=3),
    "grammar_triggers": st.lists(
        st.fixed_dictionaries(
            {"type": st.integers(-1, 5), "value": st.sampled_from(TEXTS), "token": st.integers(-1, 9)}
        ),
        max_size=2,
    ),
    "lora": st.lists(st.fixed_dictionaries({"id": st.integers(-1, 2), "scale": st.sampled_from(FLOATS)}), max_size=2),
    "seed": st.integers(-(2**33), 2**33),
}
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **{name: KINDS.get(field.kind, wild) for field in TABLE for name in (field.name, *field.aliases)},
    **{name: wild for name, *_ in CONSTRAINTS},
    "stream_options": st.fixed_dictionaries({"include_usage": wild}),
    **SPECIAL,
}


def mixed(fields: dict[str, st.SearchStrategy[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """A few members of a body: mostly of their own kind, now and then of any."""

    @st.composite
    def body(draw: st.DrawFn) -> dict[str, Any]:
        names = draw(st.lists(st.sampled_from(sorted(fields)), max_size=most, unique=True))
        return {name: draw(fields[name] if draw(st.integers(0, 9)) else wild) for name in names}

    return body()


@st.composite
def completions(draw: st.DrawFn, most_tokens: int) -> dict[str, Any]:
    """A completion's body that asks for few tokens."""
    body = draw(mixed(FIELDS, 5))
    body = {name: value for name, value in body.items() if name not in ("max_tokens", "max_completion_tokens")}
    return {"prompt": "ab", **body, "n_predict": draw(st.integers(0, most_tokens))}


messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "system", "assistant", "tool", "developer", "", 3, None]),
            "content": st.text(max_size=9)
            | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": wild}))
            | wild,
            "tool_calls": wild,
            "tool_call_id": wild,
            "reasoning_content": wild,
        },
    ),
    max_size=4,
)
tools = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": st.sampled_from(["f", "", 3]), "parameters": schemas}),
        }
    )
    | wild,
    max_size=2,
)
OF_ANY_KIND = [
    "model", "inputs", "content", "tokens", "add_special", "with_pieces", "encoding_format", "dimensions",
    "embd_normalize", "documents", "query", "top_n", "texts", "truncate", "instructions", "previous_response_id",
    "metadata", "store", "include", "reasoning", "text", "thinking", "stop_sequences", "options", "format",
    "system", "suffix", "template", "context", "raw", "keep_alive", "think", "name", "id", "action",
    "input_prefix", "input_suffix", "input_extra", "chat_template_kwargs", "parallel_tool_calls", "path", "scale",
]  # fmt: skip
OTHERS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(OF_ANY_KIND, wild),
    "messages": messages,
    "input": messages | wild,
    "tools": tools,
    "tool_choice": st.sampled_from(["auto", "none", "required"]) | wild,
    "max_tokens": st.sampled_from([1, 2, 3]),
    "max_output_tokens": st.sampled_from([1, 2, 3]),
    "top_logprobs": st.sampled_from(INTS),
    "logprobs": st.booleans(),
}


USER = {"role": "user", "content": "hi"}
SHORT = {"prompt": "ab", "n_predict": 2}
CHAT = {"messages": [USER], "max_tokens": 2}
BASES: dict[str, dict[str, Any]] = {
    "/completion": SHORT,
    "/v1/completions": SHORT,
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/chat/completions/control": {"id": "chatcmpl-x", "action": "reasoning_end"},
    "/apply-template": CHAT,
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": CHAT,
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/api/chat": {"messages": [USER], "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "ab", "options": {"num_predict": 2}},
    "/api/show": {"model": "tiny"},
    "/api/embed": {"model": "tiny", "input": "a"},
    "/api/embeddings": {"model": "tiny", "prompt": "a"},
    "/embedding": {"content": "a"},
    "/v1/embeddings": {"input": ["a", "b"]},
    "/rerank": {"query": "a", "documents": ["a", "b"]},
    "/tokenize": {"content": "ab"},
    "/detokenize": {"tokens": [1, 2]},
    "/lora-adapters/load": {"path": "x.gguf"},
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A path and a body that is right but for a few members."""
    path = draw(st.sampled_from(sorted(BASES)))
    body = dict(BASES[path])
    for name in draw(st.lists(st.sampled_from(sorted(body)), max_size=1)):
        body[name] = draw({**FIELDS, **OTHERS}.get(name, wild))
    return path, body | draw(mixed({**FIELDS, **OTHERS}, 3))
