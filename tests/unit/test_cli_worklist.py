"""Work lists from arguments and files."""

from pathlib import Path

import pytest

from autoswizzle import records
from autoswizzle.cli.worklist import read_problems, work_list
from autoswizzle.errors import ArgumentError
from autoswizzle.problem import GemmProblem

TWO = [GemmProblem(64, 128, 32, "bf16", "nt"), GemmProblem(8, 16, 32, "fp16")]
FORMS = {
    "list.txt": "# ours\n64x128x32:bf16:nt  # the first\n\n8x16x32:fp16\n",
    "list.csv": "m,n,k,dtype,layout\n64,128,32,bf16,nt\n8,16,32,fp16,\n",
    "list.jsonl": '{"m": 64, "n": 128, "k": 32, "layout": "nt"}\n\n"8x16x32:fp16"\n',
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_every_form_reads_the_same(tmp_path, name, encoding, ending):
    path = tmp_path / name
    path.write_bytes(FORMS[name].replace("\n", ending).encode(encoding))
    assert read_problems(path) == TWO


def test_every_field_survives_its_mapping(tmp_path):
    import json

    problem = GemmProblem(5, 6, 7, "fp32", "tn", batch=3, precision="tf32", aligned=False)
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(problem.to_dict()))
    assert read_problems(path) == [problem]
    header = ",".join(problem.to_dict())
    cells = ",".join(str(value) for value in problem.to_dict().values())
    path = tmp_path / "one.csv"
    path.write_text(f"{header}\n{cells}\n")
    assert read_problems(path) == [problem]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.txt", b"64x64x64\n128x64\n", ":2: problem must be [BATCHx]MxNxK"),
        ("a.txt", b"0x4x4\n", ":1: m must be an integer in 1.."),
        ("a.txt", b"-1x2x3\n", "'-1x2x3'"),
        ("a.txt", b"1e3x2x2\n", "'1e3x2x2'"),
        ("a.txt", b"64x64x64:fp17\n", "'fp17'"),
        ("a.txt", "64x64x64\n".encode("utf-16"), ":1: the file must be UTF-8 text"),
        ("a.txt", "６４x64x64\n".encode(), "problem must be"),
        ("a.txt", b"4x4x" + b"9" * 5000, ":1: problem must be"),
        ("a.jsonl", b"[" * 100_000, ":1: a line must be a JSON mapping or string"),
        ("a.jsonl", b'{"m": ' + b"9" * 5000 + b"}", ":1: a line must be a JSON mapping or string"),
        ("a.jsonl", b'{"m": 1, "n": 2, "k": 3, "aligned": 1}\n', ":1: aligned must be true, false"),
        ("a.jsonl", b'{"m": 1, "n": 2, "k": 3, "out_dtype": 0}\n', ":1: out_dtype must be one"),
        ("a.csv", b"m,n,k\n1,2," + b"9" * 5000 + b"\n", ":2: k must be an integer"),
        ("a.csv", b"m,n,k\n1,2,3\n1,2," + b"9" * 200_000 + b"\n", ":2: the file must be CSV"),
        ("a.csv", b"m,m,n,k\n1,2,3,4\n", "columns must have different names, got m, m, n, k"),
        ("a.csv", b"m,n\n1,2\n", ":2: fields must be m, n, k"),
        ("a.csv", b"m,n,k\n1,2,3,4\n", ":2: fields must be m, n, k"),
        ("a.csv", b"m,n,k\n1,2,x\n", ":2: k must be an integer"),
        ("a.csv", b"m,n,k,colour\n1,2,3,red\n", "'colour'"),
        ("a.jsonl", b"[1, 2]\n", ":1: a line must be a JSON mapping or string"),
        ("a.jsonl", b'{"m": 1\n', ":1: a line must be a JSON mapping or string"),
        ("a.jsonl", b'{"m": 1, "n": 2, "k": "3e"}\n', ":1: k must be an integer"),
        ("a.jsonl", b'{"m": 1, "n": 2, "k": 2.5}\n', ":1: k must be an integer"),
        ("a.jsonl", b'{"m": true, "n": 2, "k": 2}\n', ":1: m must be an integer"),
        ("a.jsonl", b'{"m": 1, "n": 2, "k": 2, "layout": ["nn"]}\n', ":1: layout must be one of"),
    ],
)
def test_bad_content_names_file_and_line(tmp_path, name, content, named):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ArgumentError) as error:
        read_problems(path)
    assert str(path) in str(error.value)
    assert named in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ArgumentError, match="No such file"):
        read_problems(tmp_path / "missing.txt")
    with pytest.raises(ArgumentError, match="Is a directory"):
        read_problems(tmp_path)


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing\n"])
def test_an_empty_list_is_nothing_to_tune(tmp_path, content):
    path = tmp_path / "empty.txt"
    path.write_text(content)
    with pytest.raises(ArgumentError, match=r"nothing to tune.*empty\.txt"):
        work_list([], [path])
    with pytest.raises(ArgumentError, match="nothing to tune"):
        work_list([])


def test_duplicates_count_once_and_keep_their_place(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("8x8x8:bf16\n4x4x4\n")
    problems = work_list(["4x4x4", "2x2x2", "4x4x4:bf16:nn"], [path])
    assert [str(problem) for problem in problems] == [
        "4x4x4:bf16:nn",
        "2x2x2:bf16:nn",
        "8x8x8:bf16:nn",
    ]


def test_dtype_fills_in_and_must_agree(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text("m,n,k\n8,8,8\n")
    assert {problem.dtype for problem in work_list(["4x4x4"], [path], "fp16")} == {"fp16"}
    assert work_list(["4x4x4:fp16:nt"], dtype="fp16")[0].layout == "nt"
    with pytest.raises(ArgumentError, match="--dtype must agree with '4x4x4:bf16', got 'fp16'"):
        work_list(["4x4x4:bf16"], dtype="fp16")


def test_a_file_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(records, "MAX_BYTES", 1000)
    with pytest.raises(ArgumentError, match="--file must have at most 1000 bytes, got more in"):
        read_problems(Path("/dev/zero"))
