"""A JSON schema, regex or Lark constraint as what llguidance compiles."""

import json
from typing import Any

import llguidance

from engine.grammar import GrammarError
from ipc.messages import Constraint

LIMITS = llguidance.LLParserLimits(verbose_errors=False)
_JSON: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def llg_source(constraint: Constraint) -> str:
    """What llguidance compiles. Raises GrammarError for what it must not see."""
    if constraint.kind == "json_schema":
        return llguidance.LLMatcher.grammar_from_json_schema(json.loads(constraint.text), overrides=_JSON)
    if constraint.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(constraint.text)
    if constraint.kind == "lark":
        return llguidance.LLMatcher.grammar_from_lark(constraint.text)
    raise GrammarError(f"unknown kind of constraint: {constraint.kind!r}")
