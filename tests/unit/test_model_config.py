"""The products of a decoder model from its config.json."""

import json
from pathlib import Path

import pytest

from autoswizzle import records
from autoswizzle.cli.app import run
from autoswizzle.cli.model_config import MODEL_TYPES, TOKENS, projections
from autoswizzle.errors import ArgumentError

# The fields of configurations of the Llama 3, Qwen 3 and Mixtral kind, sizes as commonly stated.
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "head_dim": None}


@pytest.fixture
def config(tmp_path):
    def write(fields, **changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**fields, **changes}))
        return path

    return write


def shapes(problems):
    return [(problem.n, problem.k) for problem in problems]


def test_a_llama_layer(config):
    problems = projections(config(LLAMA), [1, 16])
    expected = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
    assert shapes(problems) == expected * 2
    assert [problem.m for problem in problems] == [1] * 5 + [16] * 5
    assert {(problem.dtype, problem.layout) for problem in problems} == {("bf16", "nt")}


def test_heads_of_another_size_than_hidden_over_heads(config):
    expected = [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151936, 1024)]
    assert shapes(projections(config(QWEN3), [1])) == expected


def test_of_a_mixture_the_dense_parts(config):
    assert shapes(projections(config(MIXTRAL), [1])) == [(6144, 4096), (4096, 4096), (32000, 4096)]


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        (2, [(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168), (64128, 4096)]),
        # 16 GPUs, 8 key-value heads: each has one, some the same
        (16, [(512, 4096), (4096, 256), (1792, 4096), (4096, 896), (8016, 4096)]),
    ],
)
def test_tensor_parallelism_splits_heads_mlp_and_vocabulary(config, tp, expected):
    assert shapes(projections(config(LLAMA), [1], tp)) == expected


def test_defaults(config):
    fields = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    problems = projections(config(fields))
    assert sorted({problem.m for problem in problems}) == list(TOKENS)
    assert (TOKENS[0], TOKENS[-1]) == (1, 8192)
    assert problems[0].n == 3 * 4096  # as many key-value heads as heads


def test_dtypes(config):
    assert projections(config(LLAMA, torch_dtype="float16"), [1])[0].dtype == "fp16"
    assert projections(config(LLAMA, torch_dtype="torch.float32"), [1])[0].dtype == "fp32"
    assert projections(config(LLAMA, dtype="float16"), [1])[0].dtype == "fp16"
    assert (
        projections(config(LLAMA, torch_dtype="int4"), [1], dtype="fp8e4m3")[0].dtype == "fp8e4m3"
    )


def test_the_text_part_of_a_model_of_several_inputs(config):
    whole = {"model_type": "several", "torch_dtype": "float16", "text_config": QWEN3}
    assert shapes(projections(config(whole), [1])) == shapes(projections(config(QWEN3), [1]))


