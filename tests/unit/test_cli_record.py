"""`autoswizzle record`: programs run as python runs them, and what they multiply is kept."""

import os
import signal
import subprocess
import sys
import time

import pytest

from autoswizzle.cli.app import run
from autoswizzle.problem import GemmProblem
from autoswizzle.records import read_record

PRODUCT = "import torch\ntorch.ones(8, 16).bfloat16() @ torch.ones(16, 32).bfloat16()\n"
PROBLEM = GemmProblem(8, 32, 16)


@pytest.fixture
def folder(fresh, own_main, tmp_path, monkeypatch):
    """An empty working folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def written(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_script_is_recorded_and_the_next_command_named(folder, capsys):
    written(folder / "train.py", PRODUCT * 3)
    assert run(["record", "--out", "my shapes.jsonl", "train.py"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "my shapes.jsonl: products seen: 3, distinct problems: 1",
        "next: autoswizzle tune --from-record 'my shapes.jsonl'",
    ]
    assert (folder / "my shapes.jsonl").read_text() == (
        '{"problem": "8x32x16:bf16:nn", "count": 3}\n'
    )


FACTS = """\
import json, sys
import beside
shown = [__name__, __file__, sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals()]
print(json.dumps(shown))
"""


@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_a_program_sees_what_python_shows_it(module, folder):
    """The same program under python itself is the oracle."""
    program = written(folder / "programs" / "facts.py", FACTS)
    written(folder / "programs" / "beside.py", "")
    where = program.parent if module else folder
    named = ["-m", "facts"] if module else ["programs/facts.py"]
    arguments = ["--out", "x", "-m", "--help", "--", "-3", ""]
    outputs = [
        subprocess.run(
            [sys.executable, *command, *named, *arguments],
            cwd=where,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for command in ([], ["-m", "autoswizzle", "record"])
    ]
    assert outputs[0] == outputs[1]
    assert str(where) in outputs[0]


def test_a_package_is_run_by_its_main_module(folder, capsys):
    written(folder / "package" / "__init__.py", "")
    written(folder / "package" / "__main__.py", PRODUCT)
    assert run(["record", "-m", "package"]) == 0
    assert read_record(folder / "shapes.jsonl") == [PROBLEM]


@pytest.mark.parametrize(
    ("ending", "code", "shown"),
    [
        ("raise ValueError('my words')", 1, "ValueError: my words\n"),
        ("raise EOFError", 1, "EOFError\n"),
        ("import typer; raise typer.Abort", 1, "Abort\n"),
        ("import autoswizzle; autoswizzle.GemmProblem(0, 1, 1)", 1, "ProblemError: m must"),
        ("1 +", 1, "SyntaxError: "),
        ("raise KeyboardInterrupt", 130, "error: interrupted\n"),
    ],
)
def test_how_the_program_ends_is_how_the_command_ends(ending, code, shown, folder, capsys):
    text = PRODUCT + ending + "\n"
    written(folder / "train.py", text)
    assert run(["record", "train.py"]) == code
    err = capsys.readouterr().err
    assert shown in err
    assert "cli/record.py" not in err
    if ending != "1 +":
        assert read_record(folder / "shapes.jsonl") == [PROBLEM]
        assert "next: autoswizzle tune --from-record shapes.jsonl\n" in err


def test_the_traceback_is_the_programs(folder, capsys):
    written(folder / "train.py", f"{PRODUCT}def fails():\n    raise ValueError\nfails()\n")
    assert run(["record", "train.py"]) == 1
    assert capsys.readouterr().err.startswith(
        "Traceback (most recent call last):\n"
        f'  File "{folder}/train.py", line 5, in <module>\n'
        "    fails()\n"
        f'  File "{folder}/train.py", line 4, in fails\n'
        "    raise ValueError\n"
        "ValueError\n"
    )


def test_the_programs_own_handler_of_errors_is_asked(folder, capsys):
    handler = "import sys\nsys.excepthook = lambda kind, *_: print('mine:', kind.__name__)\n"
    written(folder / "train.py", handler + PRODUCT + "raise ValueError\n")
    assert run(["record", "train.py"]) == 1
    assert capsys.readouterr().out == "mine: ValueError\n"


@pytest.mark.parametrize("name", ["whole", "whole.absent", "whole.absent.deeper"])
def test_a_module_that_can_not_be_run_is_one_line(folder, capsys, name):
    written(folder / "whole" / "__init__.py", "")
    assert run(["record", "-m", name]) == 1
    error, empty = capsys.readouterr().err.splitlines()
    assert error.startswith("error: with -m, SCRIPT must be a module that can be run: ")
    assert "whole" in error
    assert empty.startswith("shapes.jsonl: empty")


def test_a_failed_import_of_the_program_is_the_programs(folder, capsys):
    written(folder / "train.py", "import absent_module\n")
    for args in (["train.py"], ["-m", "train"]):
        assert run(["record", *args]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("Traceback")
        assert "ModuleNotFoundError: No module named 'absent_module'" in lines


@pytest.mark.parametrize("code", [7, "a message", None])
def test_an_exit_code_passes_through(code, folder):
    written(folder / "train.py", f"{PRODUCT}raise SystemExit({code!r})\n")
    with pytest.raises(SystemExit) as end:
        run(["record", "train.py"])
    assert end.value.code == code
    assert read_record(folder / "shapes.jsonl") == [PROBLEM]


def test_a_program_in_another_folder_at_its_end_is_recorded_where_it_began(folder, capsys):
    (folder / "away").mkdir()
    written(folder / "train.py", f"import os\nos.chdir('away')\n{PRODUCT}")
    assert run(["record", "train.py"]) == 0
    assert read_record(folder / "shapes.jsonl") == [PROBLEM]


def test_a_program_without_products_says_so(folder, capsys):
    written(folder / "train.py", "print('hello')\n")
    assert run(["record", "train.py"]) == 0
    out, err = capsys.readouterr()
    assert out == "hello\n"
    assert err.startswith("shapes.jsonl: empty, the program multiplied nothing")
    assert "next:" not in err
    assert (folder / "shapes.jsonl").read_text() == ""


def test_a_program_that_patches_torch_is_recorded(folder, capsys):
    text = (
        "import autoswizzle, torch\n"
        "layer = torch.nn.Linear(16, 32).bfloat16()\n"
        "with autoswizzle.patch(layer):\n"
        "    layer(torch.ones(8, 16).bfloat16())\n"
        "with autoswizzle.patch():\n"
        "    torch.ones(4, 16) @ torch.ones(16, 32)\n"
    )
    written(folder / "train.py", text)
    assert run(["record", "train.py"]) == 0
    assert set(map(str, read_record(folder / "shapes.jsonl"))) == {
        "8x32x16:bf16:nt",
        "4x32x16:fp32:nn",
    }


def test_the_record_is_what_tune_takes(folder, capsys):
    written(folder / "train.py", PRODUCT)
    assert run(["record", "train.py"]) == 0
    capsys.readouterr()
    assert run(["tune", "--from-record", "shapes.jsonl", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{PROBLEM}\n"


def test_a_record_is_replaced_by_the_next(folder, capsys):
    written(folder / "train.py", PRODUCT)
    for _ in range(2):
        assert run(["record", "train.py"]) == 0
    assert [path.name for path in folder.glob("shapes*")] == ["shapes.jsonl"]
    assert '"count": 1}' in (folder / "shapes.jsonl").read_text()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], "SCRIPT"),
        (["absent.py"], "SCRIPT must be a Python file that exists, got 'absent.py'"),
        (["."], "SCRIPT must be a Python file that exists, got '.'"),
        (["-m", "no_such_module"], "SCRIPT must be a module that can be found"),
        (["-m", ".relative"], "SCRIPT must be a module that can be found"),
        (["-m", "__main__"], "SCRIPT must be a module that can be found"),
        (["--out", "train.py", "train.py"], "--out must be a recorded file or a new one"),
        (["--out", "/dev/null", "train.py"], "--out must be a file, got '/dev/null'"),
        (["--out", "", "train.py"], "--out: path must name a file"),
        (["--outt", "x", "train.py"], "the options are -m, --out"),
    ],
)
def test_bad_arguments_run_nothing(args, named, folder, capsys):
    written(folder / "train.py", "raise SystemExit('ran')")
    assert run(["record", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert named in err
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_ctrl_c_keeps_what_was_seen(folder):
    text = f"{PRODUCT}import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
    written(folder / "train.py", text)
    command = [sys.executable, "-m", "autoswizzle", "record", "train.py"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as program:
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=30)
    assert program.returncode == 130
    assert time.monotonic() - began < 50
    assert err.splitlines()[-1] == "error: interrupted"
    assert read_record(folder / "shapes.jsonl") == [PROBLEM]


def test_threads_and_processes_find_the_main_module(folder):
    """Threads that outlive the last line pickle by name; spawned processes import the file."""
    text = (
        "import multiprocessing, pickle, threading, time\n"
        "class Mine: pass\n"
        "def late():\n"
        "    time.sleep(0.3)\n"
        "    print(type(pickle.loads(pickle.dumps(Mine()))).__name__)\n"
        "def child(): print('child')\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start(); process.join()\n"
        "    threading.Thread(target=late).start()\n"
    )
    written(folder / "train.py", text)
    command = [sys.executable, "-m", "autoswizzle", "record", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "child\nMine\n"
