"""The problems every claim of this project is measured on (one list, used by all benchmarks)."""

from autoswizzle.problem import GemmProblem

# (n, k) of the projections of Llama-3-8B (first four) and -70B (last four).
LLAMA_NK = (
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (10240, 8192),
    (8192, 8192),
    (57344, 8192),
    (8192, 28672),
)
LLAMA_M = (1, 16, 64, 128, 512, 1024, 2048, 8192)
LM_HEAD = tuple((m, 128256, 4096) for m in (1, 64, 512))
SQUARES = (512, 1024, 1536, 2048, 3072, 4096, 5632, 8192, 16384)
AWKWARD = (
    (3000, 3000, 3000),
    (4095, 4097, 4099),
    (8192, 8192, 512),
    (8192, 8192, 1024),
    (16384, 1024, 1024),
    (1024, 1024, 16384),
    (256, 256, 32768),
    (8192, 32768, 8192),
    (32768, 8192, 2048),
)
WEIGHT_GRADIENTS = ((4096, 14336, 8192), (28672, 4096, 8192))  # tn, whatever the layout asked for
# Products of a training step of Llama-3-8B, 4096 tokens: forward, of the input, of the weights.
STEP_NK = (*LLAMA_NK[:4], (128256, 4096))
BATCHED = ((32, 2048, 2048, 128), (512, 128, 128, 64))
# Rank and seed coefficients may be fitted on these only: none of them is in the suite.
FITTING = ((3584, 3584, 3584), (6144, 6144, 2048), (2560, 12288, 4096), (12288, 1536, 6144))


def squares(dtype: str, layout: str, precision: str = "ieee") -> list[GemmProblem]:
    """The square problems of one dtype and layout."""
    return [GemmProblem(n, n, n, dtype, layout, precision=precision) for n in SQUARES]


def suite(dtype: str = "bf16", layout: str = "nt") -> list[GemmProblem]:
    """Every two-dimensional problem of the suite for one dtype and layout, largest first."""
    shapes = [(m, n, k) for n, k in LLAMA_NK for m in LLAMA_M]
    shapes += [*LM_HEAD, *((n, n, n) for n in SQUARES), *AWKWARD]
    if layout == "tn":
        shapes += WEIGHT_GRADIENTS
    problems = [GemmProblem(m, n, k, dtype, layout) for m, n, k in shapes]
    return sorted(problems, key=lambda problem: -problem.flops)


def training(dtype: str = "bf16", tokens: int = 4096) -> list[GemmProblem]:
    """The products of a training step, each with its two gradients', largest first."""
    problems = [
        problem
        for n, k in STEP_NK
        for problem in (
            GemmProblem(tokens, n, k, dtype, "nt"),
            GemmProblem(tokens, k, n, dtype, "nn"),
            GemmProblem(n, k, tokens, dtype, "tn"),
        )
    ]
    return sorted(problems, key=lambda problem: -problem.flops)


def large(dtype: str = "bf16", layout: str = "nt") -> list[GemmProblem]:
    """The suite's problems with m, n and k of at least 1024."""
    return [
        problem for problem in suite(dtype, layout) if min(problem.m, problem.n, problem.k) >= 1024
    ]
