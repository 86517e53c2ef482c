"""The documents show what the commands print."""

import json
import re
import shlex
from pathlib import Path

import pytest

from autoswizzle.cli.app import run

# The files that the shown commands read.
FILES = {
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
SAME_EVERYWHERE = ("rank", "simulate", "order", "smem", "tune")  # the others show this machine
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


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_a_command_prints_what_is_shown(command, output, tmp_path, monkeypatch, capsys):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    run(shlex.split(command))
    out, err = capsys.readouterr()
    shown = [line.removeprefix("    ").rstrip() for line in output.rstrip().splitlines()]
    assert not shown or [line.rstrip() for line in (out + err).splitlines()] == shown
