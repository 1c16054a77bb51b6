"""Each fused kernel equals its plain PyTorch operation in float64, as do its gradients, for many shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradient_parity import DEVICE, HALF, TOLERANCE, check_parity, random
from vitreous.kernels.add_norm import Branch, add_norm, layer_norm, plain_add_norm, plain_layer_norm
from vitreous.kernels.attention import attention, plain_attention, supports
from vitreous.kernels.bias_gelu import bias_gelu, plain_bias_gelu
from vitreous.kernels.launch import column_sums
from vitreous.kernels.parity import relative_error
from vitreous.kernels.window_attention import plain_window_attention, window_attention
from vitreous.model.windows import Windows, separated_pairs

FP32 = torch.float32


@settings(max_examples=8)
@given(
    st.integers(1, 3),
    st.integers(1, 19),
    st.integers(8, 70),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_add_norm(b: int, t: int, d: int, bias: bool, scale: bool, factor: bool, other: bool, wide: bool) -> None:
    dtype = torch.float16 if other else HALF
    tensors = [
        random(b, t, d, dtype=FP32 if wide else dtype),
        random(b, t, d, dtype=dtype),
        random(d, dtype=FP32) if bias else None,
        random(d, dtype=FP32) if scale else None,
        (torch.rand(b, device=DEVICE) > 0.3) / 0.7 if factor else None,
        random(d, dtype=FP32),
        random(d, dtype=FP32),
    ]

    def call(operation, tokens, values, value_bias, scales, factors, weight, norm_bias):  # type: ignore[no-untyped-def]
        return operation(tokens, Branch(values, value_bias, scales, factors), weight, norm_bias, 1e-3)

    check_parity(lambda *all: call(add_norm, *all), lambda *all: call(plain_add_norm, *all), tensors)


@settings(max_examples=5)
@given(st.integers(1, 3), st.integers(1, 19), st.integers(8, 70), st.booleans())
def test_layer_norm(b: int, t: int, d: int, wide: bool) -> None:
    check_parity(
        lambda x, w, c: layer_norm(x, w, c, 1e-3, HALF),
        lambda x, w, c: torch.nn.functional.layer_norm(x, (d,), w, c, 1e-3),
        [random(b, t, d, dtype=FP32 if wide else HALF), random(d, dtype=FP32), random(d, dtype=FP32)],
    )


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of the interpreter; infinity is correct
@settings(max_examples=6)
@given(st.integers(1, 40), st.integers(1, 300), st.sampled_from(["erf", "tanh", "quick"]))
def test_bias_gelu(rows: int, width: int, kind: str) -> None:
    tensors = [random(1, rows, width, scale=2.0), random(width, dtype=FP32)]
    check_parity(lambda x, c: bias_gelu(x, c, kind), lambda x, c: plain_bias_gelu(x, c, kind), tensors)


@pytest.mark.parametrize(("tokens", "heads"), [(1, 1), (17, 3), (128, 1), (129, 2), (197, 1), (256, 1)])
@pytest.mark.parametrize("bias", [False, True])
def test_attention(tokens: int, heads: int, bias: bool) -> None:
    assert supports(tokens, 64, DEVICE)
    tensors = [random(2, tokens, 3 * heads * 64), random(3 * heads * 64, dtype=FP32) if bias else None]

    def call(operation, qkv, qkv_bias):  # type: ignore[no-untyped-def]
        return operation(qkv, qkv_bias, heads, 0.09)

    check_parity(lambda *all: call(attention, *all), lambda *all: call(plain_attention, *all), tensors)


def test_inputs_need_not_be_contiguous() -> None:
    def strided(*shape: int) -> torch.Tensor:
        return random(*shape[:-2], shape[-1], shape[-2]).detach().transpose(-1, -2)

    x, vector, qkv = strided(2, 5, 16), random(16, dtype=FP32), strided(2, 5, 192)
    for found, expected in (
        (add_norm(x, Branch(strided(2, 5, 16) * 0 + 1), vector, vector, 1e-6)[0], x + 1),
        (
            layer_norm(x, vector, vector, 1e-6, HALF),
            layer_norm(x.clone(memory_format=torch.contiguous_format), vector, vector, 1e-6, HALF),
        ),
        (bias_gelu(x, vector, "erf"), plain_bias_gelu(x.double(), vector.double(), "erf")),
        (attention(qkv, None, 1, 0.3), plain_attention(qkv.double(), None, 1, 0.3)),
    ):
        assert relative_error(found, expected.double()) < TOLERANCE


def test_nan_reaches_the_output() -> None:
    qkv = random(1, 20, 192).detach()
    qkv[0, 3, 64] = torch.nan  # a key
    assert attention(qkv, None, 1, 0.3).isnan().all()
    x, vector = random(1, 2, 16).detach(), torch.ones(16, device=DEVICE)
    x[0, 1, 2] = torch.nan
    assert add_norm(x, Branch(x), vector, vector, 1e-6)[1].isnan().sum() == 16
    assert bias_gelu(x, vector, "tanh").isnan().sum() == 1


def test_results_in_8_bits() -> None:
    """A value at the border of two steps may be rounded to the other one, because the plain operation rounds twice."""
    x, y, vector, qkv = random(2, 20, 48), random(2, 20, 48), random(48, dtype=FP32), random(2, 20, 192)
    x.data[0, 0, 0], qkv.data[0, 0, 130] = 3e4, torch.nan  # a value out of range and one that is not a number
    branch, scale = Branch(y, vector), torch.tensor(0.02, device=DEVICE)
    with torch.no_grad():
        for fused, plain in (
            (
                add_norm(x, branch, vector, vector, 1e-6, scale)[1],
                plain_add_norm(x, branch, vector, vector, 1e-6, scale)[1],
            ),
            (
                layer_norm(x, vector, vector, 1e-6, HALF, scale),
                plain_layer_norm(x, vector, vector, 1e-6, HALF, scale),
            ),
            (bias_gelu(x, vector, "erf", scale), plain_bias_gelu(x, vector, "erf", scale)),
            (attention(qkv, None, 1, 0.3, scale), plain_attention(qkv, None, 1, 0.3, scale)),
        ):
            assert fused.dtype == plain.dtype == torch.float8_e4m3fn
            assert torch.equal(fused.float().isnan(), plain.float().isnan())
            torch.testing.assert_close(fused.float(), plain.float(), rtol=0.126, atol=2**-8, equal_nan=True)
            assert (fused.float() == plain.float()).float().mean() > 0.9 - plain.float().isnan().float().mean()


def test_attention_with_large_scores_is_finite() -> None:
    qkv = random(1, 33, 3 * 64, scale=30.0).detach()
    found, expected = attention(qkv, None, 1, 1.0), plain_attention(qkv.double(), None, 1, 1.0)
    assert (found - expected).norm() / expected.norm() < TOLERANCE


@pytest.mark.parametrize(
    ("side", "heads", "head_dim", "shift"), [(2, 1, 32, 0), (7, 2, 32, 3), (3, 3, 16, 1), (8, 1, 24, 0)]
)
def test_window_attention(side: int, heads: int, head_dim: int, shift: int) -> None:
    windows = Windows((2 * side, side), (side, side), (shift, shift))
    indices, separated = windows.token_indices().to(DEVICE), separated_pairs(windows, DEVICE)
    bias = random(heads, side**2, side**2, dtype=FP32)
    tensors = [random(3, 2 * side**2, 3 * heads * head_dim), bias]

    def call(operation, qkv, table):  # type: ignore[no-untyped-def]
        return operation(qkv, indices, table, separated, 0.7 * head_dim**-0.5)

    check_parity(lambda *all: call(window_attention, *all), lambda *all: call(plain_window_attention, *all), tensors)


def test_results_are_deterministic() -> None:
    """Gradients of biases are sums over all tokens, whose order must not change."""
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        x, bias, qkv = random(3, 50, 64), random(64, dtype=FP32), random(3, 50, 3 * 64)
        weight, shift = random(64, dtype=FP32), random(64, dtype=FP32)
        summed, normed = add_norm(
            attention(qkv, None, 1, 0.2), Branch(bias_gelu(x, bias, "erf"), bias), weight, shift, 1e-6
        )
        (summed * normed).sum().backward()
        results.append([tensor.grad for tensor in (x, bias, qkv, weight, shift)])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_column_sums_of_many_rows() -> None:
    x = random(2500, 70).detach()
    assert relative_error(column_sums(x), x.double().sum(0)) < 1e-6
    assert relative_error(column_sums(x[:1024].view(1024, 7, 10)), x[:1024].double().sum(0).view(7, 10)) < 1e-6


@pytest.mark.parametrize("mode", ["add_norm", "layer_norm", "bias_gelu", "attention", "window_attention"])
def test_operations_are_registered_correctly(mode: str) -> None:
    """torch.compile relies on their fake versions and gradients."""
    x, vector, qkv = random(2, 5, 16), random(16, dtype=FP32), random(2, 5, 48)
    arguments = {
        "add_norm": (x, random(2, 5, 16), vector, random(16, dtype=FP32), None, vector, vector, 1e-6),
        "layer_norm": (x, vector, vector, 1e-6, HALF),
        "bias_gelu": (x, vector, "tanh"),
        "attention": (random(2, 5, 192), random(192, dtype=FP32), 1, 0.3),
        "window_attention": (
            qkv,
            torch.tensor([[2, 0, 4, 3, 1]], device=DEVICE),
            random(2, 5, 5, dtype=FP32),
            None,
            0.3,
        ),
    }
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.vitreous, mode).default, arguments[mode], test_utils=tests)
