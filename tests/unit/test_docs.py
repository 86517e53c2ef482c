"""The documents show what the commands print."""

import json
import re
import shlex
from pathlib import Path

import pytest

from autoswizzle.cache.entry import CacheEntry
from autoswizzle.cache.key import key_for
from autoswizzle.cli.app import run
from autoswizzle.config import TORCH, GemmConfig
from autoswizzle.hardware import find_gpu
from autoswizzle.kernels import source_hash
from autoswizzle.problem import GemmProblem
from autoswizzle.toolchain import triton_version


def shown_entry(problem, config, time_us, **changes):
    source = "" if config == TORCH else source_hash(config.kernel)
    key = key_for(GemmProblem.parse(problem), find_gpu("H200"), source, triton_version())
    facts = {"ratio": 1.0, "date": "2026-11-30T01:14:45+00:00", "gpu": "NVIDIA H200"}
    return CacheEntry(key, config, time_us, **{**facts, **changes}).to_dict()


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
            shown_entry("8192x4096x4096:bf16:nt", TORCH, 407.3),
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
SAME_EVERYWHERE = (
    "rank",
    "simulate",
    "order",
    "smem",
    "tune",
    "record",
    "report",
)  # the others show this machine
BLOCK = re.compile(
    r"^    \$ autoswizzle (.+)\n((?:    (?!\$).*\n|\n(?=    (?!\$)))*)", re.MULTILINE
)

SHOWN = [
    pytest.param(command, output, id=command)
    for path in sorted(DOCS.glob("*.md"))
    for command, output in BLOCK.findall(path.read_text())
    if command.startswith(SAME_EVERYWHERE)
]


def test_there_are_commands_to_compare():
    assert len(SHOWN) >= 10


@pytest.mark.usefixtures("fresh", "own_main")
@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_a_command_prints_what_is_shown(command, output, tmp_path, monkeypatch, capsys):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    run(shlex.split(command))
    out, err = capsys.readouterr()
    shown = [line.removeprefix("    ").rstrip() for line in output.rstrip().splitlines()]
    assert not shown or [line.rstrip() for line in (out + err).splitlines()] == shown
