"""Source lines of instructions, from texts of each form that XLA has printed."""

import pytest

from shardwright.run import hlo_frames, traffic
from shardwright.run.hlo_frames import parse_frames, source_line

OWN = hlo_frames.__file__
TABLES = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

FileNames
1 "/home/me/train.py"
2 "/home/me/env/lib/python3.12/site-packages/flax/linen.py"
3 "OWN"
4 "C:\\\\me\\\\model.py"

FunctionNames
1 "step"
2 "dense"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=9}
2 {file_name_id=2 function_name_id=2 line=340 end_line=341 column=4 end_column=9}
3 {file_name_id=3 function_name_id=2 line=5 end_line=5 column=4 end_column=9}
4 {file_name_id=4 function_name_id=1 line=7 end_line=7 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=A}
2 {file_location_id=2 parent_frame_id=B}
3 {file_location_id=2 parent_frame_id=A}
4 {file_location_id=3 parent_frame_id=A}
5 {file_location_id=4 parent_frame_id=A}

ENTRY %main (p: f32[8]) -> f32[8] {
  ROOT %ar = f32[8] all-reduce(%p), replica_groups={}, metadata={op_name="a/b" stack_frame_id=2}
}
""".replace("OWN", OWN)


@pytest.mark.parametrize(("root", "first"), [("0", "1"), ("1", "2")])  # callers as they are, or plus one
def test_the_innermost_frame_that_is_the_users(root, first):
    text = TABLES.replace("=A}", f"={root}}}").replace("=B}", f"={first}}}")
    frames = parse_frames(text)
    assert source_line("stack_frame_id=1", frames) == "train.py:12"
    assert source_line("stack_frame_id=2", frames) == "train.py:12"  # called from there
    assert source_line("stack_frame_id=3", frames) == "linen.py:340"  # nobody of the user's called it
    assert source_line("stack_frame_id=4", frames) == source_line("stack_frame_id=9", frames) == ""
    assert source_line("stack_frame_id=5", frames) == "model.py:7"
    (row,) = traffic.traffic(text, {"x": 8})
    assert (row.source, row.scope) == ("train.py:12", "a/b")


def test_metadata_that_names_the_line_itself():
    frames = parse_frames("HloModule jit_step\n")
    assert source_line('metadata={op_name="a" source_file="/me/train.py" source_line=31}', frames) == "train.py:31"
    assert source_line(f'metadata={{source_file="{OWN}" source_line=31}}', frames) == ""
    assert source_line('metadata={op_name="a"}', frames) == source_line("", frames) == ""
