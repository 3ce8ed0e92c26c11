// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "parse.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "launch.hpp"

namespace ptx {

namespace {

bool blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  std::string word;
  for (char const c : text) {
    if (!blank(c)) {
      word += c;
    } else if (!word.empty()) {
      out.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) {
    out.push_back(std::move(word));
  }
  return out;
}

std::string without_comments(std::string_view in) {
  std::string out(in);
  for (std::size_t i = 0; i + 1 < out.size(); ++i) {
    if (out[i] == '"') {
      i = std::min(out.find('"', i + 1), out.size() - 1);
    } else if (out[i] == '/' && out[i + 1] == '/') {
      for (; i < out.size() && out[i] != '\n'; ++i) {
        out[i] = ' ';
      }
    } else if (out[i] == '/' && out[i + 1] == '*') {
      auto const end = std::min(out.find("*/", i + 2), out.size() - 2) + 2;
      for (; i < end; ++i) {
        out[i] = out[i] == '\n' ? '\n' : ' ';
      }
    }
  }
  return out;
}

// ".reg.b32 x" becomes " .reg .b32 x".
std::string with_blanks(std::string const& declaration) {
  std::string out;
  for (char const c : declaration) {
    out += c == '.' ? " ." : std::string(1, c);
  }
  return out;
}

std::size_t number_after(std::string const& text, std::size_t at) {
  return std::strtoull(text.c_str() + at, nullptr, 0);
}

class parser {
public:
  explicit parser(std::string_view text) : text_(without_comments(text)) {}

  module_text run() {
    while (skip_blanks(), at_ < text_.size()) {
      top_level();
    }
    return std::move(out_);
  }

private:
  std::string text_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  std::uint32_t source_file_ = 0;
  std::uint32_t source_line_ = 0;
  module_text out_;

  [[noreturn]] void fail(std::string const& what) const {
    throw unsupported("PTX line " + std::to_string(line_) + ": " + what);
  }
  char take() {
    char const c = text_[at_++];
    line_ += c == '\n' ? 1U : 0U;
    return c;
  }
  void skip_blanks() {
    while (at_ < text_.size() && blank(text_[at_])) {
      take();
    }
  }
  bool starts(std::string_view word) const { return text_.compare(at_, word.size(), word) == 0; }
  std::string rest_of_line() {
    std::string out;
    while (at_ < text_.size() && text_[at_] != '\n') {
      out += take();
    }
    return out;
  }
  //! Text up to one of `stops` outside of all brackets; the stop is left unread.
  std::string until(std::string_view stops) {
    std::string out;
    int depth = 0;
    while (at_ < text_.size()) {
      char const c = text_[at_];
      if (depth == 0 && stops.find(c) != std::string_view::npos) {
        return out;
      }
      depth += c == '(' || c == '{' || c == '[' ? 1 : 0;
      depth -= c == ')' || c == '}' || c == ']' ? 1 : 0;
      out += take();
    }
    fail("the text ends within '" + trimmed(out).substr(0, 60) + "'");
  }

  void top_level() {
    if (starts(".version") || starts(".target") || starts(".address_size")) {
      rest_of_line();
    } else if (starts(".file")) {
      file(words(rest_of_line()));
    } else if (starts(".section")) {
      until("{");
      take();
      until("}");
      take();
    } else {
      item();
    }
  }

  void file(std::vector<std::string> const& w) {
    std::size_t const number = w.size() > 2 ? number_after(w[1], 0) : 0;
    if (number >= out_.files.size()) {
      out_.files.resize(number + 1);
    }
    std::string name = w.size() > 2 ? w[2] : "";
    std::erase_if(name, [](char c) { return c == '"' || c == ','; });
    out_.files[number] = name.substr(name.rfind('/') + 1);
  }

  void item() {
    auto const line = line_;
    std::string const head = until(";{=(");
    if (head.find(".entry") != std::string::npos || head.find(".func") != std::string::npos) {
      function(head, line);
      return;
    }
    std::string const rest = until(";");
    take();
    auto const kind = words(head);
    if (!kind.empty() && (kind[0] == ".pragma" || kind[0] == ".alias")) {
      return;
    }
    out_.variables.push_back(declare(head + rest));
  }

  std::vector<declaration> parenthesised() {
    take();
    std::string const inside = until(")");
    take();
    std::vector<declaration> out;
    for (auto const& one : split(inside, ',')) {
      out.push_back(declare(one));
    }
    return out;
  }

  void function(std::string const& head, std::uint32_t line) {
    function_text f;
    f.line = line;
    f.entry = head.find(".entry") != std::string::npos;
    auto const w = words(head);
    if (!f.entry && w.back() == ".func") {
      f.returns = parenthesised();
      f.name = trimmed(until("(;{"));
    } else {
      f.name = w.back();
    }
    if (text_[at_] == '(') {
      f.parameters = parenthesised();
    }
    f.directives = until("{;");
    if (take() == ';') {
      return;
    }
    body(f);
    out_.functions.push_back(std::move(f));
  }

  void body(function_text& f) {
    source_file_ = source_line_ = 0;
    for (int depth = 1; depth > 0;) {
      skip_blanks();
      if (at_ >= text_.size()) {
        fail("the body of " + f.name + " does not end");
      }
      if (text_[at_] == '{' || text_[at_] == '}') {
        depth += text_[at_] == '{' ? 1 : -1;
        add(f, take() == '{' ? statement_kind::open : statement_kind::close);
      } else if (starts(".loc ") || starts(".loc\t")) {
        auto const w = words(rest_of_line());
        source_file_ = static_cast<std::uint32_t>(number_after(w.at(1), 0));
        source_line_ = static_cast<std::uint32_t>(number_after(w.at(2), 0));
      } else {
        one_statement(f);
      }
    }
    f.body.pop_back();
  }

