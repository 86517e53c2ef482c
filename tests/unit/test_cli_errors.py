"""Bad input: one line on stderr that names it and the legal form, exit 2, nothing on stdout."""

import subprocess
import sys
from pathlib import Path

import pytest

from autoswizzle.cli.app import run

pytestmark = pytest.mark.usefixtures("fresh")


def fails(capsys, args, code=2):
    assert run(args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    return err


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], ["demo", "tune", "rank", "autoswizzle --help"]),
        (["cache"], ["ls", "show", "export", "autoswizzle cache --help"]),
        (["ordr"], ["'ordr'", "order", "rank", "doctor"]),
        (["order"], ["ORDER", "GRID_M"]),
        (["order", "zigzag", "2", "2"], ["'zigzag'", "row, column, grouped"]),
        (["order", "row", "0", "2"], ["grid_m must be an integer of at least 1", "'0'"]),
        (["order", "row", "2", "2.5"], ["grid_n must be an integer of at least 1", "'2.5'"]),
        (["order", "row", "2", "-3"], ["integer of at least 1", "'-3'"]),
        (["order", "row", "2", "²"], ["grid_n must be an integer of at least 1", "'²'"]),
        (["order", "row", "2", "2", "9"], ["(9)", "GRID_N"]),
        (["order", "row", "100000", "100000"], ["at most 4194304 tiles", "100000x100000"]),
        (["order", "row", "2", "2", "--grop", "2"], ["--grop", "--group-size", "--json"]),
        (["order", "row", "2", "2", "--group-size"], ["--group-size"]),
        (["order", "grouped", "2", "2", "--group-size", "0"], ["--group-size must be", "'0'"]),
        (["order", "row", "2", "2", "--group-size", "2"], ["--group-size must go with grouped"]),
        (["order", "row", "2", "2", "--plot", "/no/such/x.png"], ["--plot must", "/no/such"]),
        (["order", "row", "2", "2", "--plot", "x.bmp"], ["--plot must end in", ".png", "x.bmp"]),
        (["rank", "128x64"], ["problem must be [BATCHx]MxNxK", "'128x64'"]),
        (["rank", "0x4x4"], ["m must be an integer in 1..", "got 0"]),
        (["rank", "-1x2x3"], ["integer of at least 1", "'-1x2x3'"]),
        (["rank", "1e3x2x2"], ["[BATCHx]MxNxK", "'1e3x2x2'"]),
        (["rank", "64x64x64:fp17"], ["dtype must be one of", "'fp17'"]),
        (["rank", "4x4x" + "9" * 5000], ["problem must be [BATCHx]MxNxK", " ... 9"]),
        (["rank", "4x4x4:fp32:nn:ieee:tf32"], ["precision must be given once, got 'tf32' too"]),
        (["rank", "4x4x4:bf16:nn:aligned:aligned"], ["aligned must be given once"]),
        (["rank", "4x4x4:bf16:nn:out="], ["option must be", "got 'out='"]),
        (["rank", "64x64x64", "--top", "9" * 19], ["--top must be less than 10^18, got '9"]),
        (["rank", "64x64x64", "--l2-mb", "٣"], ["--l2-mb must be a number above 0", "'٣'"]),
        (["rank", "64x64x64", "--l2-mb", "1_0"], ["--l2-mb must be a number above 0", "'1_0'"]),
        (["order", "row", "2", "2", "--wave", "2"], ["--wave must go with --plot"]),
        (["order", "Row", "2", "2"], ["order must be one of row", "'Row'"]),
        (["smem", "256"], ["layout must be one of none", "'256'"]),
        (["rank", "4x4x4", "--gpu", "H200", "--l2-mb", "1e7"], ["in 2^-20..2^20 MiB, got 1000"]),
        (["rank", "4x4x4", "--gpu", "H200", "--l2-mb", "1e-9"], ["in 2^-20..2^20 MiB, got 1e-09"]),
        (["rank", "9x4x4x4", "--gpu", "H200"], ["is legal on H200: batch must be 1, got 9"]),
        (["smem", "128", "--traffic", "8x8x8"], ["layout must go without --traffic"]),
        (["bench", "64x64x64", "--set", "a=1"], ["--set: config field must be one of", "'a'"]),
        (["bench", "64x64x64", "--set", "split_k=0"], ["--set: split_k must be at least 1"]),
        (["bench", "64x64x64", "--set", "split_k=" + "9" * 5000], ["split_k must be of type int"]),
        (["cache", "show", ""], ["an entry must be named by its problem", "''"]),
        (["demo", "--nope"], ["--nope", "the options are --help"]),
        (["cache", "ls", ""], ["must be a file or folder that exists", "''"]),
        (["cache", "ls", "x" * 5000], ["must be a file or folder that exists", "'xxx"]),
        (["cache", "export", ""], ["path must name a file or folder", "''"]),
        (["tune", "4x4x4", "--out", ""], ["--out: path must name a file or folder", "''"]),
        (["tune", "--file", "x\x1b[31m"], ["--file must be a file", "'x\\x1b[31m'"]),
        (["tune", "--file", "x\udcff"], ["--file must be a file", "'x\\udcff'"]),
        (["cache", "ls", "x\u202e"], ["'x\\u202e'"]),
        (["rank", "64x64x64", "--gpu", "H900"], ["--gpu must be one of", "H200", "'H900'"]),
        (["rank", "64x64x64", "--top", "0"], ["--top must be an integer of at least 1", "'0'"]),
        (["rank", "64x64x64", "--l2-mb", "nan"], ["--l2-mb must be a number above 0", "'nan'"]),
        (["rank", "64x64x64", "--num-sms", "-4"], ["--num-sms must be an integer", "'-4'"]),
        (["simulate", "64x64x64", "--block", "128x64"], ["--block must be BLOCK_M", "'128x64'"]),
        (["simulate", "64x64x64", "--kernel", "cutlass"], ["--kernel must be", "'cutlass'"]),
        (["simulate", "64x64x64", "--gpu", "H200", "--set", "a"], ["--set must be FIELD=", "'a'"]),
        (["simulate", "64x64x64", "--gpu", "H200", "--set", "colour=1"], ["'colour'", "num_warps"]),
        (
            ["simulate", "64x64x64", "--gpu", "H200", "--block", "100x64x64"],
            ["block_m must be a power of two", "got 100"],
        ),
        (
            ["simulate", "64x64x64", "--gpu", "H200", "--block", "32x64x32", "--set", "block_n=32"],
            ["block_n must be given once, got --set block_n=32 too"],
        ),
        (
            ["simulate", "64x64x64", "--gpu", "H200", "--set", "split_k=2", "--set", "split_k=1"],
            ["split_k must be given once, got --set split_k=1 too"],
        ),
        (
            ["simulate", "64x64x64", "--gpu", "H200", "--swizzle", "row", "--group-size", "8"],
            ["--group-size must go with grouped, grouped_n, serpentine, got row"],
        ),
        (
            ["simulate", "64x64x64", "--gpu", "H200", "--swizzle", "xor", "--group-size", "2"],
            ["--group-size must go with grouped, grouped_n, serpentine, got xor"],
        ),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_arguments(capsys, args, named):
    message = fails(capsys, args)
    for text in named:
        assert text in message


