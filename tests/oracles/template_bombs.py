"""Chat templates that somebody wrote to be endless or to fill the memory: drawn by a seed, and a list by hand.

A drawn program makes a value large by one way of many, and then uses it by another, in a loop, a macro or a block.

    python tests/oracles/template_bombs.py 200 400000

renders 200 under a bound of memory and of processor time, and prints a line each.
"""

from __future__ import annotations

import json
import random
import resource
import sys

import psutil

from hybrid.engine import template_meter
from hybrid.engine.template import ChatTemplate, TemplateFault

# For all programs together, and several times what they take.
CPU_S = 100
TEXTS = ["'x'", "'a '", "'é'", "'\\U0001f600'", "'%s'", "'{}'", "'\\n'", "'ab\\n'", "'0'", "messages[0].content"]
# Statements after which n.s is large, or has been tried to be.
GROWTH = [
    "{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% for i in range(20) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% for i in range(21) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}",
    "{% for i in range(17) %}{% set n.s = (n.s, n.s) %}{% endfor %}",
    "{% for i in range(15) %}{% set n.s = {'a': n.s, 'b': n.s} %}{% endfor %}",
    "{% for i in range(60) %}{% set x %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = x %}{% endfor %}",
    "{% for i in range(19) %}{% set x %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = x %}{% endfor %}",
    "{% set n.s = n.s * 4000000 %}",
    "{% set n.s = n.s * 100000 %}",
    "{% set n.s = [n.s] * 100000 %}",
    "{% set n.s = [n.s] * 1000000 %}",
    "{% set n.s = (n.s * 2000).split() %}",
    "{% set n.s = (n.s * 1000000) | list %}",
    "{% set n.s = 9 ** 18 %}",
    "{% for i in range(64) %}{% set n.s = n.s | urlencode %}{% endfor %}",
    "{% for i in range(64) %}{% set n.s = n.s | tojson %}{% endfor %}",
    "{% for i in range(64) %}{% set n.s = n.s | e | forceescape %}{% endfor %}",
    "{% for i in range(64) %}{% set n.s = [n.s] | string %}{% endfor %}",
    "{% for i in range(64) %}{% set n.s = namespace(s=n.s, t=n) %}{% endfor %}",
    "{% for i in range(64) %}{% set n.s = {'k': n.s}.items() %}{% endfor %}",
    "{% for i in range(64) %}{% set n.s = n.s.encode() %}{% endfor %}",
    "{% for i in range(64) %}{% set n.s = n.s.replace('', n.s) %}{% endfor %}",
    "{% for i in range(64) %}{% set n.s = n.s | replace('x', 'xx') %}{% endfor %}",
    "{% set n.s = n.s.join(n.s * 2000) %}",
    "{% set n.s = n.s.ljust(9999) %}",
    "{% set n.s = '%9999d' % 1 %}",
    "{% set n.s = ('{:9999}' * 4000).format(*range(4000)) %}",
    "{% set n.s = ('%9999d' * 4000) % (1, 2) %}",
    "{% set n.s = '{0:{1}}'.format('x', '99999999999') %}",
    "{% set n.s = '%*d' % (999999999, 1) %}",
    "{% set n.s = strftime_now('%c' * 400000) %}",
    "{% set n.s = strftime_now('%99999999Y') %}",
    "{% set n.s = range(99999) | list %}",
    "{% macro m(k) %}{{ n.s }}{% if k %}{{ m(k - 1) }}{{ m(k - 1) }}{% endif %}{% endmacro %}{% set n.s = m(30) %}",
    "{% set n.s = '9' * 4000 %}{% set n.s = n.s | int %}",
    "{% set n.s = ('f' * 4000000) | int(base=16) %}",
    "{% set n.s = 1 | round(10000, 'ceil') %}",
    "{% set n.s = (1).to_bytes(1000000000, 'big') %}",
    "{% for a in 'xxxx' recursive %}{{ n.s }}{{ loop('xxxx') }}{% endfor %}",
    "{% set n.s = [[[[[[1]]]]]] | tojson(indent=9999) %}",
    "{% set n.s = cycler(*(n.s * 100000)) %}",
    "{% set n.s = '%999999999d' is odd %}",
    "{% filter upper %}{% for i in range(99999) %}{{ n.s }}xxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfilter %}",
]
# Expressions over a value v.
USES = [
    "v", "v ~ v", "v + v", "v * 9999", "v * v", "v[1:]", "v[::-1]", "v[:1] ~ v", "v == v[:]", "v < v[1:]", "v in v",
    "v[9:] in v", "v is in [v, v]", "{v: 1}", "{'a': 1}.get(v)", "[v].count(v)", "[v, v]", "(v, v)", "dict(a=v, b=v)",
    "v | tojson", "v | tojson(indent=4)", "v | tojson(indent=20)", "v | string", "v | list", "v | length",
    "v | upper", "v | title", "v | capitalize", "v | trim", "v | trim('abc' * 999)", "v | replace('x', 'yy')",
    "v | indent(9999)", "v | indent", "v | join(v)", "v | join(', ')", "v | sort", "v | sort | sort",
    "v | unique | list", "v | groupby(0) | list", "v | sum", "v | sum(start=[])", "v | min", "v | max",
    "v | map('upper') | list", "v | map('string') | join", "v | map(attribute='0.0.0.0.0.0.0.0') | list",
    "v | map(attribute='0.' * 9999 ~ '0') | list", "v | select | list", "v | reject('in', v) | list",
    "v | selectattr('0') | list", "v | reverse | list", "v | batch(2) | list", "v | slice(999999999) | list",
    "v | wordwrap(1)", "v | wordcount", "v | urlize", "v | urlencode", "v | pprint", "v | striptags", "v | xmlattr",
    "v | center(9999)", "v | truncate(9999)", "v | format(v)", "v | format(1, 2)", "v | e", "v | forceescape",
    "v | safe", "v | safe + v", "v | int", "v | float", "v | abs", "v | round(20)", "v | first", "v | last",
    "v | dictsort", "v | items | list", "v | default(v)", "v | attr('upper')", "v | filesizeformat", "v.upper()",
    "v.split()", "v.split('x')", "v.rsplit('xx')", "v.splitlines()", "v.partition(v)", "v.find(v[9:])",
    "v.rfind('x' * 999)", "v.count('x')", "v.count('xx' * 999 ~ 'y')", "v.strip(v)", "v.strip('bcdefgh' * 999 ~ 'x')",
    "v.replace('x', v)", "v.replace('', v)", "v.join(v)", "v.join([v, v])", "v.format(v)", "v.format(*v)", "v % v",
    "v % (1, 2)", "v.zfill(9999)", "v.center(9999)", "v.expandtabs(9999)", "v.translate({120: v})",
    "v.encode('utf-32')", "v.title()", "v.swapcase()", "v.casefold()", "v.isupper()", "v.startswith(v)",
    "v.endswith(('x', v))", "v.removeprefix(v)", "v.items()", "v.values() | list", "v.keys() | list",
    "v.items() | list | string", "v.copy()", "v.index(v)", "v ** v", "v ** 9999", "v ** 0.5", "v * 1.5", "v // 3",
    "v % 7", "v - 1", "-v", "v is odd", "v is divisibleby(3)", "v is upper", "v is eq v", "v is sameas v",
    "v is iterable", "v is sequence", "range(v)", "range(99999) | list", "1.5 in range(99999)", "namespace(a=v, b=v)",
    "joiner(v)()", "cycler(v, v).next()", "lipsum(999)", "raise_exception(v)", "v.__class__", "self", "loop",
    "loop.cycle(v, v)", "loop.changed(v)", "loop.length", "('%s' * 9999) % v", "('{0}' * 9999).format(v)",
    "('{:>9999}' * 99).format(*v)", "'{0.x}{0[0]}'.format(v)", "v[v]", "v['a']", "v.a", "v | map(attribute=v) | list",
]  # fmt: skip
# What goes around a use: each is given the statement or expression.
FRAMES = [
    "{{{{ {use} }}}}",
    "{{% for i in range(99999) %}}{{% set y = {use} %}}{{% endfor %}}",
    "{{% for i in range(99999) %}}{{{{ {use} }}}}{{% endfor %}}",
    (
        "{{% for i in range(99999) %}}{{% for j in range(99999) %}}{{% if {use} %}}"
        "a{{% endif %}}{{% endfor %}}{{% endfor %}}"
    ),
    "{{% for i in range(9999) %}}{{% set n.k = [n.k, {use}] %}}{{% endfor %}}",
    "{{% for i in range(9999) %}}{{% set n.k = namespace(a=n.k, b=({use})) %}}{{% endfor %}}",
    (
        "{{% macro f(k) %}}{{% set y = {use} %}}{{% if k %}}{{{{ f(k - 1) }}}}{{{{ f(k - 1) }}}}{{% endif %}}"
        "{{% endmacro %}}{{{{ f(40) }}}}"
    ),
    "{{% for i in range(9999) %}}{{% set y %}}{{{{ {use} }}}}{{{{ y }}}}{{% endset %}}{{% endfor %}}",
    (
        "{{% macro w() %}}{{{{ caller() }}}}{{{{ caller() }}}}{{% endmacro %}}"
        "{{% for i in range(9999) %}}{{% call w() %}}{{{{ {use} }}}}{{% endcall %}}{{% endfor %}}"
    ),
    "{{% for i in range(9999) %}}{{% filter upper %}}{{{{ {use} }}}}{{% endfilter %}}{{% endfor %}}",
    "{{% block b %}}{{% set y = {use} %}}{{{{ self.b() }}}}{{{{ self.b() }}}}{{% endblock %}}",
    "{{% for a in ({use}) %}}{{% for b in a %}}{{{{ b }}}}{{{{ loop.length }}}}{{% endfor %}}{{% endfor %}}",
    "{{% for i in range(99999) if {use} %}}{{{{ i }}}}{{% endfor %}}",
    "{{% for i in range(9999) %}}{{% set k = ({use}, {use}, {use}) %}}{{% endfor %}}",
]


def draw(seed: int) -> str:
    """Return one program."""
    dice = random.Random(seed)
    use = dice.choice(USES)
    if dice.random() < 0.3:
        use = dice.choice(USES).replace("v", f"({use})", 1)
    body = dice.choice(FRAMES).format(use=use)
    growth = "".join(dice.sample(GROWTH, dice.choice([1, 1, 1, 2])))
    return f"{{% set n = namespace(s={dice.choice(TEXTS)}, k=1) %}}{growth}{{% set v = n.s %}}{body}"


def main() -> None:
    """Render as many programs as are asked for under so many steps, in this process; say how each went."""
    num, most_steps = map(int, sys.argv[1:])
    addresses = psutil.Process().memory_info().vms + (400 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    template_meter.MOST_STEPS = most_steps
    for seed in range(num):
        try:
            said = f"wrote {len(ChatTemplate(draw(seed)).write([], {}, prompt=True))}"
        except TemplateFault as fault:
            said = str(fault)
        print(json.dumps([seed, said]), flush=True)


if __name__ == "__main__":
    main()
