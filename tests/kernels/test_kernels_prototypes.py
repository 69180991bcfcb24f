"""Prototypes parsed from sources: all exported functions, and no others."""

from __future__ import annotations

import contextlib
import time

import pytest
from shares import slow_except

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
        ('extern "C" int *f(int n) {}', r"returns int ?\*"),
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


@pytest.mark.parametrize(
    "name", slow_except(HOSTILE, "comments that do not end", "linkages", "brackets", "parameters")
)
def test_parse_time_is_linear_on_hostile_text(name: str):
    """A scan of the whole text for each repeated piece would take hours."""
    for begin in ("", 'extern "C" void f(', 'extern "C" {', 'extern "C" '):
        piece = HOSTILE[name]
        text = begin + piece * ((MAX_CHARACTERS // 16 - 100) // len(piece)) + ") {}"
        start = time.process_time()
        with contextlib.suppress(PrototypeError):
            parse(text, "k.cu")
        assert time.process_time() - start < 5


def test_parse_refuses_source_above_size_limit():
    with pytest.raises(PrototypeError, match="split it"):
        parse("x" * (MAX_CHARACTERS + 1), "k.cu")


def test_prototype_holds_text_position_and_flags():
    text = 'extern "C" int f( const float *x , int, double scale)\n{ return 0; }'
    prototype = one(text)
    assert (prototype.stream, prototype.returns_status, prototype.kernel) == (False, True, False)
    assert [p.text for p in prototype.parameters] == ["const float *x", "int", "double scale"]
    assert [p.name for p in prototype.parameters] == ["x", "#2", "scale"]


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("float", "float"),
        ("_Float16", "half"),
        ("nv_bfloat16", "bfloat16"),
        ("bfloat16", "bfloat16"),
        ("bf16", "bfloat16"),
        ("__bf16", "bfloat16"),
        ("__nv_fp8_e4m3", "float8_e4m3fn"),
        ("__nv_fp8_e5m2", "float8_e5m2"),
        ("char", "int8"),
        ("signed char", "int8"),
        ("int8_t", "int8"),
        ("uint8_t", "uint8"),
        ("short", "int16"),
        ("int16_t", "int16"),
        ("unsigned short", "uint16"),
        ("uint16_t", "uint16"),
        ("signed", "int32"),
        ("int32_t", "int32"),
        ("unsigned", "uint32"),
        ("unsigned int", "uint32"),
        ("uint32_t", "uint32"),
        ("long", "int64"),
        ("long int", "int64"),
        ("long long int", "int64"),
        ("ptrdiff_t", "int64"),
        ("ssize_t", "int64"),
        ("unsigned long", "uint64"),
        ("unsigned long long", "uint64"),
        ("uint64_t", "uint64"),
        ("size_t", "uint64"),
    ],
)
def test_every_type_name_has_its_canonical_name(written: str, canonical: str):
    assert kinds(f'extern "C" void f({written}* x, const {written} *, int n) {{}}') == [
        ("x", canonical, True),
        ("#2", canonical, True),
        ("n", "int32", False),
    ]


@pytest.mark.parametrize(
    "written",
    ["half", "bf16", "__nv_fp8_e4m3", "__nv_fp8_e5m2", "void", "char", "short", "uint16_t"],
)
def test_narrow_types_are_refused_by_value(written: str):
    with pytest.raises(PrototypeError, match=r"k\.cu: f: parameter 2 .* by value"):
        parse(f'extern "C" void f(int n, {written} x) {{}}', "k.cu")


@pytest.mark.parametrize("written", ["bool", "uint8_t", "unsigned char", "uint32_t", "double"])
def test_wide_types_and_flags_are_passed_by_value(written: str):
    assert kinds(f'extern "C" void f({written} x) {{}}')[0][2] is False


def test_stream_is_removed_only_as_the_last_parameter():
    assert kinds('extern "C" void f(cudaStream_t stream) {}') == []
    assert one('extern "C" void f(cudaStream_t) {}').stream
    assert not one('extern "C" void f(int n) {}').stream


