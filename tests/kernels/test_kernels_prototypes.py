"""What is read from a source: the exported functions, and only those."""

from __future__ import annotations

import contextlib
import time

import pytest

from cuagent.kernels.prototypes import MOST_CHARACTERS, PrototypeError, parse


def one(text: str):
    (prototype,) = parse(text, "k.cu")
    return prototype


def kinds(text: str) -> list[tuple[str, str, bool]]:
    return [(p.name, p.type, p.pointer) for p in one(text).parameters]


def test_reads_a_launcher_over_several_lines_with_comments_and_qualifiers():
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
def test_pointer_types_have_one_canonical_name(written: str, canonical: str):
    assert kinds(f'extern "C" void f(const {written}* x) {{}}') == [("x", canonical, True)]


def test_reads_every_definition_of_a_block_and_no_declaration_or_helper():
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


def test_reads_a_global_kernel_with_launch_bounds():
    text = 'extern "C" __global__ void __launch_bounds__(256, 2) k(float* x, int n) {}'
    assert one(text).kernel
    assert one(text).name == "k"


def test_follows_aliases_and_array_parameters_and_unnamed_ones():
    text = (
        'using bf = __nv_bfloat16; typedef long long idx;\nextern "C" void f(bf x[], idx, int) {}'
    )
    assert kinds(text) == [("x", "bfloat16", True), ("#2", "int64", False), ("#3", "int32", False)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("__global__ void k(float* x) {}", "no extern"),
        ('extern "C" void f(std::vector<float>& x) {}', "parameter 1"),
        ('extern "C" void f(float** x) {}', "parameter 1"),
        ('extern "C" void f(int n, half x) {}', "parameter 2"),
        ('extern "C" float f(int n) {}', "returns float"),
        ('extern "C" void f(cudaStream_t s, int n) {}', "last parameter"),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(text: str, told: str):
    with pytest.raises(PrototypeError, match=told):
        parse(text, "k.cu")


def test_is_not_misled_by_digit_separators_raw_strings_and_attributes():
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
def test_takes_no_longer_than_the_text_is_long_whatever_it_says(piece: str):
    """A megabyte that is gone through once for each piece takes hours."""
    for begin in ("", 'extern "C" void f(', 'extern "C" {', 'extern "C" '):
        text = begin + piece * ((MOST_CHARACTERS // 16 - 100) // len(piece)) + ") {}"
        begun = time.process_time()
        with contextlib.suppress(PrototypeError):
            parse(text, "k.cu")
        assert time.process_time() - begun < 5


def test_a_source_of_more_than_can_be_a_kernel_is_refused_by_its_size():
    with pytest.raises(PrototypeError, match="split it"):
        parse("x" * (MOST_CHARACTERS + 1), "k.cu")
