"""record_shapes: every GEMM once, as it is posed, and a file that tuning reads."""

import json
import threading

import pytest
import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from autoswizzle.cli.worklist import read_problems
from autoswizzle.errors import ArgumentError, CacheError
from autoswizzle.ops import matmul
from autoswizzle.patching import patch
from autoswizzle.problem import GemmProblem
from autoswizzle.recording import record_shapes
from autoswizzle.records import read_record


def bf16(*shape):
    return torch.randn(*shape).bfloat16()


def nested(count, extent):
    return torch.nested.nested_tensor([bf16(extent, extent)] * count)


def recorded(call):
    with record_shapes() as counts:
        call()
    return {str(problem): count for problem, count in counts.items()}


W, V = bf16(32, 16), bf16(16, 32)
CALLS = {
    "matmul": (lambda: torch.matmul(bf16(8, 16), V), "8x32x16:bf16:nn"),
    "@": (lambda: bf16(8, 16) @ W.t(), "8x32x16:bf16:nt"),
    "folded": (lambda: bf16(2, 4, 16) @ V, "8x32x16:bf16:nn"),
    "vector": (lambda: bf16(16) @ V, "1x32x16:bf16:nn"),
    "mm": (lambda: bf16(16, 8).t().mm(V), "8x32x16:bf16:tn"),
    "out": (lambda: torch.mm(bf16(8, 16), V, out=bf16(8, 32)), "8x32x16:bf16:nn"),
    "addmm": (lambda: torch.addmm(bf16(32), bf16(8, 16), V), "8x32x16:bf16:nn"),
    "addmm_": (lambda: bf16(8, 32).addmm_(bf16(8, 16), V), "8x32x16:bf16:nn"),
    "linear": (lambda: functional.linear(bf16(8, 16), W), "8x32x16:bf16:nt"),
    "biased": (lambda: functional.linear(bf16(2, 4, 16), W, bf16(32)), "8x32x16:bf16:nt"),
    "bmm": (lambda: torch.bmm(bf16(3, 8, 16), bf16(3, 16, 32)), "3x8x32x16:bf16:nn"),
    "bmm of one": (lambda: torch.bmm(bf16(1, 8, 16), bf16(1, 16, 32)), "8x32x16:bf16:nn"),
    "baddbmm": (
        lambda: torch.baddbmm(bf16(3, 8, 32), bf16(3, 8, 16), bf16(3, 32, 16).mT),
        "3x8x32x16:bf16:nt",
    ),
    "einsum": (lambda: torch.einsum("ij,jk->ik", bf16(8, 16), V), "8x32x16:bf16:nn"),
    "ours": (lambda: matmul(bf16(8, 16), V), "8x32x16:bf16:nn"),
    "fp32": (lambda: torch.randn(8, 16) @ torch.randn(16, 32), "8x32x16:fp32:nn"),
    "misaligned": (
        lambda: bf16(129)[1:].view(8, 16) @ V,
        "8x32x16:bf16:nn:unaligned",
    ),
    "misaligned batches": (
        lambda: torch.bmm(bf16(3 * 132).as_strided((3, 8, 16), (132, 16, 1)), bf16(3, 16, 32)),
        "3x8x32x16:bf16:nn:unaligned",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_is_one_problem(name):
    call, expected = CALLS[name]
    assert recorded(call) == {expected: 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(4, 4).double() @ torch.ones(4, 4).double(),
        lambda: bf16(4, 0) @ bf16(0, 4),
        lambda: bf16(4) @ bf16(4),
        lambda: bf16(4, 4) * bf16(4, 4),
        lambda: torch.eye(4).to_sparse() @ torch.eye(4),
        lambda: torch.bmm(nested(2, 4), nested(2, 4)),
        lambda: torch.cond(torch.tensor(True), lambda a: a @ a, torch.neg, (bf16(4, 4),)),
        lambda: flex_attention(*(torch.ones(1, 2, 16, 8) for _ in range(3))),
    ],
)
def test_what_is_no_problem_is_left_out(call):
    assert recorded(call) == {}


def test_a_training_step_counts_its_gradients():
    layer = torch.nn.Linear(16, 32).bfloat16()
    x = bf16(8, 16).requires_grad_()
    assert recorded(lambda: layer(x).square().sum().backward()) == {
        "8x32x16:bf16:nt": 1,
        "8x16x32:bf16:nn": 1,
        "32x16x8:bf16:tn": 1,
    }


def test_counts_add_up_and_recording_ends():
    x = bf16(8, 16)
    with record_shapes() as counts:
        for _ in range(5):
            x @ V
    x @ V
    assert counts == {GemmProblem(8, 32, 16): 5}


def test_nested_recordings_both_count():
    with record_shapes() as outer:
        bf16(8, 16) @ V
        with record_shapes() as inner:
            bf16(4, 16) @ V
    assert sorted(p.m for p in outer) == [4, 8]
    assert [p.m for p in inner] == [4]


def test_other_threads_are_not_recorded():
    with record_shapes() as counts:
        thread = threading.Thread(target=lambda: bf16(8, 16) @ V)
        thread.start()
        thread.join()
    assert not counts


def test_patched_and_compiled_models_are_recorded(tuned):
    layer = torch.nn.Linear(16, 32)
    x = torch.randn(8, 16)
    for model in (layer, torch.compile(layer, backend="eager")):
        with patch(layer):
            assert recorded(lambda model=model: model(x)) == {"8x32x16:fp32:nt": 1}
    assert not tuned.calls


def test_a_model_compiled_as_one_graph_is_recorded_and_compiled_afterwards():
    layer = torch.nn.Linear(16, 32)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = torch.compile(layer, backend=backend, fullgraph=True)
    x = torch.randn(8, 16)
    assert recorded(lambda: model(x)) == {"8x32x16:fp32:nt": 1}
    assert not graphs
    model(x)
    assert len(graphs) == 1


def test_results_and_gradients_are_as_without():
    x = torch.randn(8, 16, requires_grad=True)
    w = torch.randn(16, 4, requires_grad=True)
    (x @ w).square().sum().backward()
    expected, x.grad = x.grad, None
    with record_shapes():
        (x @ w).square().sum().backward()
    assert torch.equal(x.grad, expected)


def test_the_file_is_what_tuning_reads(tmp_path):
    path = tmp_path / "shapes.jsonl"
    with record_shapes(path) as counts:
        for call, _ in CALLS.values():
            call()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["count"] for line in lines] == sorted(counts.values(), reverse=True)
    assert {GemmProblem.parse(line["problem"]): line["count"] for line in lines} == counts
    assert set(read_problems(path)) == set(counts)
    assert [file.name for file in tmp_path.iterdir()] == ["shapes.jsonl"]