  statement& add(function_text& f, statement_kind kind) {
    statement s;
    s.kind = kind;
    s.line = line_;
    s.source_file = source_file_;
    s.source_line = source_line_;
    return f.body.emplace_back(std::move(s));
  }

  bool at_label(std::size_t& end) const {
    end = at_;
    while (end < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[end])) != 0 ||
                                  text_[end] == '_' || text_[end] == '$' || text_[end] == '%')) {
      ++end;
    }
    auto colon = end;
    while (colon < text_.size() && (text_[colon] == ' ' || text_[colon] == '\t')) {
      ++colon;
    }
    return end > at_ && colon + 1 < text_.size() && text_[colon] == ':' && text_[colon + 1] != ':';
  }

  void one_statement(function_text& f) {
    if (std::size_t end = 0; at_label(end)) {
      add(f, statement_kind::label).name = text_.substr(at_, end - at_);
      at_ = text_.find(':', end) + 1;
      return;
    }
    auto const line = line_;
    std::string const all = trimmed(until(";"));
    take();
    if (all.empty() || all.starts_with(".pragma")) {
      return;
    }
    if (all.front() == '.') {
      for (auto& d : declare_list(all)) {
        auto& s = add(f, statement_kind::declare);
        s.line = line;
        s.declared = std::move(d);
      }
      return;
    }
    auto& s = add(f, statement_kind::instruction);
    s.line = line;
    instruction(s, all);
  }

  static void instruction(statement& s, std::string const& all) {
    std::string rest = all;
    if (rest.front() == '@') {
      auto const end = rest.find_first_of(" \t\n");
      s.guard = rest.substr(1, end - 1);
      s.guard_negated = s.guard.front() == '!';
      s.guard.erase(0, s.guard_negated ? 1 : 0);
      rest = trimmed(rest.substr(end));
    }
    auto const end = std::min(rest.find_first_of(" \t\n"), rest.size());
    s.name = rest.substr(0, end);
    s.parts = split(s.name, '.');
    s.operands = split(rest.substr(end), ',');
  }

  std::vector<declaration> declare_list(std::string const& all) {
    auto const pieces = split(all, ',');
    std::vector<declaration> out{declare(pieces[0])};
    for (std::size_t i = 1; i < pieces.size(); ++i) {
      declaration more = out.front();
      named(more, pieces[i]);
      out.push_back(std::move(more));
    }
    return out;
  }

  declaration declare(std::string const& all) {
    declaration d;
    auto const equals = all.find('=');
    auto const w = words(with_blanks(all.substr(0, equals)));
    std::string name;
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (w[i] == ".align") {
        d.alignment = number_after(w.at(++i), 0);
      } else if (w[i] == ".extern") {
        d.external = true;
      } else if (w[i] == ".param" || w[i] == ".shared" || w[i] == ".local" || w[i] == ".global" ||
                 w[i] == ".const" || w[i] == ".reg") {
        d.space = d.space.empty() ? w[i].substr(1) : d.space;
      } else if (w[i].front() != '.') {
        name += w[i];
      } else if (auto const bytes = type_bytes(w[i].substr(1)); bytes != 0) {
        d.type = w[i].substr(1);
        d.element_bytes = bytes;
      }
    }
    if (d.space.empty() || d.type.empty()) {
      fail("a declaration that is not known: " + trimmed(all).substr(0, 80));
    }
    d.alignment = std::max(d.alignment, d.space == "reg" ? 1 : d.element_bytes);
    if (equals != std::string::npos) {
      std::string value = trimmed(all.substr(equals + 1));
      if (value.front() == '{') {
        value = value.substr(1, value.size() - 2);
      }
      d.initial = split(value, ',');
    }
    named(d, name);
    return d;
  }

  static void named(declaration& d, std::string const& name) {
    d.count = 0;
    d.bytes = d.element_bytes;
    if (auto const less = name.find('<'); less != std::string::npos) {
      d.count = number_after(name, less + 1);
    }
    for (auto at = name.find('['); at != std::string::npos; at = name.find('[', at + 1)) {
      d.bytes *= number_after(name, at + 1);
    }
    d.name = name.substr(0, name.find_first_of("<["));
  }
};

} // namespace

module_text parse(std::string_view text) {
  return parser(text).run();
}

std::string trimmed(std::string_view text) {
  auto const first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) {
    return {};
  }
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char const c = text[i];
    depth += c == '(' || c == '{' || c == '[' ? 1 : 0;
    depth -= c == ')' || c == '}' || c == ']' ? 1 : 0;
    if (c == separator && depth == 0) {
      out.push_back(trimmed(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  if (auto last = trimmed(text.substr(begin)); !last.empty()) {
    out.push_back(std::move(last));
  }
  return out;
}

std::size_t type_bytes(std::string_view type) {
  if (type == "pred") {
    return 1;
  }
  if (type == "f16x2" || type == "bf16x2" || type == "tf32") {
    return 4;
  }
  if (type == "bf16") {
    return 2;
  }
  if (type.size() < 2 || std::string_view("busf").find(type[0]) == std::string_view::npos) {
    return 0;
  }
  auto const bits = type.substr(1);
  return bits == "8"     ? 1
         : bits == "16"  ? 2
         : bits == "32"  ? 4
         : bits == "64"  ? 8
         : bits == "128" ? 16
                         : 0;
}

bool statement::has(std::string_view part) const {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

std::string statement::text() const {
  std::string out = guard.empty() ? "" : "@" + std::string(guard_negated ? "!" : "") + guard + " ";
  out += name;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    out += (i == 0 ? " " : ", ") + operands[i];
  }
  return out.size() > 120 ? out.substr(0, 117) + "..." : out;
}

} // namespace ptx
