"""The matrix products of a decoder model, from its Hugging Face config.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoswizzle.errors import ArgumentError
from autoswizzle.problem import TORCH_NAMES, GemmProblem
from autoswizzle.records import json_value, text_of

TOKENS = tuple(2**power for power in range(14))  # 1..8192: decoding to a long prompt
MODEL_TYPES = (  # decoders of fused attention and gated MLP projections
    "gemma",
    "gemma2",
    "gemma3_text",
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
)
EXPERTS = ("mixtral", "qwen3_moe")  # their MLPs are grouped products, left out
OWN_HEAD_DIM = ("gemma", "gemma2", "gemma3_text", "qwen3", "qwen3_moe")  # not hidden / heads
_DTYPES = {f"torch.{name}": dtype for dtype, name in TORCH_NAMES.items()}


def projections(
    path: Path, tokens: Sequence[int] = TOKENS, tp: int = 1, dtype: str | None = None
) -> list[GemmProblem]:
    """The products of one layer and of lm_head, for each number of tokens, on one of tp GPUs.

    Weights are stored as torch.nn.Linear does (layout nt). Query, key and value are one product, as
    are gate and up; tp splits heads, the MLP and the vocabulary; a model with fewer key-value heads
    than tp repeats them. A mixture's experts are left out. dtype: instead of the model's own.
    Raises ArgumentError naming the file and the field.
    """
    model = _Config(path)
    heads = model.integer("num_attention_heads")
    hidden = model.integer("hidden_size")
    kv_heads = model.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise model.wrong("num_key_value_heads", f"divide num_attention_heads {heads}", kv_heads)
    derived = None if model.type in OWN_HEAD_DIM else hidden // heads
    head_dim = model.integer("head_dim", default=derived)
    vocabulary = model.integer("vocab_size")
    model.require_split("num_attention_heads", heads, tp)
    if kv_heads % tp and tp % kv_heads:
        raise model.wrong("num_key_value_heads", f"divide --tp {tp} or be divided by it", kv_heads)
    queries = heads // tp * head_dim
    keys = max(1, kv_heads // tp) * head_dim
    weights = [(queries + 2 * keys, hidden), (hidden, queries)]
    if model.type not in EXPERTS:
        inner = model.integer("intermediate_size")
        model.require_split("intermediate_size", inner, tp)
        weights += [(2 * inner // tp, hidden), (hidden, inner // tp)]
    weights.append((-(-vocabulary // tp), hidden))  # the last GPU's part is padded
    chosen = dtype or model.dtype
    return [GemmProblem(m, n, k, chosen, "nt") for m in tokens for n, k in weights]


class _Config:
    """A config.json; of a model of several kinds of input, its text part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        data = json_value(text_of(path, "--hf-config"))
        if not isinstance(data, dict):
            raise ArgumentError(f"{path}: must be a JSON mapping, as a Hugging Face config.json")
        text = data.get("text_config")
        self._fields: Mapping[str, Any] = {**data, **text} if isinstance(text, dict) else data
        self.type = self._fields.get("model_type")
        if self.type not in MODEL_TYPES:
            raise self.wrong("model_type", f"be one of {', '.join(MODEL_TYPES)}", self.type)

    @property
    def dtype(self) -> str:
        """Our name of the model's dtype."""
        name = "dtype" if "dtype" in self._fields else "torch_dtype"
        stored = self._fields.get(name, "bfloat16")
        dtype = _DTYPES.get(f"torch.{str(stored).removeprefix('torch.')}")
        if dtype is None:
            legal = ", ".join(TORCH_NAMES.values())
            raise self.wrong(name, f"be one of {legal} (--dtype overrides it)", stored)
        return dtype

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer field; null counts as absent."""
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < 1:
            raise self.wrong(name, "be an integer of at least 1", value)
        return value

    def require_split(self, name: str, value: int, tp: int) -> None:
        """Raise unless tp divides the field."""
        if value % tp:
            raise self.wrong(name, f"be a multiple of --tp {tp}", value)

    def wrong(self, name: str, legal: str, value: object) -> ArgumentError:
        """The error of a field."""
        return ArgumentError(f"{self._path}: {name} must {legal}, got {value!r:.80}")