@pytest.mark.parametrize(
    ("changes", "tp", "named"),
    [
        ({"model_type": "t5"}, 1, f"model_type must be one of {MODEL_TYPES[0]}, .*got 't5'"),
        ({"model_type": None}, 1, "model_type must be one of"),
        ({"hidden_size": None}, 1, "hidden_size must be an integer of at least 1, got None"),
        ({"hidden_size": "4096"}, 1, "hidden_size must be an integer of at least 1, got '4096'"),
        ({"vocab_size": 0}, 1, "vocab_size must be an integer of at least 1, got 0"),
        ({"num_attention_heads": True}, 1, "num_attention_heads must be an integer"),
        ({"num_key_value_heads": 5}, 1, "num_key_value_heads must divide num_attention_heads 32"),
        ({"num_key_value_heads": 8}, 3, "num_attention_heads must be a multiple of --tp 3, got 32"),
        ({"intermediate_size": 100}, 8, "intermediate_size must be a multiple of --tp 8, got 100"),
        ({"torch_dtype": "int4"}, 1, "torch_dtype must be one of .*got 'int4'"),
        ({"model_type": "qwen3"}, 1, "head_dim must be an integer of at least 1, got None"),
        ({"num_attention_heads": 24, "num_key_value_heads": 6}, 4, "num_key_value_heads must"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(config, changes, tp, named):
    with pytest.raises(ArgumentError, match=named) as wrong:
        projections(config(LLAMA, **changes), [1], tp)
    assert "config.json: " in str(wrong.value)
    assert "\n" not in str(wrong.value)


NO_CONFIGS = [b"[]", b"not json", b"", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]


@pytest.mark.parametrize("content", NO_CONFIGS, ids=lambda content: str(content)[:12])
def test_a_file_that_is_no_config_is_named(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=r"config\.json:.* must be (a JSON|UTF-8)"):
        projections(path)


def test_a_file_that_can_not_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_BYTES", 1000)
    with pytest.raises(ArgumentError, match="--hf-config must have at most 1000 bytes, got more"):
        projections(Path("/dev/zero"))
    with pytest.raises(ArgumentError, match=r"--hf-config must be a file .*No such file"):
        projections(tmp_path / "missing.json")


def test_a_dry_run_prints_a_list_that_tune_reads(config, tmp_path, capsys):
    command = ["tune", "--hf-config", str(config(LLAMA)), "--tokens", "1,8", "--tp", "2"]
    assert run([*command, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "1x3072x4096:bf16:nt"
    assert len(printed.splitlines()) == 10
    again = tmp_path / "list.txt"
    again.write_text(printed)
    assert run(["tune", "--file", str(again), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == printed.splitlines()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--hf-config", "CONFIG", "--tokens", "1,x"], "--tokens must be positive integers"),
        (["--hf-config", "CONFIG", "--tokens", "0"], "--tokens must be positive integers"),
        (["--hf-config", "CONFIG", "--tokens", "9" * 5000], "--tokens must be positive integers"),
        (["--hf-config", "CONFIG", "--tp", "0"], "--tp must be an integer of at least 1"),
        (["--tokens", "1", "4x4x4"], "--hf-config"),
        (["--gpus", "0,x", "4x4x4"], "--gpus must be all or numbers like 0,1, got '0,x'"),
        (["--gpus", "", "4x4x4"], "--gpus must be all or numbers"),
    ],
)
def test_bad_options_are_one_line(config, capsys, args, named):
    path = str(config(LLAMA))
    assert run(["tune", *(path if arg == "CONFIG" else arg for arg in args)]) == 2
    err = capsys.readouterr().err
    assert named in err
    assert err.count("\n") == 1


def test_a_record_is_read_by_frequency(tmp_path, capsys):
    path = tmp_path / "record.jsonl"
    path.write_text(
        '{"problem": "4x4x4:bf16:nn"}\n\n{"problem": "8x8x8:fp16:nt", "count": 3, "gpu": "x"}\n'
        '{"problem": "4x4x4", "count": 1}\n'
    )
    assert run(["tune", "--from-record", str(path), "--dry-run"]) == 0
    assert capsys.readouterr().out == "8x8x8:fp16:nt\n4x4x4:bf16:nn\n"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("4x4x4", 'a line must be a JSON mapping with a "problem"'),
        ('{"count": 1}', 'a line must be a JSON mapping with a "problem"'),
        ('{"problem": "4x4"}', "problem must be"),
        ('{"problem": "4x4x4", "count": 0}', "count must be an integer of at least 1, got 0"),
        ('{"problem": "4x4x4", "count": true}', "count must be"),
        ('{"problem": "4x4x4", "count": ' + "9" * 5000 + "}", "a line must be a JSON mapping"),
        ("[" * 100_000, "a line must be a JSON mapping"),
    ],
)
def test_a_bad_line_of_a_record_is_named(tmp_path, capsys, line, named):
    path = tmp_path / "record.jsonl"
    path.write_text(f'{{"problem": "4x4x4"}}\n{line}\n')
    assert run(["tune", "--from-record", str(path), "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert f"{path}:2: " in err
    assert named in err
