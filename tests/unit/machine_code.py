"""What test_wgmma_compile.py and test_skinny.py look for in machine code."""

import re
import subprocess
from tempfile import NamedTemporaryFile

from triton import knobs

LOCAL_MEMORY = re.compile(r"\b(LDL|STL)\b")  # what is spilled


def k_loops(cubin, product):
    """The innermost loops with such an instruction, line by line."""
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = text.splitlines()
    labels = {line.split(":")[0]: number for number, line in enumerate(lines) if line[:3] == ".L_"}
    loops = []
    for end, line in enumerate(lines):
        jump = re.search(r"\bBRA\b.*`\((\.L_\w+)\)", line)
        if jump is not None and labels[jump[1]] < end:
            loops.append(range(labels[jump[1]], end))
    products = [number for number, line in enumerate(lines) if product in line]
    inner = {min(around, key=len) for at in products if (around := [x for x in loops if at in x])}
    return [[lines[number] for number in loop] for loop in inner]
