"""The documents show what the commands print."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cache.store import CacheStore
from autoswizzle.cli import demo
from autoswizzle.cli.app import run
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import source_hash
from autoswizzle.problem import GemmProblem
from autoswizzle.simulator.ranking import predict
from autoswizzle.toolchain import triton_version


def shown_entry(problem, config, time_us, **changes):
    source = "" if config == TORCH else source_hash(config.kernel)
    key = key_for(GemmProblem.parse(problem), find_gpu("H200"), source, triton_version())
    made = {"method": "sustained", "date": "2026-11-30T01:14:45+00:00", "gpu": "NVIDIA H200"}
    return CacheEntry(key, config, time_us, **{"ratio": 1.0, **made, **changes}).to_dict()


WGMMA = GemmConfig("wgmma", 128, 192, 64, swizzle="serpentine", group_size=16, persistent=True)
WON = {"ratio": 1.046, "ratio_low": 1.041, "ratio_high": 1.047}

# The files that the shown commands read.
FILES = {
    "train.py": """
import torch

layer = torch.nn.Linear(1024, 512).bfloat16()
for _ in range(32):
    layer(torch.randn(8, 1024).bfloat16().requires_grad_()).square().sum().backward()
""",
    "h200.json": {
        "schema": 1,
        "entries": [
            shown_entry("8192x8192x8192:bf16:nt", WGMMA, 1598.2, **WON),
            shown_entry("8192x4096x4096:bf16:nt", TORCH, 407.3, fastest=WGMMA, fastest_ratio=1.012),
        ],
    },
    "Meta-Llama-3-8B/config.json": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    },
}
DOCS = Path(__file__).parents[2] / "docs"
NOTHING = r"$^"
AFTER_DEMO = {  # shown with the entry that demo keeps; what varies in their output
    "explain": NOTHING,
    "cache": r"\b[0-9a-f]{12}\b",  # ids, with the kernel's source
    "doctor": r"\S*[\d/]\S*",  # versions, counts and paths, with the machine
}
BLOCK = re.compile(
    r"^    \$ ((?:\w+=\S+ )*)autoswizzle (.+)\n((?:    (?!\$).*\n|\n(?=    (?!\$)))*)", re.MULTILINE
)

SHOWN = [
    pytest.param(variables, command, output, id=variables + command)
    for path in sorted(DOCS.glob("*.md"))
    for variables, command, output in BLOCK.findall(path.read_text())
    if command != "demo"  # which test_cli_demo.py compares
]


def test_there_are_commands_to_compare():
    assert len(SHOWN) >= 10


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a driver or a GPU, and torch for such."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def keep_what_demo_keeps(folder, gpu):
    config = GemmConfig("pointer", 128, 256, 64, 8, 4, swizzle="serpentine", group_size=16)
    entry = demo._predicted_entry(predict(demo.PROBLEM, config, gpu), gpu)
    CacheStore(folder, shipped=False).put(replace(entry, date="2026-11-30T01:14:45+00:00"))


@pytest.mark.usefixtures("no_gpu", "own_main")
@pytest.mark.parametrize(("variables", "command", "output"), SHOWN)
def test_a_command_prints_what_is_shown(
    variables, command, output, fresh, h200, tmp_path, monkeypatch, capsys
):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    name, *_ = arguments = shlex.split(command)
    if name in AFTER_DEMO:
        keep_what_demo_keeps(fresh, h200)
    run(arguments)
    out, err = capsys.readouterr()
    varying = AFTER_DEMO.get(name, NOTHING)
    shown, printed = (
        [re.sub(varying, "*", line.rstrip()) for line in text.rstrip().splitlines()]
        for text in (re.sub(r"^ {4}", "", output, flags=re.MULTILINE), out + err)
    )
    if shown[-1:] == ["..."]:
        del shown[-1], printed[len(shown) :]
    assert not shown or printed == shown
