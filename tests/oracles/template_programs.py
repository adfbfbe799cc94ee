"""Chat templates that try to run for ever or to fill the memory: two hundred programs of Jinja by number.

Written from Jinja's documentation of its syntax, tests and filters. A program is what grows, how often, inside which
statements, and what reads it in the end; those of ``NAMED`` are written by hand.
"""

# ruff: noqa: E501, ISC004  (a program a line)
from __future__ import annotations

import random

NAMED = (
    # loops and recursion
    "{% for a in range(9999999) %}{% for b in range(9999999) %}{% endfor %}{% endfor %}",
    "{% for a in range(3000) for b in [1] %}{% endfor %}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(64) }}",
    "{% macro f() %}{% call(x) f() %}{{ caller(1) }}{% endcall %}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% set x = caller() if caller else '' %}{% call f() %}{{ x }}{{ x }}{% endcall %}{% endmacro %}{{ f() }}",
    "{{ (range(10 ** 9) | list) | length }}",
    "{{ range(10 ** 9) | sum }}",
    "{{ (range(10 ** 8) | map('string')) | join }}",
    "{{ range(10 ** 9) | batch(1) | list | length }}",
    "{{ range(100000) | groupby('x') | list | length }}",
    "{% set ns = namespace(go=true) %}{% for a in range(10 ** 9) if ns.go %}{% endfor %}",
    # namespaces that hold themselves and each other
    "{% set n = namespace(a=1) %}{% set n.a = n %}{{ n.a.a.a }}{{ n }}",
    "{% set n = namespace(a=1) %}{% for i in range(99) %}{% set n = namespace(a=n, b=n) %}{% endfor %}{{ n }}",
    "{% set n = namespace(s=1) %}{% for i in range(99) %}{% set n.s = namespace(a=n.s, b=n.s) %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s=[1]) %}{% for i in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s == [n.s] }}",
    "{% set n = namespace(s=[1]) %}{% for i in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | string | length }}",
    "{% set n = namespace(s=[1]) %}{% for i in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | pprint }}",
    "{% set n = namespace(s=[1]) %}{% for i in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson | length }}",
    "{% set n = namespace(s=(1,)) %}{% for i in range(40) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ {n.s: 1} }}",
    "{% set n = namespace(s=(1,)) %}{% for i in range(40) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ [n.s, n.s] | unique | list }}",
    "{% set n = namespace(s=(1,), t=(1,)) %}{% for i in range(40) %}{% set n.s = (n.s, n.s) %}{% set n.t = (n.t, n.t) %}"
    "{% endfor %}{{ n.s < n.t }}",
    "{% set n = namespace(s=(1,), t=(1,)) %}{% for i in range(40) %}{% set n.s = (n.s, n.s) %}{% set n.t = (n.t, n.t) %}"
    "{% endfor %}{{ [n.s, n.t] | sort }}{{ [n.s, n.t] | max }}",
    "{% set n = namespace(s=(1,), t=(1,)) %}{% for i in range(40) %}{% set n.s = (n.s, n.s) %}{% set n.t = (n.t, n.t) %}"
    "{% endfor %}{{ n.s in (n.t,) }}{{ (n.t,).index(n.s) }}",
    # dictionaries and their views
    "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = dict(a=n.s, b=n.s) %}{% endfor %}{{ n.s.items() }}",
    "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = dict(a=n.s, b=n.s) %}{% endfor %}{{ n.s.values() | list }}",
    "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = dict(a=n.s, b=n.s).values() %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = dict(a=n.s, b=n.s).items() %}{% endfor %}{{ n.s ~ '' }}",
    "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = dict(a=n.s).items() | list * 2 %}{% endfor %}{{ n.s }}",
    "{% set d = {'a': 'x' * 4000000} %}{{ d.items() ~ d.items() ~ d.items() ~ d.values() ~ d }}",
    "{% set d = dict.fromkeys(range(10 ** 8), 1) %}{{ d | length }}",
    "{{ dict(range(10 ** 7) | batch(2)) | length }}",
    "{% set n = namespace(s=1) %}{% for i in range(40) %}{% set n.s = {'a': n.s, 'b': n.s} %}{% endfor %}{{ n.s | dictsort }}",
    "{% set n = namespace(s=1) %}{% for i in range(40) %}{% set n.s = {'a': n.s, 'b': n.s} %}{% endfor %}{{ n.s | xmlattr }}",
    "{% set n = namespace(s=1) %}{% for i in range(40) %}{% set n.s = {'a': n.s, 'b': n.s} %}{% endfor %}{{ n.s | urlencode }}",
    # whole numbers
    "{{ 9 ** 9 ** 9 }}",
    "{{ (9 ** 9999) ** 9999 }}",
    "{% set n = namespace(s=9) %}{% for i in range(60) %}{% set n.s = n.s * n.s %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s=9) %}{% for i in range(26) %}{% set n.s = n.s * n.s %}{% endfor %}{{ n.s % 7 }}",
    "{% set n = namespace(s=9) %}{% for i in range(22) %}{% set n.s = n.s * n.s %}{% endfor %}{{ n.s // 3 // 3 // 3 }}",
    "{% set n = namespace(s=9) %}{% for i in range(22) %}{% set n.s = n.s * n.s %}{% endfor %}{{ '%x' % n.s }}",
    "{% set n = namespace(s=9) %}{% for i in range(22) %}{% set n.s = n.s * n.s %}{% endfor %}{{ n.s | string }}",
    "{% set n = namespace(s=9) %}{% for i in range(22) %}{% set n.s = n.s * n.s %}{% endfor %}{{ (n.s ~ '')[:9] }}",
    "{{ ('9' * 4000000) | int }}",
    "{{ ('f' * 4000000) | int(base=16) % 7 }}",
    "{{ ('9' * 4000000) | float }}",
    "{{ 1e308 * 10 }}{{ 10 ** 400 | float }}{{ (1e308 * 10) | int }}",
    "{{ 1.5 | round(10 ** 9) }}{{ 1.5 | round(-(10 ** 9)) }}",
    "{{ (2 ** 63) | filesizeformat }}{{ -(2 ** 64) }}{{ 2 ** 64 - 1 }}",
    "{{ range(2 ** 63) | length }}{{ range(2 ** 70)[5] }}",
    # formats and widths
    "{{ '%999999999s' % 'x' }}",
    "{{ '%.999999999f' % 1 }}",
    "{{ '%-*.*f' % (99999999, 99999999, 1) }}",
    "{{ '{:>99999999}{:>99999999}'.format(1, 2) }}",
    "{{ '{0:{1}}'.format(1, 99999999) }}",
    "{{ '{0[0]}{0[0]}'.format(['x' * 4000000]) }}",
    "{{ '{:,.99999999f}'.format(1) }}",
    "{{ ('{0}' * 100000).format('x' * 100000) }}",
    "{{ ('%(a)s' * 100000) % {'a': 'x' * 100000} }}",
    "{{ 'x' | center(99999999) }}{{ 'x'.center(99999999) }}{{ 'x'.zfill(99999999) }}{{ 'x'.rjust(99999999) }}",
    "{{ ('x\n' * 2000000) | indent(99999, true) }}",
    "{{ ('x\t' * 2000000).expandtabs(99999) }}",
    # text that grows by what reads it
    "{% set x = '&' * 4000000 %}{{ x | e | e | e | e | e }}",
    "{% set x = ' ' * 4000000 %}{{ x | urlencode | urlencode | urlencode }}",
    "{% set x = '\"' * 1000000 %}{{ x | tojson | tojson | tojson | tojson }}",
    "{{ ('x' * 2000000).replace('', 'y' * 2000) }}",
    "{{ ('x' * 2000000) | replace('x', 'y' * 2000) }}",
    "{{ ('x' * 4000000) | list | length }}{{ ('x' * 4000000) | list | join('y' * 999) }}",
    "{{ ('x ' * 2000000).split() | length }}{{ ('x\n' * 2000000).splitlines() | length }}",
    "{{ ('x' * 4000000).encode('utf-32').decode('utf-16') }}",
    "{{ ('x' * 4000000).encode('utf-8').hex().encode('utf-8').hex() }}",
    "{{ ('x' * 2000000) | wordwrap(1) }}{{ ('x' * 2000000) | wordwrap(1, wrapstring='y' * 9999) }}",
    "{{ ('http://a.b ' * 300000) | urlize(rel='x' * 9999) }}",
    "{{ ('<' * 2000000) | striptags }}{{ ('<!--' * 500000) | striptags }}",
    "{{ ('x' * 2000000).count('') }}{{ ('ab' * 1000000).find('b' * 999999 ~ 'a') }}",
    "{{ ('a' * 2000000) in ('b' * 2000000) }}{{ ('a' * 1000000 ~ 'b') in ('a' * 2000000) }}",
    "{{ ('x' * 2000000).translate({120: 'y' * 9999}) }}{{ ('ß' * 2000000).upper().lower().title().casefold() }}",
    "{{ ('x' * 2000000) | title | capitalize | wordcount }}{{ ('x' * 2000000) | truncate(1999999, true, 'z' * 9999) }}",
    "{% set x = ['x' * 4000000] * 9999 %}{{ x | join }}",
    "{% set x = ['x' * 4000000] * 9999 %}{{ x }}",
    "{% set x = ['x' * 4000000] * 9999 %}{{ x | map('upper') | list | length }}",
    "{% set x = ['x' * 4000000] * 9999 %}{{ x | sum(start='') }}",
    "{{ [[1] * 4000000] | sum(start=[]) | length }}{{ ([[1] * 9999] * 9999) | sum(start=[]) | length }}",
    "{{ [1] * 10 ** 9 }}{{ (1,) * 10 ** 9 }}{{ 10 ** 9 * 'x' }}",
    "{{ ([1] * 4000000) | slice(4000000) | list | length }}{{ [1] | batch(10 ** 9, 'x') | list | length }}",
    "{{ [1] | slice(10 ** 9) | list | length }}",
    "{{ lipsum(n=10 ** 7) }}",
    "{{ cycler(*range(10 ** 8)) }}{{ joiner('x' * 10 ** 9)() }}",
    # blocks
    "{% set x %}{% for i in range(300000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endset %}{{ x ~ x ~ x ~ x }}",
    "{% set x | upper %}{% for i in range(300000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endset %}{{ x }}",
    "{% filter replace('x', 'y' * 9999) %}{% for i in range(300000) %}x{% endfor %}{% endfilter %}",
    "{% set x = 'x' * 4000000 %}{% for i in range(9999) %}{% set y %}{{ x }}{% endset %}{% endfor %}",
    "{% set x = 'x' * 4000000 %}{% macro f() %}{{ x }}{% endmacro %}{% for i in range(9999) %}{% set y = f() %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = n.l + ['x' * 4000000 ~ i] %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = n.l + [i] %}{% endfor %}{{ n.l | length }}",
    "{% set n = namespace(l='') %}{% for i in range(99999) %}{% set n.l = n.l ~ messages[0].content %}{% endfor %}{{ n.l }}",
    "{% set n = namespace(l=messages) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}{{ n.l | length }}",
    "{% generation %}{% for i in range(10 ** 9) %}x{% endfor %}{% endgeneration %}",
    "{% block a %}{% for i in range(999) %}{{ self.a() }}{% endfor %}{% endblock %}",
    "{{ 'x' * 3000000 }}" * 60,
    "{{ 'x' }}" * 40_000,
    "{% if 1 %}" * 300 + "x" + "{% endif %}" * 300,
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{{ " + "-" * 5000 + "1 }}",
    "{{ " + "[" * 900 + "]" * 900 + " }}",
    "{{ 1" + " + 1" * 20_000 + " }}",
    "{{ 'x'" + " ~ 'x'" * 20_000 + " }}",
    "{{ strftime_now('%Y' * 2000000) }}{{ strftime_now('%99999999Y') }}",
    "{{ raise_exception('x' * 10 ** 9) }}",
    "{{ raise_exception('x' * 4000000) }}",
)

