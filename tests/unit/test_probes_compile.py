"""The measuring kernels compile without a GPU, and their loops are what they should be."""

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("name", "signature", "constants", "warps"),
    [
        ("nothing", {}, {}, 4),
        (
            "stream",
            {"buffer": "*i32", "sink": "*i32", "chunks": "i32", "reads": "i32"},
            {"APART": 5, "SHARE": 12, "BLOCK": 4096},
            4,
        ),
        (
            "chase",
            {"buffer": "*i32", "sink": "*i32", "chunks": "i32", "passes": "i32"},
            {"BLOCK": 1024},
            32,
        ),
    ],
)
def test_probes_compile(capability, name, signature, constants, warps):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from autoswizzle.kernels import probes

    source = ASTSource(
        fn=getattr(probes, name),
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs={(list(signature | constants).index(key),): v for key, v in constants.items()},
        attrs={(index,): [["tt.divisibility", 16]] for index in range(2)} if signature else {},
    )
    kernel = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps}
    )
    loads = [line for line in kernel.asm["ptx"].splitlines() if "ld.global.cg" in line]
    # 16 bytes a thread to draw the most, a single word a thread to have one line in flight.
    expected = {"nothing": 0, "stream": 4096 // 4 // (32 * 4), "chase": 1}[name]
    assert len(loads) == expected
    assert all((".v4" in line) == (name == "stream") for line in loads)