@pytest.mark.parametrize(
    ("variable", "value", "legal"),
    [
        ("AUTOSWIZZLE_ON_MISS", "maybe", "nearest, torch, model, tune, error"),
        ("AUTOSWIZZLE_LOG", "loud", "debug, info, warning, error"),
        ("AUTOSWIZZLE_DISABLE", "yes", "0 or 1"),
    ],
)
def test_bad_environment(capsys, monkeypatch, variable, value, legal):
    monkeypatch.setenv(variable, value)
    message = fails(capsys, ["order", "row", "2", "2"])
    assert variable in message
    assert legal in message
    assert repr(value) in message


@pytest.mark.parametrize("place", ["x\x1b[31m", "x\n\ny", "x\u202e"], ids=ascii)
def test_a_log_line_is_one_line_without_terminal_codes(capsys, monkeypatch, place):
    monkeypatch.setenv("AUTOSWIZZLE_CACHE_PATH", place)
    assert run(["cache", "ls"]) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"WARNING: ignoring cache file {Path('x').absolute()}")
    assert line.isprintable()


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["order", "--help"]])
def test_help_and_version_need_nothing(args):
    command = [sys.executable, "-m", "autoswizzle", *args]
    env = {"HOME": "/", "CUDA_VISIBLE_DEVICES": "MIG-377e"}
    if "--help" in args:
        env["AUTOSWIZZLE_ON_MISS"] = "maybe"
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0
    assert done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("visible", ["MIG-377e0f7b", "GPU-8932f937", ""])
def test_without_a_visible_device_tune_fails_in_one_line(visible, tmp_path):
    command = [sys.executable, "-m", "autoswizzle", "tune", "64x64x64"]
    env = {"CUDA_VISIBLE_DEVICES": visible, "AUTOSWIZZLE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: no CUDA device 0")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "cache").exists()


def test_the_command_line_loads_no_torch_until_it_needs_it():
    code = (
        "import sys; from autoswizzle.cli.app import run; run(['order', 'row', '2', '2']);"
        "heavy = {'torch', 'triton', 'optuna', 'scipy'} & set(sys.modules); sys.exit(len(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stdout == b"0 1\n2 3\n"


def test_a_closed_pipe_is_no_traceback():
    command = f"{sys.executable} -m autoswizzle order row 300 300 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split()[:3] == ["0", "1", "2"]


def test_a_full_disk_is_one_line_naming_the_file():
    command = f"{sys.executable} -m autoswizzle order row 9 9 > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "streams", "code", "out", "err"),
    [
        ("order row 2 2", ">&-", 1, "", "error: stdout must be open, got a closed one\n"),
        ("order row 2 0", "2>&-", 2, "", ""),
        ("order row 2 2", "2>&-", 0, "0 1\n2 3\n", ""),
    ],
)
def test_closed_streams(arguments, streams, code, out, err):
    command = f"{sys.executable} -m autoswizzle {arguments} {streams}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_an_interrupt_while_the_commands_load_is_one_line():
    code = (
        "import sys; from autoswizzle.cli import main\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "error: interrupted\n"
