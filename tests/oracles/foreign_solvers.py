"""Second solvers of the foreign ladders' families: each reads the question alone, by other means than the generator.

``solve(family, question)`` returns the right final answer, and what the family's wrong rule gives.
"""

from __future__ import annotations

import ast
import datetime as dt
import heapq
import json
import re
from collections import deque


def solve(family: str, question: str) -> tuple[str, str]:
    """Return the answer by the right rule and by the wrong one."""
    return SOLVERS[family](question)


def _extract(question):
    records = json.loads(question[: question.index("]") + 1])
    key, name = re.search(r"the (\w+) of (\w+)[?.]$", question).groups()
    (right,) = (record[key] for record in records if record["name"] == name)
    return right, records[0][key]


def _span(question):
    first, last = (
        dt.datetime.strptime(f"{found} 2023", "%d %B %Y")  # noqa: DTZ007  (a common year, no time)
        for found in re.findall(r"\d+ [A-Z]\w+", question)
    )
    wrong = (last.month - first.month) * 30 + last.day - first.day
    return str((last - first).days), str(wrong)


def _sets(question):
    one, other = (set(found.split(", ")) for found in re.findall(r"\{(.*?)\}", question))
    asked = re.search(r"(in [^?]*)\?", question).group(1)
    right = [
        letter
        for letter in "abcdefghijkl"
        if {
            "in both": letter in one and letter in other,
            "in A or B": letter in one or letter in other,
            "in A and not in B": letter in one and letter not in other,
            "in exactly one": (letter in one) != (letter in other),
        }[asked]
    ]
    wrong = sorted(one | other) if asked == "in exactly one" else right
    return " ".join(right), " ".join(wrong)


def _road(question):
    """By Dijkstra's algorithm."""
    roads = [(a, b, int(n)) for a, b, n in re.findall(r"(\w+)-(\w+) (\d+)", question)]
    start, end = re.search(r"from (\w+) to (\w+)\?", question).groups()
    heap, seen = [(0, [start])], set()
    while heap:
        length, path = heapq.heappop(heap)
        if path[-1] == end:
            break
        if path[-1] in seen:
            continue
        seen.add(path[-1])
        for a, b, n in roads:
            for here, there in ((a, b), (b, a)):
                if here == path[-1]:
                    heapq.heappush(heap, (length + n, [*path, there]))
    assert all(other[0] > length for other in heap if other[1][-1] == end), "two ways are as short"
    right = "direct" if len(path) == 2 else f"over {path[1]}"
    return right, "direct" if any({start, end} == {a, b} for a, b, _ in roads) else right


def _walk(question):
    """Step by step."""
    walls = [int(n) for n in re.search(r"at (\d) (\d)", question).groups()]
    wraps = list(walls)
    for way, num in re.findall(r"(up|down|left|right) (\d)", question):
        axis, sign = int(way in {"up", "down"}), 1 if way in {"up", "right"} else -1
        for _ in range(int(num)):
            if 0 <= walls[axis] + sign <= 9:
                walls[axis] += sign
            wraps[axis] = (wraps[axis] + sign) % 10
    return "{} {}".format(*walls), "{} {}".format(*wraps)


def _spelling(question):
    spelled = question.split(": ")[1]
    if "backwards" in question:
        return spelled[::-1], spelled[::-1]
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    following = spelled.translate(str.maketrans(alphabet, alphabet[1:] + "a"))
    return following, spelled.translate(str.maketrans(alphabet, alphabet[1:] + "z"))


def _table(question):
    head, *rows = question.split(" A dash")[0].rstrip(".").split(". ")
    row, day = re.search(r"(?:many|the) (\w+) (?:on|of) (\w+)[?.]$", question).groups()
    cells = dict(each.split(": ") for each in rows)[row].split()
    place = head.removeprefix("Days: ").split().index(day)
    right = next(cell for cell in reversed(cells[: place + 1]) if cell != "-")
    return right, right if cells[place] != "-" else "0"


def _logic(question):
    told, asked = re.fullmatch(r"(.*)\. (?:What is|Tell the truth of) (.*)[?.]", question).groups()
    values = {each.split(" is ")[0]: each.endswith("true") for each in told.split(", ")}
    right = _truth(ast.parse(asked, mode="eval").body, values)
    wide = re.sub(r"^not (.*)", r"not (\1)", asked)
    wide = _truth(ast.parse(wide, mode="eval").body, values)
    return str(right).lower(), str(wide).lower()


def _truth(node, values):
    """Python's own precedence."""
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp):
        return not _truth(node.operand, values)
    return (all if isinstance(node.op, ast.And) else any)([_truth(each, values) for each in node.values])


def _trace(question):
    """Python itself runs it; with the double assignment split in two for the wrong rule."""
    program, asked = question.rsplit(";", 1)
    name = re.search(r"print\((\w)\)|What is (\w)", asked)
    ends = []
    for text in (program, re.sub(r"(\w), (\w) = (\w), (.*)", r"\1 = \3; \2 = \4", program)):
        values: dict[str, int] = {}
        exec(text, {}, values)
        ends.append(str(values[name.group(1) or name.group(2)]))
    return tuple(ends)


def _store(question):
    kind, steps = re.match(r"(Stack|Queue): (.*?)\.", question).groups()
    queue, stack = deque(), []
    for step in steps.split(", "):
        if step == "take":
            queue.popleft()
            stack.pop()
        else:
            queue.append(step.removeprefix("put "))
            stack.append(step.removeprefix("put "))
    return (queue.popleft() if kind == "Queue" else stack[-1]), stack[-1]


SOLVERS = {
    "extract": _extract,
    "span": _span,
    "sets": _sets,
    "road": _road,
    "walk": _walk,
    "spelling": _spelling,
    "table": _table,
    "logic": _logic,
    "trace": _trace,
    "store": _store,
}
