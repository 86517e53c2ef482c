"""Swizzle algebra, layouts, bank conflicts and GEMM traffic against independent oracles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoswizzle import smem
from autoswizzle.errors import ArgumentError
from autoswizzle.smem import (
    SWIZZLE_32B,
    SWIZZLE_64B,
    SWIZZLE_128B,
    PanelLayout,
    Swizzle,
    TileLayout,
    accumulator_lanes,
    bank_conflicts,
    bank_words,
    gemm_traffic,
    ldmatrix_lanes,
    picture,
    row_lanes,
    tile_layout,
    warp_grid,
)

ARTICLE = {
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "warps_m": 4,
    "warps_n": 2,
    "instruction": (16, 8, 8),
}


def flip_bits(offset, bits, base, shift):
    """Swizzle by its definition, one bit at a time, for any shift."""
    result = offset
    for bit in range(bits):
        if offset >> (base + max(0, shift) + bit) & 1:
            result ^= 1 << (base + max(0, shift) + bit - shift)
    return result


@st.composite
def swizzles(draw, max_bits=6, max_base=20, max_shift=20):
    bits = draw(st.integers(0, max_bits))
    distance = draw(st.integers(bits, max_shift))
    return Swizzle(bits, draw(st.integers(0, max_base)), draw(st.sampled_from((1, -1))) * distance)


offset_lists = st.lists(st.integers(0, 2**62 - 1), max_size=30)


@given(swizzles(), offset_lists)
def test_swizzle_is_its_definition_on_ints_and_arrays(swizzle, offsets):
    expected = [flip_bits(o, swizzle.bits, swizzle.base, swizzle.shift) for o in offsets]
    assert [swizzle(o) for o in offsets] == expected
    array = swizzle(np.array(offsets, dtype=np.int64))
    assert array.dtype == np.int64
    assert array.tolist() == expected


@given(swizzles(), offset_lists)
def test_swizzle_is_self_inverse_and_changes_only_its_target_bits(swizzle, offsets):
    once = swizzle(np.array(offsets, dtype=np.int64))
    assert swizzle(once).tolist() == offsets
    assert not ((once ^ np.array(offsets, dtype=np.int64)) & ~swizzle.target_mask).any()
    assert swizzle.source_mask & swizzle.target_mask == 0


@settings(max_examples=60)
@given(swizzles(max_bits=4, max_base=3, max_shift=5))
def test_swizzle_permutes_every_block_that_holds_its_bits(swizzle):
    block = 1 << (swizzle.base + abs(swizzle.shift) + swizzle.bits)
    for start in (0, 5 * block):
        image = swizzle(np.arange(start, start + block))
        assert sorted(image) == list(range(start, start + block))


@settings(max_examples=60)
@given(swizzles(max_bits=4, max_base=3, max_shift=5))
def test_swizzled_columns_are_distinct_along_rows_and_along_columns(swizzle):
    """Rows = the bits read, columns = the bits from the changed ones up to them."""
    rows, cols = 1 << swizzle.bits, 1 << max(abs(swizzle.shift), swizzle.bits)
    low, high = swizzle.base, swizzle.base + abs(swizzle.shift)
    row, col = np.arange(rows)[:, None], np.arange(cols)[None, :]
    if swizzle.shift >= 0:
        image = swizzle(row << high | col << low) >> low & (cols - 1)
    else:  # the row number is the low field, and the high one is swizzled
        image = swizzle(row << low | col << high) >> high
    assert all(len(set(line)) == cols for line in image.tolist())
    assert all(len(set(line)) == rows for line in image.T.tolist())


def is_permutation(function, count):
    return sorted(map(function, range(count))) == list(range(count))


def test_counterexamples_outside_the_valid_parameters():
    overlapping = [flip_bits(o, 2, 0, 1) for o in range(8)]
    assert is_permutation(overlapping.__getitem__, 8)
    assert [overlapping[o] for o in overlapping] != list(range(8))  # 0 < |shift| < bits: no inverse
    assert not is_permutation(lambda o: flip_bits(o, 2, 0, 0), 8)  # shift 0 clears the bits
    assert len({0 ^ (row % 4) for row in range(8)}) == 4  # 8 rows > 4 columns: column 0 repeats
    assert max(row ^ col for row in range(3) for col in range(3)) == 3  # 3 columns: leaves the row


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 0), "bits must be at least 0, got -1"),
        ((1, -4, 3), "base must be at least 0, got -4"),
        ((3, 4, 2), "|shift| must be at least bits = 3, got 2"),
        ((3, 4, -2), "|shift| must be at least bits = 3, got -2"),
        ((3, 4.0, 3), "base must be an integer, got 4.0"),
        ((True, 4, 3), "bits must be an integer, got True"),
        ((3, 60, 3), "base + |shift| + bits must be at most 62, got 66"),
    ],
)
def test_illegal_swizzles_name_the_field(arguments, message):
    with pytest.raises(ArgumentError) as caught:
        Swizzle(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize("offset", [-1, 1.5, True, np.array([0.5]), np.array([3, -1]), "8"])
def test_illegal_offsets_are_refused(offset):
    with pytest.raises(ArgumentError, match="offset must"):
        SWIZZLE_128B(offset)


def test_the_named_modes():
    modes = (SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B)
    assert modes == (Swizzle(1, 4, 3), Swizzle(2, 4, 3), Swizzle(3, 4, 3))
    assert SWIZZLE_128B(3 * 128 + 5 * 16 + 7) == 3 * 128 + (5 ^ 3) * 16 + 7
    assert Swizzle(1, 0, -1)(0b01) == 0b11
    assert Swizzle(1, 0, -1)(0b10) == 0b10


# Layouts


@given(
    st.sampled_from(smem.KINDS),
    st.sampled_from([16, 32, 64, 128, 256, 512]),
    st.sampled_from([1, 2, 4]),
)
def test_tile_layouts_are_injective_and_keep_atoms_whole(kind, row_bytes, itemsize):
    layout = tile_layout(kind, row_bytes // itemsize, itemsize)
    cols = row_bytes // itemsize
    offsets = layout(np.arange(16)[:, None], np.arange(cols)[None, :])
    assert len(np.unique(offsets)) == 16 * cols
    assert offsets.max() < 16 * layout.row_bytes
    atoms = offsets.reshape(16, -1, 16 // itemsize)
    assert (np.diff(atoms, axis=2) == itemsize).all()
    assert (atoms[..., 0] % 16 == 0).all()


@pytest.mark.parametrize("row_bytes", [128, 256, 512])
def test_a_swizzled_row_xors_its_atoms_with_the_row_number(row_bytes):
    for kind, phases in (("32", 2), ("64", 4), ("128", 8)):
        layout = tile_layout(kind, row_bytes // 2)
        for row in range(16):
            for atom in range(row_bytes // 16):
                expected = row * row_bytes + (atom ^ (row % phases)) * 16
                assert layout(row, atom * 8) == expected
    assert [tile_layout(kind, 64).swizzle for kind in ("32", "64", "128")] == [
        SWIZZLE_32B,
        SWIZZLE_64B,
        SWIZZLE_128B,
    ]


@pytest.mark.parametrize("width", [32, 64, 128])
def test_panels_are_a_permutation_of_the_tile(width):
    layout = PanelLayout(rows=16, swizzle_bytes=width)
    offsets = layout(np.arange(16)[:, None], np.arange(64)[None, :])
    assert sorted(offsets.ravel() // 2) == list(range(16 * 64))
    assert layout(0, width // 2) == 16 * width  # the second panel


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tile_layout("256", 64), "kind must be one of none, 32, 64, 128, padded"),
        (lambda: tile_layout("128", 12), "cols x itemsize must be a power of two"),
        (lambda: tile_layout("128", 0), "cols must be an integer of at least 1, got 0"),
        (lambda: TileLayout(64, 3), "itemsize must be 1, 2, 4 or 8, got 3"),
        (lambda: TileLayout(64, padding=-16), "padding must be an integer of at least 0, got -16"),
        (lambda: PanelLayout(64, 16), "swizzle_bytes must be 32, 64 or 128, got 16"),
        (lambda: TileLayout(64)(-1, 0), "row must be at least 0, got -1"),
        (lambda: TileLayout(64, True), "itemsize must be 1, 2, 4 or 8, got True"),
        (lambda: TileLayout(64, 2, "128"), "swizzle must be a Swizzle, got '128'"),
        (lambda: TileLayout(1 << 60, 8), "cols x itemsize must be at most 2147483648"),
        (lambda: TileLayout(8, padding=1 << 40), "cols x itemsize + padding must be at most 2147"),
        (lambda: TileLayout(64)(0, 64), "col must be at most 63, got 64"),
        (lambda: TileLayout(64)(1 << 55, 0), f"row must be at most {2**55 - 1}, got {2**55}"),
        (lambda: TileLayout(64)([[1], [2, 3]], 0), "row must be an array, got a ragged sequence"),
        (lambda: TileLayout(64)([1, 2], [1, 2, 3]), "row and col must broadcast, got shapes (2,)"),
        (lambda: PanelLayout(8, 128)(8, 0), "row must be at most 7, got 8"),
        (lambda: PanelLayout(8, np.int64(128)), "swizzle_bytes must be 32, 64 or 128, got np.int"),
        (
            lambda: SWIZZLE_128B(np.array([2**63], dtype=np.uint64)),
            f"offset must be at most {2**62}, got {2**63}",
        ),
        (lambda: picture(TileLayout(64), 1 << 40, 64), "rows and cols must make at most 4194304"),
        (lambda: picture(TileLayout(64), 8, 64, show="colour"), "show must be one of bank, atom"),
        (lambda: picture(TileLayout(64), 0, 64), "rows must be an integer of at least 1, got 0"),
    ],
)
def test_illegal_layouts_name_the_field(call, message):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_last_element_of_the_largest_tile_has_its_exact_offset():
    layout = TileLayout(np.int64(64), padding=np.int32(16))
    assert layout(2**62 // 144 - 1, 63) == (2**62 // 144 - 1) * 144 + 126
    assert tile_layout("128", np.int64(64)) == tile_layout("128", 64)


def test_pictures():
    assert picture(tile_layout("128", 64), rows=4, cols=64, step=8, show="atom").splitlines() == [
        "row |  0  8 16 24 32 40 48 56",
        "-----------------------------",
        "  0 |  0  1  2  3  4  5  6  7",
        "  1 |  1  0  3  2  5  4  7  6",
        "  2 |  2  3  0  1  6  7  4  5",
        "  3 |  3  2  1  0  7  6  5  4",
    ]
    assert picture(tile_layout("padded", 64), rows=2, cols=4, step=2).splitlines()[2:] == [
        "  0 | 0 1",
        "  1 | 4 5",
    ]
    assert picture(TileLayout(8), rows=9, cols=8, step=4, row_step=8, show="offset").endswith(
        "  8 | 128 136"
    )


# Bank conflicts


def conflicts_by_hand(offsets, size, lanes):
    """(transactions, wavefronts, ways): every byte of every lane, in plain Python."""
    transactions = [offsets[i : i + lanes] for i in range(0, len(offsets), lanes)]
    wavefronts = []
    for group in transactions:
        words = {(offset + byte) // 4 for offset in group for byte in range(size)}
        wavefronts.append(max(sum(word % 32 == bank for word in words) for bank in range(32)))
    return len(transactions), sum(wavefronts), max(wavefronts)


@given(
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from(["ld", "st"]),
    st.lists(st.integers(0, 600), min_size=1, max_size=32),
)
def test_loads_and_stores_of_1_to_16_bytes_on_any_offsets(size, kind, places):
    offsets = [place * size for place in places]
    found = bank_conflicts(offsets, f"{kind}.shared.b{8 * size}")
    lanes = min(32, 128 // size)
    assert (found.transactions, found.wavefronts, found.ways) == conflicts_by_hand(
        offsets, size, lanes
    )
    assert found.apparent_ways == conflicts_by_hand(offsets, size, 32)[2]
    assert found.conflicts == found.wavefronts - found.transactions


@given(st.sampled_from([1, 2, 4]), st.data())
def test_ldmatrix_on_any_row_addresses(matrices, data):
    rows = st.lists(st.integers(0, 300), min_size=8 * matrices, max_size=8 * matrices)
    offsets = [16 * place for place in data.draw(rows)]
    found = bank_conflicts(offsets, f"ldmatrix.x{matrices}")
    assert (found.transactions, found.wavefronts, found.ways) == conflicts_by_hand(offsets, 16, 8)
    assert found.transactions == matrices
    assert bank_words(offsets, f"ldmatrix.x{matrices}").sum(axis=1).tolist() == [
        4 * len(set(offsets[i : i + 8])) for i in range(0, len(offsets), 8)
    ]


@pytest.mark.parametrize("matrices", [1, 2, 4])
@pytest.mark.parametrize("row_bytes", [128, 256])
def test_ldmatrix_ways_of_the_article(matrices, row_bytes):
    """8, 4, 2, 1 ways for none, 32B, 64B, 128B; none with 16 bytes of padding."""
    for kind, ways in {"none": 8, "32": 4, "64": 2, "128": 1, "padded": 1}.items():
        found = bank_conflicts(tile_layout(kind, row_bytes // 2), f"ldmatrix.x{matrices}")
        assert found.ways == ways, kind
        assert found.wavefronts == ways * matrices


def test_the_store_of_c_is_four_ways_and_looks_like_eight():
    found = bank_conflicts(tile_layout("none", 128, 4), "st.shared.b64", accumulator_lanes())
    assert (found.ways, found.apparent_ways, found.transactions) == (4, 8, 2)


def test_lanes_of_the_instructions():
    rows, cols = ldmatrix_lanes(4)
    assert list(zip(rows.tolist(), cols.tolist(), strict=True))[14:18] == [
        (14, 0),
        (15, 0),
        (0, 8),
        (1, 8),
    ]
    rows, cols = accumulator_lanes()
    assert (rows[5], cols[5], rows[31], cols[31]) == (1, 2, 7, 6)
    rows, cols = row_lanes(64, 8)
    assert (rows[9], cols[9]) == (1, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bank_conflicts([0], "ldmatrix"), "instruction must be one of ldmatrix.x1"),
        (lambda: bank_conflicts([0], "ldmatrix.x1"), "offsets must be 8 for ldmatrix.x1, got 1"),
        (lambda: bank_conflicts([], "ld.shared.b32"), "offsets must be 1 to 32 lanes, got 0"),
        (lambda: bank_conflicts([0] * 33, "ld.shared.b32"), "offsets must be 1 to 32 lanes"),
        (
            lambda: bank_conflicts([0, 6], "ld.shared.b32"),
            "offsets must be multiples of 4 for ld.shared.b32, got 6",
        ),
        (lambda: bank_conflicts([-4], "ld.shared.b32"), "offsets must be at least 0, got -4"),
        (lambda: bank_conflicts([0.5], "ld.shared.b32"), "offsets must hold integers, got float64"),
        (lambda: bank_conflicts([[0]], "ld.shared.b32"), "offsets must have one dimension"),
        (lambda: bank_conflicts(TileLayout(64), "ld.shared.b32"), "lanes must be given"),
        (lambda: bank_conflicts([0], "ld.shared.b32", ([0], [0])), "lanes must be left out"),
        (lambda: bank_conflicts(TileLayout(64), "ld.shared.b32", [0]), "lanes must be a pair"),
        (
            lambda: bank_conflicts(TileLayout(64), "ld.shared.b32", ([0, 1], [0])),
            "rows and cols must match, got shapes (2,) and (1,)",
        ),
        (lambda: ldmatrix_lanes(3), "matrices must be 1, 2 or 4, got 3"),
        (lambda: row_lanes(64, 0), "vector must be an integer of at least 1, got 0"),
        (lambda: row_lanes(12, 8), "cols must be a multiple of vector = 8, got 12"),
    ],
)
def test_illegal_accesses_name_the_field(call, message):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


# Traffic


def test_traffic_of_the_article():
    """17.18 GB copied in, 17.45 GB stored and 51.81 GB loaded; C is 268 MB, 1.5 % of the stores."""
    moved = gemm_traffic(8192, 8192, 8192, **ARTICLE)
    assert moved.l2_read == 64 * (8192**2 * 2 * 2) == 17_179_869_184
    assert moved.c_shared_write == 8192**2 * 4 == 268_435_456
    assert moved.shared_write == 17_179_869_184 + 268_435_456
    assert moved.shared_read == 4096 * 128 * 8192 * 2 * (2 + 4) + 268_435_456
    assert round(moved.shared_read / 1e9, 2) == 51.81
    assert round(moved.shared_write / 1e9, 2) == 17.45
    assert round(100 * moved.c_share_of_stores, 1) == 1.5
    assert (moved.dram_read, moved.dram_write) == (2 * 8192**2 * 2, 8192**2 * 2)
    assert moved.register_write == 8192**3 // (16 * 8 * 8) * 16 * 8 * 4


def test_shared_reads_of_the_measured_kernel():
    """6.442 GB of ldmatrix at 4096^3 with 2 x 4 warps (H200 counters)."""
    tiles = {**ARTICLE, "warps_m": 2, "warps_n": 4, "instruction": (16, 8, 16)}
    moved = gemm_traffic(4096, 4096, 4096, **tiles, c_itemsize=0)
    assert moved.shared_read == 6_442_450_944


def test_traffic_by_walking_the_tiles():
    m, n, k, block_m, block_n, block_k = 100, 72, 40, 64, 32, 16
    moved = gemm_traffic(
        m, n, k, block_m=block_m, block_n=block_n, block_k=block_k, warps_m=2, warps_n=1,
        l2_hit_rate=0.75,
    )  # fmt: skip
    l2 = stored = loaded = mmas = 0
    for row in range(0, m, block_m):
        for col in range(0, n, block_n):
            stored += block_m * block_n * 4
            loaded += block_m * block_n * 4
            for step in range(0, k, block_k):
                l2 += 2 * min(block_m, m - row) * min(block_k, k - step)
                l2 += 2 * min(block_n, n - col) * min(block_k, k - step)
                stored += 2 * (block_m + block_n) * block_k
                loaded += 2 * (1 * block_m + 2 * block_n) * block_k
                mmas += (block_m // 16) * (block_n // 8) * (block_k // 16)
    assert (moved.l2_read, moved.shared_write, moved.shared_read) == (l2, stored, loaded)
    assert moved.register_read == mmas * ((16 * 16 + 16 * 8) * 2 + 16 * 8 * 4)
    assert moved.dram_read == l2 // 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"m": 0}, "m must be an integer of at least 1, got 0"),
        ({"k": -1}, "k must be an integer of at least 1, got -1"),
        ({"n": None}, "n must be an integer of at least 1, got None"),
        ({"block_m": 100}, "block_m must be a multiple of 64, got 100"),
        ({"block_k": 12}, "block_k must be a multiple of 8, got 12"),
        ({"warps_n": 0}, "warps_n must be an integer of at least 1, got 0"),
        ({"c_itemsize": -4}, "c_itemsize must be an integer of at least 0, got -4"),
        ({"itemsize": 3}, "itemsize must be 1, 2, 4 or 8, got 3"),
        ({"l2_hit_rate": "all"}, "l2_hit_rate must be in 0..1, got 'all'"),
        ({"l2_hit_rate": 1.5}, "l2_hit_rate must be in 0..1, got 1.5"),
        ({"instruction": (16, 8, 0)}, "instruction must be three integers of at least 1"),
        ({"instruction": 16}, "instruction must be three integers of at least 1, got 16"),
    ],
)
def test_illegal_traffic_names_the_field(changed, message):
    arguments = {"m": 512, "n": 512, "k": 512, **ARTICLE, **changed}
    with pytest.raises(ArgumentError) as caught:
        gemm_traffic(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_exported_names_exist():
    assert all(hasattr(smem, name) for name in smem.__all__)


def test_the_warp_grid_reads_shared_memory_least():
    assert warp_grid(128, 128, 8) == (2, 4)
    assert warp_grid(256, 64, 8) == (4, 2)
    assert warp_grid(16, 256, 4) == (1, 4)
    assert warp_grid(64, 16, 1) == (1, 1)
    tile = {"block_m": 256, "block_n": 64, "block_k": 32}
    reads = {
        (down, 8 // down): gemm_traffic(
            512, 512, 512, **tile, warps_m=down, warps_n=8 // down
        ).shared_read
        for down in (2, 4, 8)
    }
    assert min(reads, key=reads.get) == warp_grid(256, 64, 8)
    with pytest.raises(ArgumentError, match="num_warps must split 16 x 32 into 16 x 16 pieces"):
        warp_grid(16, 32, 4)
