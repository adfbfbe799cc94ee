"""What ``mutants.py --draw`` draws: changes that are read as Python, each of its own place, no two alike."""

from __future__ import annotations

import ast
from pathlib import Path

from cases import each_of
from drawn_mutants import changes, draw

ROOT = Path(__file__).parent.parent

SOURCE = '''"""Not 1 < 2."""
LEAST: int | None = -3  # é


def share(values: list[int], most: float = 0.5) -> float:
    """Return 7 + 7."""
    if not values or most <= 0 < len(values):
        return 0.0
    while most in {1}:
        most += True
    return min(values) / most
'''


def test_every_change_is_one_of_its_place_and_no_text_is_touched():
    made = {(each.line, each.old, each.new) for each in changes(SOURCE)}
    assert made == {
        (2, "-3", "(3)"),
        (2, "3", "(4)"),
        (5, "0.5", "(1.0)"),
        (7, "not values or most <= 0 < len(values)", "(not values and most <= 0 < len(values))"),
        (7, "not values", "(values)"),
        (7, "most <= 0 < len(values)", "(most < 0 < len(values))"),
        (7, "most <= 0 < len(values)", "(most <= 0 <= len(values))"),
        (7, "0", "(1)"),
        (8, "return 0.0", "return None"),
        (8, "0.0", "(1.0)"),
        (9, "most in {1}", "(most not in {1})"),
        (9, "1", "(2)"),
        (10, "most += True", "most -= True"),
        (10, "True", "(False)"),
        (11, "return min(values) / most", "return None"),
        (11, "min(values) / most", "(min(values) * most)"),
        (11, "min(values)", "(max(values))"),
    }
    for each in each_of(changes(SOURCE)):
        assert ast.dump(ast.parse(each.apply(SOURCE))) != ast.dump(ast.parse(SOURCE))


def test_a_draw_repeats_with_its_seed_and_takes_as_many_of_each_room_as_of_the_others(tmp_path):
    rooms = [tmp_path / "house", tmp_path / "house" / "large", tmp_path / "house" / "small"]
    for room, files in zip(rooms, (1, 4, 1), strict=True):
        room.mkdir()
        for number in range(files):
            (room / f"file_{number}.py").write_text(SOURCE)
    drawn = list(draw(rooms, 12, seed=3))
    assert drawn == list(draw(rooms, 12, seed=3)) != list(draw(rooms, 12, seed=4))
    assert len(set(drawn)) == 12
    assert [sum(path.parent == room for path, _ in drawn) for room in rooms] == [4, 4, 4]
    assert len(list(draw(rooms, 10**6, seed=3))) == 6 * len(changes(SOURCE)), "no more than there are"
