import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoswizzle.config import SWIZZLES, TORCH, GemmConfig
from autoswizzle.errors import ConfigError

configs = st.builds(
    GemmConfig,
    kernel=st.sampled_from(["pointer", "tma", "wgmma"]),
    block_m=st.sampled_from([16, 64, 128]),
    swizzle=st.sampled_from(SWIZZLES),
    group_size=st.integers(1, 64),
    persistent=st.booleans(),
    max_registers=st.integers(0, 255),
)


@given(configs)
def test_json_round_trip(config: GemmConfig) -> None:
    assert GemmConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_text() -> None:
    assert str(GemmConfig()) == "pointer 128x128x32 w4 s3 grouped8"
    assert str(GemmConfig(swizzle="morton", persistent=True)).endswith("morton persistent")
    assert str(TORCH) == "torch"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel", "cutlass"),
        ("swizzle", "spiral"),
        ("block_m", 0),
        ("block_m", 128.0),
        ("block_m", True),
        ("group_size", -1),
        ("persistent", 1),
        ("max_registers", -1),
        ("smem_a", 64),
    ],
)
def test_illegal_value_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{field} must"):
        GemmConfig(**{field: value})  # type: ignore[arg-type]


def test_from_dict_names_the_unknown_field() -> None:
    with pytest.raises(ConfigError, match="got 'BLOCK_M'"):
        GemmConfig.from_dict({"kernel": "pointer", "BLOCK_M": 128})
    with pytest.raises(ConfigError, match="must be a mapping"):
        GemmConfig.from_dict([])  # type: ignore[arg-type]
