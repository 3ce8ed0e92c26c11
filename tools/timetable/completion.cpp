// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "completion.hpp"

#include <pipe/view/append.hpp>

namespace pp = pipelining;

namespace examples {
namespace {

std::string joined(word_list const& words) {
  std::string text;
  for (std::string_view const each : words)
    text.append(text.empty() ? "" : " ").append(each);
  return text;
}

word_list verbs_of(std::span<verb_words const> all) {
  word_list words;
  for (verb_words const& each : all.subspan(1))
    words.push_back(each.verb);
  return words;
}

//! The words after a verb, by the word before.
std::string case_of(verb_words const& one) {
  std::string text;
  word_list words = one.verb.empty() ? word_list{} : one.names;
  word_list open; // options with any value
  pp::append(text, "    ", one.verb.empty() ? "*" : one.verb, ")\n      case \"$2\" in\n");
  for (offered_option const& each : one.options) {
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
std::string offering_function(std::span<verb_words const> all) {
  std::string text = "_timetable_offered() {\n  case \"$1\" in\n";
  std::string const verbs = joined(verbs_of(all));
  pp::append(text, "    '') offered=\"", joined(all.front().names), " ", verbs);
  pp::append(text, " help --list --help --version\" ;;\n    help) offered=\"", verbs, "\" ;;\n");
  for (verb_words const& each : all.subspan(1))
    text += case_of(each);
  text += case_of(all.front()); // which takes all other words
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

std::string fish_script(std::span<verb_words const> all) {
  std::string const verbs = joined(verbs_of(all));
  std::string text = "complete -c timetable -f\n";
  std::string const first = "complete -c timetable -n __fish_use_subcommand ";
  pp::append(text, first, "-a '", joined(all.front().names), "'\n");
  pp::append(text, first, "-a help\n");
  for (std::string_view const each : {"list", "help", "version"})
    pp::append(text, first, "-l ", each, "\n");
  pp::append(
    text, "complete -c timetable -n '__fish_seen_subcommand_from help' -a '", verbs, "'\n");
  for (verb_words const& one : all) {
    std::string const when =
      one.verb.empty()
        ? "-n 'not __fish_use_subcommand; and not __fish_seen_subcommand_from help " + verbs + "' "
        : "-n '__fish_seen_subcommand_from " + std::string(one.verb) + "' ";
    if (!one.verb.empty())
      pp::append(text, first, "-a ", one.verb, " -d ", in_quotes(sentence(one.does)), "\n");
    if (!one.verb.empty() && !one.names.empty())
      pp::append(text, "complete -c timetable ", when, "-a '", joined(one.names), "'\n");
    for (offered_option const& each : one.options) {
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

std::string completion_for(std::string_view shell, std::span<verb_words const> all) {
  std::string const known = one_of("completion", shell, shells());
  std::string const about = "# Completes words of timetable, for " + known +
                            "; written by `timetable completion " + known + "`.\n";
  if (known == "fish")
    return about + fish_script(all);
  return (known == "zsh" ? "#compdef timetable\n" : "") + about + offering_function(all) +
         std::string(known == "zsh" ? zsh_function : bash_function);
}

} // namespace examples