def test_an_interrupted_recording_is_kept(tmp_path):
    path = tmp_path / "shapes"

    def interrupted():
        with record_shapes(path):
            bf16(8, 16) @ V
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert read_record(path) == [GemmProblem(8, 32, 16)]


def test_an_unwritable_folder_is_named_before_the_model_runs(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CacheError, match="cannot write in"), record_shapes(tmp_path / "file" / "x"):
        pytest.fail("ran")


@pytest.mark.parametrize(
    "wrong", [5, b"x", "", "x\0", [], "folder", 300 * "x"], ids="{!r:.10}".format
)
def test_a_path_that_names_no_file_is_refused_before_the_first_product(
    tmp_path, monkeypatch, wrong
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArgumentError, match=r"path must (name|be) a file"), record_shapes(wrong):
        pytest.fail("entered")
    assert [item.name for item in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("content", ["# notes\n", '{"m": 1}\n', "\0"], ids=repr)
def test_a_file_that_is_no_record_is_left_as_it_is(tmp_path, content):
    (tmp_path / "mine").write_text(content)
    words = "path must be a recorded file or a new one"
    with pytest.raises(ArgumentError, match=words), record_shapes(tmp_path / "mine"):
        raise AssertionError
    assert (tmp_path / "mine").read_text() == content


def test_a_record_is_replaced(tmp_path):
    for call in (lambda: bf16(8, 16) @ V, lambda: None, lambda: bf16(4, 16) @ V):
        with record_shapes(tmp_path / "shapes.jsonl") as counts:
            call()
        assert read_record(tmp_path / "shapes.jsonl") == list(counts)


def test_the_file_is_where_it_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with record_shapes("shapes.jsonl"):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert (tmp_path / "shapes.jsonl").exists()
