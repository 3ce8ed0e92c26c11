#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that declarations.py and source_text.py read a source with everything that is hard to read.

usage: declarations_test.py
"""
import sys

sys.dont_write_bytecode = True
import declarations  # noqa: E402
import source_text  # noqa: E402

# One declaration a line, or none; what each line declares stands in its comment `//= kind name`.
SAMPLE = r'''
#define MACRO(x) struct hidden_##x { \
  int a;
#include <vector> // a comment { after a directive
/* struct in_a_comment { */ namespace pipelining::inline v0_3 {
//! struct in_docs { void broken(; };
constexpr char const* page = R"js(struct in_text { // "no" end)js"; //= variable page
inline constexpr char brace = '{'; //= variable brace
inline constexpr int thousand = 1'000; struct after_number { char c = 'x'; }; //= variable thousand; struct after_number; variable c in class
inline constexpr bool less = 1 < thousand; struct after_less {}; //= variable less; struct after_less
struct plain; //= struct plain
template <class T, int N = (3 > 2), bool B = (N < 3)> struct [[nodiscard]] box final : base<T, walk{.lag = 1}> { //= struct box
  enum class inner { a, b }; //= enum inner in class
  box(int a) : base<T, walk{}>{a}, more(a), last{} { run({a}); } //= function box in class
  template <class U> requires (N > 1) || std::same_as<T, U> explicit(N > 2) box(U&& u) noexcept(noexcept(u())); //= function box in class
  bool operator()(int a) const { return a < 3; } //= operator operator() in class
  friend bool operator==(box const&, box const&) = default; //= operator operator== in class
  using element = std::vector<int>; //= alias element in class
  struct nested { struct deeper { int x{}; }; }; //= struct nested in class; struct deeper in class; variable x in class
public:
  int bits : 3; //= variable bits in class
};
template <> struct box<int, 3>; //= struct box
template <class T> struct std::hash<pp::box<T>> { //=
};
template <class T>
concept readable = requires(T t) { { t.read() } -> std::same_as<int>; } && (sizeof(T) < 8); //@ concept readable
using alias = std::function<int(int)>; //= alias alias
template <class T> using pointer_to = T*; //= alias pointer_to
using other::imported; //= using imported
using namespace other; //=
enum class colour : unsigned char { red = 1, green }; //= enum colour
template <class T> requires readable<T> && requires { typename T::x; } auto constrained(T t) -> decltype(t.read()); //= function constrained
template <class T, class F = auto(int) -> int> struct arrow {}; //= struct arrow
template <int N = 1 << 3> struct shifted {}; //= struct shifted
template <class T> requires readable<T> || (sizeof(T) > 2) int either_of(T); //= function either_of
template <readable T> [[nodiscard]] constexpr std::vector<std::vector<int>> nested_list(T, int n = {}) { return {}; } //= function nested_list
template <class T> auto trailing(T t) requires requires(T u) { u.x; } { return t; } //= function trailing
decltype(auto) deduced() { return 1; } //= function deduced
__global__ void __launch_bounds__(128, 1) kernel(int n) {} //= function kernel
constexpr bool operator<(plain, plain) { return 1 << 2 < 3; } //= operator operator<
std::strong_ordering operator<=>(plain, plain); //= operator operator<=>
struct plain made_by(int); //= function made_by
void plain::defined_outside() { } //= function defined_outside in class
template <class T> inline constexpr bool is_one = sizeof(T) == 1; //= variable is_one
template <> inline constexpr bool is_one<box<int>> = false; //= variable is_one
inline constexpr auto lambda = [](int a) { return a; }; //= variable lambda
extern int table[]; //= variable table
static_assert(sizeof(int) == 4, "struct in_assert {");
template class box<long>; //= class box
namespace detail { inline int secret(int) { return 0; } } //= function secret in detail
inline namespace more { int inlined; } //= variable inlined
namespace cuda::detail { struct deep {}; } //= struct deep in cuda detail
namespace shorter = cuda;
extern "C" { void in_c(); } //= function in_c
extern "C" void also_in_c(); //= function also_in_c
#if 1
int one_branch(); //= function one_branch
#else
int other_branch(); //= function other_branch
#endif
constexpr int four_lines(int a) { //= function four_lines
  if (a < 1) { return 0; }
  return [a] { return a; }();
}
} // namespace
'''


def expected_of(line):
    _, _, said = line.partition("//= ") if "//= " in line else line.partition("//@ ")
    for one in said.split("; ") if said else []:
        kind, name, *place = one.split()
        yield kind, name, ("pipelining", *(word for word in place if word not in ("in", "class"))), place == ["in", "class"]


def problems():
    found = declarations.declarations(SAMPLE)
    is_at = {}
    for one in found:
        is_at.setdefault(one.line, []).append((one.kind, one.name, one.scope, one.in_class))
    for number, line in enumerate(SAMPLE.splitlines(), 1):
        expected = sorted(expected_of(line))
        if sorted(is_at.get(number, [])) != expected:
            yield f"{line.strip()}\n  reads as {sorted(is_at.get(number, []))}, not as {expected}"
    bodies = {one.name: one.body for one in found if one.body > 1}
    if bodies != {"four_lines": 4}:
        yield f"the only body of more than one line is that of four_lines, with 4, not {bodies}"
    for text, what in [("namespace a {\nint b;\n", "line 1: '{' is never closed"), ("int a;\n}\n", "line 2: '}' closes nothing")]:
        try:
            declarations.declarations(text)
            yield f"{text!r} reads without an error"
        except ValueError as error:
            if str(error) != what:
                yield f"{text!r} reads with the error {error}, not with {what}"
    text = '// no\n\n/* no\n   no */\nint a; // yes\n"// yes"; /* { */\n#define YES // yes\nR"(\n// yes\n)";\n'
    if (lines := source_text.lines_of_code(text)) != 6:
        yield f"the text has 6 lines of code, not {lines}"
    words = source_text.words_of('#include <no>\nyes(also + 1\'0, "no", /* no */ \'n\'); // no\n')
    if not {"yes", "also"} <= words or "no" in words:
        yield f"the words are yes and also, not {words}"


if __name__ == "__main__":
    found_problems = list(problems())
    print(*found_problems, sep="\n")
    sys.exit(1 if found_problems else 0)