# What grows: each doubles n.s, or more, in its own type.
TEXT = (
    "n.s ~ n.s",
    "n.s + n.s",
    "n.s * 2",
    "'%s%s' % (n.s, n.s)",
    "'{0}{0}'.format(n.s)",
    "[n.s, n.s] | join",
    "n.s.join(['', '', ''])",
    "n.s.replace('x', 'xx')",
    "n.s | replace('x', 'xx')",
    "(n.s, n.s) | join('x')",
    "n.s[:] ~ n.s[::-1]",
    "f(n.s) ~ f(n.s)",
    "n.s | list | join('x')",
    "n.s.translate({120: 'xx'})",
    "n.s | center(2 * n.s | length)",
    "n.s.ljust(n.s | length * 2)",
    "'%(a)s%(a)s' % {'a': n.s}",
    "n.s | indent(2, true) ~ n.s",
    "(n.s ~ n.s) | upper | lower",
    "n.s | format ~ n.s",
)
HOLD = (
    "[n.s, n.s]",
    "(n.s, n.s)",
    "{'a': n.s, 'b': n.s}",
    "dict(a=n.s, b=n.s)",
    "[n.s] + [n.s]",
    "[n.s] * 2",
    "[[n.s], [n.s]] | sum(start=[])",
    "dict(a=n.s, b=n.s).items()",
    "dict(a=n.s, b=n.s).values() | list",
    "namespace(a=n.s, b=n.s)",
    "[n.s, n.s] | map('string') | list",
    "(n.s,) * 2",
    "[n.s, n.s][:]",
    "{'a': [n.s, n.s]}.items() | list",
    "[n.s, n.s] | batch(1) | list",
    "[n.s, n.s] | list | reverse | list",
    "cycler(n.s, n.s)",
    "[n.s, n.s] | slice(2) | list",
    "dict({'a': n.s}, b=n.s)",
)
NUMBER = (
    "n.s * n.s",
    "n.s ** 2",
    "n.s ** n.s",
    "n.s * 10 ** 300",
    "(n.s ~ n.s) | int",
    "n.s + n.s * n.s",
    "-n.s * n.s",
    "[n.s, n.s] | sum * n.s",
)
READ = (
    "{{ n.s }}",
    "{{ n.s ~ '' }}",
    "{{ n.s | string | length }}",
    "{{ n.s | tojson }}",
    "{{ n.s | pprint }}",
    "{{ '%s' % n.s }}",
    "{{ '%r' % (n.s,) }}",
    "{{ '{}'.format(n.s) }}",
    "{{ n.s == n.s }}",
    "{{ [n.s] | unique | list }}",
    "{{ {'k': n.s} }}",
    "{{ n.s | e }}",
    "{{ n.s | list | length }}",
    "{{ [n.s, n.s] | sort }}",
    "{{ n.s in [n.s] }}",
    "{{ n.s | urlencode }}",
    "{{ raise_exception(n.s) }}",
    "{% set y %}{{ n.s }}{% endset %}{{ y }}",
    "{{ n.s | length }}",
    "{{ n.s | indent }}",
    "{{ [n.s] | map('string') | join }}",
    "{{ n.s is string }}",
)
AROUND = (
    "{0}",
    "{{% macro g() %}}{0}{{% endmacro %}}{{{{ g() }}}}",
    "{{% for r in range(3) %}}{0}{{% endfor %}}",
    "{{% set b %}}{0}{{% endset %}}{{{{ b }}}}",
    "{{% filter upper %}}{0}{{% endfilter %}}",
    "{{% call h() %}}{0}{{% endcall %}}",
    "{{% for m in messages %}}{0}{{% endfor %}}",
)
PRELUDE = "{% macro f(x) %}{{ x }}{% endmacro %}{% macro h() %}{{ caller() }}{{ caller() }}{% endmacro %}"
KINDS = {"'x'": TEXT, "[1]": HOLD, "9": NUMBER}


def composed(seed: int, number: int) -> str:
    """One program by number."""
    rng = random.Random(f"{seed}:{number}")
    begin, growers = rng.choice([*KINDS.items()])
    steps = "".join(f"{{% set n.s = {rng.choice(growers)} %}}" for _ in range(rng.choice([1, 1, 2, 3])))
    times = rng.choice([18, 22, 25, 40, 90])
    loop = f"{{% for i in range({times}) %}}{steps}{{% endfor %}}"
    read = "".join(rng.choice(READ) for _ in range(rng.choice([1, 1, 2])))
    inside = f"{{% set n = namespace(s={begin}) %}}{loop}{read}"
    return PRELUDE + rng.choice(AROUND).format(inside)


def programs(seed: int, num: int) -> list[str]:
    """The named ones, and as many more by number as are wanted."""
    return [*NAMED[:num], *(composed(seed, number) for number in range(max(0, num - len(NAMED))))]