@pytest.mark.parametrize(
    "declared",
    [
        "static void g(int n) {}",
        "__device__ void g(int n) {}",
        "inline void g(int n) {}",
        "int table[] = {1, 2};",
        "struct Pair { int a; };",
        "void g(int n);",
        "g(int n) {}",
        "int x = f(3) + 1;",
    ],
)
def test_other_definitions_of_a_block_are_not_exported(declared: str):
    found = parse(f'extern "C" {{ {declared} void f(int n) {{ if (n) {{ }} }} }}', "k.cu")
    assert [p.name for p in found] == ["f"]


def test_linkage_ends_with_its_declaration_or_block():
    text = """
    extern "C" void declared(int n);
    void after_declaration(int n) {}
    extern "C" { void inside(int n) {} namespace deep { void deeper(int n) {} } void last(int) {} }
    void after_block(int n) {}
    extern "C" void alone(int n) { { } }
    void after_function(int n) {}
    """
    assert [p.name for p in parse(text, "k.cu")] == ["inside", "last", "alone"]


def test_string_c_without_extern_is_no_linkage():
    text = 'const char* names[] = {"C"}; void g(int n) {} extern "C" void f(int n) {}'
    assert [p.name for p in parse(text, "k.cu")] == ["f"]
    assert one('"C" void g(int n) {} extern "C" void f(int n) {}').name == "f"


@pytest.mark.parametrize("result", ["int", "cudaError_t", "int32_t"])
def test_status_is_a_result_of_launchers_only(result: str):
    assert one(f'extern "C" {result} f(int n) {{}}').returns_status
    with pytest.raises(PrototypeError, match=f"k returns {result}"):
        parse(f'extern "C" __global__ {result} k(int n) {{}}', "k.cu")


def test_later_definition_of_a_name_replaces_the_earlier_one():
    text = 'extern "C" void f(int n) {} extern "C" void f(float x) {}'
    assert kinds(text) == [("x", "float", False)]


def test_aliases_of_twelve_tokens_are_the_longest():
    assert kinds('typedef unsigned long long idx; extern "C" void f(idx n) {}') == [
        ("n", "uint64", False)
    ]
    assert kinds('using idx = std::int64_t; extern "C" void f(idx* n) {}') == [("n", "int64", True)]
    long = "long " * 3
    for source in (
        f'typedef {long * 4} idx; extern "C" void f(idx n) {{}}',
        'typedef idx; extern "C" void f(idx n) {}',
        'using namespace idx; extern "C" void f(idx n) {}',
    ):
        with pytest.raises(PrototypeError, match="parameter 1"):
            parse(source, "k.cu")


@pytest.mark.parametrize("text", ["float* x[4]", "float x[2][3]", "float& x", "float*& x"])
def test_pointers_to_pointers_and_references_are_refused(text: str):
    with pytest.raises(PrototypeError, match=r"parameter 1 .* cannot be passed"):
        parse(f'extern "C" void f({text}) {{}}', "k.cu")


def test_default_values_and_array_sizes_are_ignored():
    assert kinds('extern "C" void f(float x[256], int n = 3) {}') == [
        ("x", "float", True),
        ("n", "int32", False),
    ]


@pytest.mark.parametrize(
    "attribute",
    [
        "__launch_bounds__(256, (2))",
        "__cluster_dims__(2, 1, 1)",
        "__attribute__((noinline))",
        "[[gnu::used]]",
        "[[gnu::used]] __attribute__((cold)) [[maybe_unused]]",
        "__host__",
    ],
)
def test_attributes_are_ignored(attribute: str):
    text = f'extern "C" {attribute} void f(int n) noexcept {{}}'
    assert kinds(text) == [("n", "int32", False)]


def test_source_of_the_largest_size_is_read():
    text = 'extern "C" void f(int n) {}'
    assert one(text + " " * (MAX_CHARACTERS - len(text))).name == "f"
    with pytest.raises(PrototypeError, match=str(MAX_CHARACTERS)):
        parse(text + " " * (MAX_CHARACTERS + 1 - len(text)), "k.cu")
    assert MAX_CHARACTERS == 1024 * 1024
