// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/timetable/make.hpp"
#include "tools/timetable/verbs.hpp"

namespace examples {
namespace {

std::string joined(word_list const& words) {
  std::string text;
  for (std::string_view const each : words)
    text.append(text.empty() ? "" : " ").append(each);
  return text;
}

//! The words of all verbs that have one.
std::string joined_verbs() {
  word_list words;
  for (verb const& each : all_verbs().subspan(1))
    words.push_back(each.word());
  return joined(words);
}

//! The words after a verb, by the word before.
std::string case_of(verb const& one) {
  std::string text;
  word_list words = one.names ? one.names() : word_list{};
  word_list open; // options with any value
  pp::append(text, "    ", one.word().empty() ? "*" : one.word(), ")\n      case \"$2\" in\n");
  for (offered_option const& each : one.options(one.which)) {
    words.push_back(name_in(each.spelling));
    if (!each.among.empty())
      pp::append(text, "        ", words.back(), ") offered=\"", joined(each.among), "\" ;;\n");
    else if (takes_value(each.spelling))
      open.push_back(words.back());
  }
  for (std::string_view const& each : open)
    pp::append(text, &each == open.data() ? "        " : " | ", each);
  text += open.empty() ? "" : ") ;;\n";
  words.push_back("--help");
  pp::append(text, "        *) offered=\"", joined(words), "\" ;;\n      esac ;;\n");
  return text;
}

//! A function of bash and zsh: sets `offered` from the verb and the word before.
std::string offering_function() {
  std::string text = "_timetable_offered() {\n  case \"$1\" in\n";
  pp::append(text, "    '') offered=\"", joined(names_in(named_schedules())), " ", joined_verbs());
  pp::append(text, " help --list --help --version\" ;;\n    help) offered=\"", joined_verbs());
  text += "\" ;;\n";
  for (verb const& each : all_verbs().subspan(1))
    text += case_of(each);
  text += case_of(all_verbs().front()); // which takes all other words
  return text + "  esac\n}\n";
}

constexpr std::string_view bash_function = R"sh(_timetable() {
  local word=${COMP_WORDS[COMP_CWORD]} verb='' before='' offered=''
  ((COMP_CWORD > 1)) && verb=${COMP_WORDS[1]} before=${COMP_WORDS[COMP_CWORD - 1]}
  # bash cuts --name=value into three words.
  [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]}
  [[ $word == = ]] && word=''
  _timetable_offered "$verb" "$before"
  COMPREPLY=($(compgen -W "$offered" -- "$word"))
}
complete -o default -F _timetable timetable
)sh";

constexpr std::string_view zsh_function = R"sh(_timetable() {
  local verb='' before='' offered=''
  ((CURRENT > 2)) && verb=$words[2] before=$words[CURRENT-1]
  _timetable_offered "$verb" "$before"
  if [[ -n $offered && ! ($verb == csv && $words[CURRENT] != -*) ]]; then
    compadd -- ${=offered}
  else
    _files
  fi
}
compdef _timetable timetable
)sh";

//! A text in single quotes, as fish reads it.
std::string in_quotes(std::string_view text) {
  std::string result = "'";
  for (char const letter : text) {
    if (letter == '\'' || letter == '\\')
      result += '\\';
    result += letter;
  }
  return result + "'";
}

//! What a verb does in a few words: its first sentence.
std::string_view sentence(std::string_view text) {
  return text.substr(0, text.find_first_of(".:;"));
}

std::string fish_script() {
  std::string const verbs = joined_verbs();
  std::string text = "complete -c timetable -f\n";
  std::string const first = "complete -c timetable -n __fish_use_subcommand ";
  pp::append(text, first, "-a '", joined(names_in(named_schedules())), "'\n");
  pp::append(text, first, "-a help\n");
  for (std::string_view const each : {"list", "help", "version"})
    pp::append(text, first, "-l ", each, "\n");
  pp::append(
    text, "complete -c timetable -n '__fish_seen_subcommand_from help' -a '", verbs, "'\n");
  for (verb const& one : all_verbs()) {
    std::string const when =
      one.word().empty()
        ? "-n 'not __fish_use_subcommand; and not __fish_seen_subcommand_from help " + verbs + "' "
        : "-n '__fish_seen_subcommand_from " + std::string(one.word()) + "' ";
    if (!one.word().empty())
      pp::append(text, first, "-a ", one.word(), " -d ", in_quotes(sentence(one.does)), "\n");
    if (one.names)
      pp::append(text, "complete -c timetable ", when, "-a '", joined(one.names()), "'\n");
    for (offered_option const& each : one.options(one.which)) {
      pp::append(text, "complete -c timetable ", when, "-l ", name_in(each.spelling).substr(2));
      if (!each.among.empty())
        pp::append(text, " -x -a '", joined(each.among), "'");
      else if (takes_value(each.spelling))
        text += " -r -F";
      pp::append(text, " -d ", in_quotes(sentence(each.help)), "\n");
    }
  }
  return text + "complete -c timetable -n '__fish_seen_subcommand_from csv' -F\n";
}

} // namespace

word_list shells() {
  return {"bash", "zsh", "fish"};
}

void completion(std::span<char const* const> words) {
  std::string none; // it has no options
  std::vector<std::string_view> const names =
    read_options<std::string>({}, verbs::completion, none, words).names;
  if (names.size() != 1)
    throw usage_error("completion wants the name of a shell: bash, zsh or fish");
  std::string const known = one_of("completion", names[0], shells());
  std::string text = known == "zsh" ? "#compdef timetable\n" : "";
  pp::append(text, "# Completes words of timetable, for ", known);
  pp::append(text, "; written by `timetable completion ", known, "`.\n");
  if (known == "fish")
    text += fish_script();
  else
    pp::append(text, offering_function(), known == "zsh" ? zsh_function : bash_function);
  standard_output().append(text);
}

} // namespace examples
