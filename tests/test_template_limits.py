from time import monotonic

import pytest

from api.chat_errors import TemplateError
from api.template import ChatTemplate
from api.template_limits import Limits

DOUBLING = "{% set ns = namespace(x='ab') %}{% for i in range(999) %}{% set ns.x = STEP %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) if range(99999) | list | length == 1 %}{% endfor %}",
        "{{ range(99999) | select('in', range(99999) | list | reverse | list) | list | length }}",
        "{% macro f(n) %}{% for i in range(9) %}{{ f(n + 1) if n < 20 }}{% endfor %}{% endmacro %}{{ f(0) }}",
    ],
)
def test_endless_template_ends_at_its_time_limit(source: str) -> None:
    began = monotonic()
    with pytest.raises(TemplateError, match=r"longer than 0\.2 s"):
        ChatTemplate(source, limits=Limits(seconds=0.2)).render([])
    assert monotonic() - began < 5


@pytest.mark.parametrize(
    "source",
    [
        DOUBLING.replace("STEP", "ns.x ~ ns.x"),
        DOUBLING.replace("STEP", "ns.x + ns.x"),
        DOUBLING.replace("STEP", "ns.x * 9"),
        DOUBLING.replace("STEP", "ns.x.replace('a', ns.x)"),
        DOUBLING.replace("STEP", "ns.x | replace('a', ns.x)"),
        DOUBLING.replace("STEP", "[ns.x, ns.x] | join"),
        DOUBLING.replace("STEP", "ns.x.join(['a', 'b', 'c', 'd'])"),
        DOUBLING.replace("STEP", "'%s%s' % (ns.x, ns.x)"),
        DOUBLING.replace("STEP", "'%s%s' | format(ns.x, ns.x)"),
        DOUBLING.replace("STEP", "'{0}{0}'.format(ns.x)"),
        "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ ('a\n' * 999999) | indent(999999) }}",
    ],
)
def test_text_stops_growing_at_its_limit(source: str) -> None:
    with pytest.raises(TemplateError, match="more than 1000000 characters"):
        ChatTemplate(source, limits=Limits(chars=1_000_000)).render([])


@pytest.mark.parametrize(
    "expression",
    [
        "'%1000000000d' % 1",
        "'%*d' % (10, 1)",
        "'{:1000000000}'.format(1)",
        "'a' | center(10**9)",
        "'a'.ljust(10**9)",
        "5 | round(-10**9)",
        "[1] | batch(10**9, 1) | list",
        "[[]] * 10**9",
        "10 ** 9999",
        "range(10**9)",
        "'a'.translate({97: 'b'})",
        "[1] | tojson(indent=10**6)",
        "lipsum(n=10**9)",
    ],
)
def test_absurd_numbers_are_refused(expression: str) -> None:
    began = monotonic()
    with pytest.raises(TemplateError):
        ChatTemplate(f"{{{{ {expression} }}}}").render([])
    assert monotonic() - began < 5


def test_recursion_without_end_is_an_error() -> None:
    with pytest.raises(TemplateError, match="recursion"):
        ChatTemplate("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").render([])


def test_list_that_doubles_is_stopped() -> None:
    source = "{% set l = [1] %}{% for i in range(99) %}{% set _ = l.extend(l) %}{% endfor %}"
    with pytest.raises(TemplateError, match="above 1000000"):
        ChatTemplate(source).render([])


def test_limits_leave_long_histories_alone() -> None:
    source = "{% for m in messages %}{{ m.role ~ ': ' ~ (m.content | trim) }}{% endfor %}"
    turns = [{"role": "user", "content": "word " * 2000}] * 500
    assert len(ChatTemplate(source).render(turns)) == 500 * (6 + 9999)
