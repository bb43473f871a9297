import itertools

import numpy as np
import pytest

from shardwright.train import text


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def test_standard_library_is_split_by_file_and_the_same_each_time():
    corpus, again = text.standard_library(), text.standard_library()
    assert corpus.num_files > 300  # every CPython 3.11 to 3.14 has over 500
    np.testing.assert_array_equal(corpus.train, again.train)
    np.testing.assert_array_equal(corpus.held_out, again.held_out)
    assert 0 < corpus.held_out.size < corpus.train.size
    dataclasses_py = b"def _is_dataclass_instance"  # dataclasses.py stands in one part, not in both
    assert sum(dataclasses_py in part.tobytes() for part in (corpus.train, corpus.held_out)) == 1


def test_a_library_that_is_not_on_disk_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(text.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "python311.zip")})
    with pytest.raises(ValueError, match=r"no source files of its standard library.*--data DIR"):
        text.standard_library()


def test_directory_holds_out_every_twentieth_file(tmp_path):
    write(tmp_path, {f"{i:02}.txt": f"<{i}>".encode() for i in range(40)})
    corpus = text.directory(tmp_path)
    assert corpus.held_out.tobytes() == b"<19>\n<39>"
    assert corpus.num_files == 40 and b"<19>" not in corpus.train.tobytes()


def test_directory_is_read_in_sorted_order_without_hidden_or_binary_files(tmp_path):
    write(
        tmp_path,
        {"b.txt": b"b", "a/z.txt": b"az", ".git/x": b"no", ".hidden": b"no", "c.bin": b"no\0", "d": b" \n", "e": b"e"},
    )
    corpus = text.directory(tmp_path)
    assert corpus.train.tobytes() == b"b\ne"
    assert corpus.held_out.tobytes() == b"az"  # a directory's own files come before those of its folders
    assert (corpus.num_files, corpus.num_skipped) == (3, 2)


def test_one_file_is_split_by_position(tmp_path):
    path = write(tmp_path, {"all.txt": bytes(range(65, 85)) * 2}) / "all.txt"
    for corpus in (text.directory(path), text.directory(tmp_path)):
        assert (corpus.train.size, corpus.held_out.tobytes()) == (38, b"ST")


def test_paths_without_text_are_clear_errors(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"nowhere: no such directory"):
        text.directory(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no files"):
        text.directory(tmp_path)
    write(tmp_path, {"a.bin": b"\0\1", "b.txt": b""})
    with pytest.raises(ValueError, match="none of the 2 files holds text"):
        text.directory(tmp_path)
    monkeypatch.setattr(text, "MAX_BYTES", 1)
    with pytest.raises(ValueError, match="read into memory whole"):
        text.directory(tmp_path)


def test_batches_are_windows_of_the_text_and_follow_the_seed():
    source = np.arange(200, dtype=np.uint8)
    one, same, other = (list(itertools.islice(text.batches(source, 4, 10, seed), 3)) for seed in (0, 0, 1))
    assert one[0].shape == (4, 11) and one[0].dtype == np.int32
    for batch in one:
        np.testing.assert_array_equal(np.diff(batch), 1)
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other) and not np.array_equal(one[0], one[1])


def test_batches_reach_both_ends_of_the_text():
    source = np.arange(12, dtype=np.uint8)
    seen = np.concatenate(list(itertools.islice(text.batches(source, 8, 10, 0), 4)))
    assert (seen.min(), seen.max()) == (0, 11)


def test_a_text_shorter_than_a_window_is_refused_at_once():
    assert next(text.batches(np.zeros(11, np.uint8), 2, 10, 0)).shape == (2, 11)
    with pytest.raises(ValueError, match=r"holds 10 bytes, but one window needs 11"):
        text.batches(np.zeros(10, np.uint8), 2, 10, 0)


def test_printable_is_safe_on_a_terminal():
    ids = np.frombuffer("é\x1b[31m\ta\r\n".encode() + b"\xff\x80", np.uint8)
    assert text.printable(ids) == "é·[31m  a·\n··"
