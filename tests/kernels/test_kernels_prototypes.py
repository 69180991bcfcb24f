"""Prototypes parsed from sources: all exported functions, and no others."""

from __future__ import annotations

import contextlib
import time

import pytest

from cuagent.kernels.prototypes import MAX_CHARACTERS, PrototypeError, parse


def one(text: str):
    (prototype,) = parse(text, "k.cu")
    return prototype


def kinds(text: str) -> list[tuple[str, str, bool]]:
    return [(p.name, p.type, p.pointer) for p in one(text).parameters]


def test_parse_reads_launcher_over_several_lines_with_comments_and_qualifiers():
    text = """
    // extern "C" void not_this(float* x) {}
    /* extern "C" void nor_this(float* x) {} */
    extern "C" void scale(
        float* __restrict__ out,      // written
        const float *const in, float factor /* a scalar, */, const long n, cudaStream_t stream)
    { helper("}"); }
    """
    assert kinds(text) == [
        ("out", "float", True),
        ("in", "float", True),
        ("factor", "float", False),
        ("n", "int64", False),
    ]
    assert one(text).stream
    assert not one(text).returns_status


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("double", "double"),
        ("half", "half"),
        ("__half", "half"),
        ("__nv_bfloat16", "bfloat16"),
        ("std::int64_t", "int64"),
        ("unsigned char", "uint8"),
        ("long long", "int64"),
        ("int", "int32"),
        ("bool", "bool"),
        ("void", "void"),
    ],
)
def test_parse_maps_pointer_types_to_canonical_names(written: str, canonical: str):
    assert kinds(f'extern "C" void f(const {written}* x) {{}}') == [("x", canonical, True)]


def test_parse_reads_definitions_of_extern_block_but_no_declarations_or_helpers():
    text = """
    extern "C" {
    static int helper(int a) { if (a) { return 1; } return 2; }
    void declared(float* x);
    cudaError_t first(float* x, size_t n) { return cudaSuccess; }
    struct Pair { int a; };
    int second(void) { return 0; }
    }
    extern "C" int printf(const char*, ...);
    """
    found = parse(text, "k.cu")
    assert [p.name for p in found] == ["first", "second"]
    assert all(p.returns_status for p in found)
    assert found[1].parameters == ()


def test_parse_reads_global_kernel_with_launch_bounds():
    text = 'extern "C" __global__ void __launch_bounds__(256, 2) k(float* x, int n) {}'
    assert one(text).kernel
    assert one(text).name == "k"


def test_parse_resolves_aliases_and_reads_array_and_unnamed_parameters():
    text = (
        'using bf = __nv_bfloat16; typedef long long idx;\nextern "C" void f(bf x[], idx, int) {}'
    )
    assert kinds(text) == [("x", "bfloat16", True), ("#2", "int64", False), ("#3", "int32", False)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__global__ void k(float* x) {}", "no extern"),
        ('extern "C" void f(std::vector<float>& x) {}', "parameter 1"),
        ('extern "C" void f(float** x) {}', "parameter 1"),
        ('extern "C" void f(int n, half x) {}', "parameter 2"),
        ('extern "C" float f(int n) {}', "returns float"),
        ('extern "C" void f(cudaStream_t s, int n) {}', "last parameter"),
    ],
)
def test_parse_refuses_functions_that_python_cannot_call(text: str, message: str):
    with pytest.raises(PrototypeError, match=message):
        parse(text, "k.cu")


def test_parse_skips_digit_separators_raw_strings_and_attributes():
    text = """
    constexpr int MANY = 1'000; const char* help = R"x(extern "C" void not_this(int) {)x";
    namespace inner {
    extern "C" [[gnu::used]] __attribute__((visibility("default"))) void f(int n) noexcept { }
    }
    """
    assert one(text).name == "f"


HOSTILE = {
    "comments that do not end": "/*",
    "quotes": '"\\',
    "character literals": "'\\",
    "raw strings that do not end": 'R"(',
    "directives": "#\\\n",
    "linkages": 'extern "C" ',
    "blocks in blocks": 'extern "C" {',
    "aliases": "typedef a ",
    "aliases of nothing": "using a = ",
    "attributes": "__launch_bounds__(",
    "brackets": "[[",
    "words": "a ",
    "spaces": " ",
    "parameters": "int a[[ * ,",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_parse_time_is_linear_on_hostile_text(piece: str):
    """A scan of the whole text for each repeated piece would take hours."""
    for begin in ("", 'extern "C" void f(', 'extern "C" {', 'extern "C" '):
        text = begin + piece * ((MAX_CHARACTERS // 16 - 100) // len(piece)) + ") {}"
        start = time.process_time()
        with contextlib.suppress(PrototypeError):
            parse(text, "k.cu")
        assert time.process_time() - start < 5


def test_parse_refuses_source_above_size_limit():
    with pytest.raises(PrototypeError, match="split it"):
        parse("x" * (MAX_CHARACTERS + 1), "k.cu")
