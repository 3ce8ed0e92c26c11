// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
//! @file
//! @brief PTX text into declarations, labels and statements; no meaning is given to opcodes here.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

//! @brief A declared variable: register range, parameter, or memory in some state space.
struct declaration {
  std::string space; //!< "reg", "param", "shared", "local", "global", "const"
  std::string type;  //!< "b32", "f32", "pred", ...
  std::string name;
  std::size_t alignment = 1;
  std::size_t element_bytes = 0;
  std::size_t bytes = 0; //!< 0 for an array of unknown size
  std::size_t count = 0; //!< of registers `name<count>`, else 0
  bool external = false;
  std::vector<std::string> initial;
};

enum class statement_kind : std::uint8_t { instruction, label, declare, open, close };

//! @brief One statement of a function body.
struct statement {
  statement_kind kind = statement_kind::instruction;
  std::uint32_t line = 0;        //!< in the PTX text
  std::uint32_t source_file = 0; //!< of the last .loc, 0 if there is none
  std::uint32_t source_line = 0;
  bool guard_negated = false;
  std::string guard;                 //!< predicate register or empty
  std::string name;                  //!< full opcode or label
  std::vector<std::string> parts;    //!< opcode split at dots
  std::vector<std::string> operands; //!< with their braces and brackets
  declaration declared;
  //! @brief True if one of the opcode's modifiers is `part`.
  bool has(std::string_view part) const;
  //! @brief The statement as in the text, blanks normalised (for reports).
  std::string text() const;
};

//! @brief A kernel (.entry) or device function (.func).
struct function_text {
  std::string name;
  bool entry = false;
  std::uint32_t line = 0;
  std::vector<declaration> returns;
  std::vector<declaration> parameters;
  std::string directives; //!< text between parameters and body (.maxntid ...)
  std::vector<statement> body;
};

//! @brief A parsed module.
struct module_text {
  std::vector<declaration> variables;
  std::vector<function_text> functions;
  std::vector<std::string> files; //!< by number of .file, [0] unused
};

//! @throws ptx::unsupported with the line, if the text is not PTX
module_text parse(std::string_view text);

//! @brief Splits at `separator` outside of (), [] and {}; pieces are trimmed.
std::vector<std::string> split(std::string_view text, char separator);

//! @brief Size in bytes of a fundamental type such as "b32"; 0 if unknown.
std::size_t type_bytes(std::string_view type);

//! @brief Without blanks at both ends.
std::string trimmed(std::string_view text);

} // namespace ptx
