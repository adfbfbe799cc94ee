"""Lines of several processes in one folder, some of which were killed while they wrote."""

from __future__ import annotations

import json
import os

from cases import each_of

from hybrid.lab.experiments.part_files import open_part, read_lines


def test_what_a_killed_process_left_of_a_line_hides_no_other(tmp_path):
    """Its number may be another's later, which goes on in its file."""
    line = json.dumps({"b": "x\u00e9", "n": {"m": [1]}})
    path = tmp_path / f"kind-{os.getpid()}.jsonl"
    for cut in each_of(range(len(line) + 2)):
        path.write_text(('{"a": 1}\n' + line + "\n")[: 9 + cut])
        for _ in range(2):
            with open_part(tmp_path, "kind") as part:
                part.write('{"c": 2}\n')
        whole = [json.loads(line)] if cut >= len(line) else []
        assert list(read_lines(tmp_path, "kind")) == [{"a": 1}, *whole, {"c": 2}, {"c": 2}]


def test_a_new_file_has_its_lines_and_no_other_and_kinds_are_apart(tmp_path):
    with open_part(tmp_path, "kind") as part, open_part(tmp_path, "other") as other:
        part.write('{"a": 1}\n')
        other.write('{"b": 1}\n')
    assert (tmp_path / f"kind-{os.getpid()}.jsonl").read_text() == '{"a": 1}\n'
    assert list(read_lines(tmp_path, "other")) == [{"b": 1}]
