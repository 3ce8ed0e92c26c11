// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Places of ranks when a run fails, and the rank that it began with. Header for
//! pipelining::rank_standing and pipelining::detail::trace_origin.

#include <pipe/cluster/store.hpp>
#include <pipe/run/clock.hpp>
#include <pipe/run/error.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! Degrees of certainty with which a rank reports a failure as its own.
enum class failure_cause : char {
  own = 'o',      //!< its stage, its GPU, its options: it began here
  library = 'l',  //!< a library that talks to other ranks: one of them may have died
  deadline = 'd', //!< a wait that took too long: it began with whoever was waited for
  told = 't',     //!< another rank has reported a failure
  ended = 'e'     //!< nothing: it has ended well, and waits for nobody
};

//! The rank that the reason of a failure names first, or nothing.
[[nodiscard]] inline int rank_named_in(std::string_view reason) {
  constexpr std::string_view word = "rank ";
  int rank = -1;
  if (std::size_t const found = reason.find(word); found != std::string_view::npos)
    (void)std::from_chars(reason.data() + found + word.size(), reason.data() + reason.size(), rank);
  return rank;
}

//! The place of a rank when it stopped, as it tells the others.
struct rank_standing {
  std::string text{};           //!< after the name of the rank: "has not ended item 3 of 12: ..."
  std::vector<int> waits_for{}; //!< the ranks that it waits for there; none: it is at work itself
  failure_cause cause = failure_cause::told; //!< whose failure it stopped for
};

//! Thrown to leave a program, and to end the run on this rank. Unless it was told, it tells others.
struct run_stop {
  std::string reason{};
  failure_cause cause = failure_cause::own;
};

//! The first failure of a run, once the store knows of one: of several at once, all ranks report
//! it. Nothing where no word of it has come in time.
template <class Clock, run_store Store>
[[nodiscard]] std::optional<std::string> first_failure(Store& line,
                                                       std::chrono::nanoseconds patience) {
  for (countdown<Clock> left(patience); !left.is_over();) {
    if (auto reason = line.failure())
      return reason;
    Clock::sleep_for(std::chrono::milliseconds(1));
  }
  return std::nullopt;
}

//! The origin of a failure, as far as ranks can tell.
struct failure_origin {
  //! How the rank was found.
  enum class kind {
    named,  //!< the rank that reported is where it began, or nothing else is known
    silent, //!< waited for, directly or by way of others, and gives no answer
    busy,   //!< waited for, and waits for nobody itself
    circle  //!< all that were asked wait for each other, as the two ends of one message do
  };
  int rank = -1;            //!< the rank with which it began; -1: unknown
  kind found = kind::named; //!< how that is known
  std::string text{};       //!< busy: where that rank stands; circle: a line for every rank of it
};

[[nodiscard]] inline std::string standing_key(std::string const& name, int rank) {
  return name + "/standing/" + std::to_string(rank);
}

// A letter for the cause, the ranks with a comma after each, a bar, the text.
[[nodiscard]] inline std::string write_standing(rank_standing const& where) {
  std::string line(1, static_cast<char>(where.cause));
  for (int const rank : where.waits_for)
    line += std::to_string(rank) + ',';
  return line + '|' + where.text;
}
[[nodiscard]] inline rank_standing read_standing(std::string_view line) {
  rank_standing where;
  std::size_t const bar = line.find('|', 1);
  if (bar == std::string_view::npos)
    return where;
  where.cause = static_cast<failure_cause>(line.front());
  where.text = std::string(line.substr(bar + 1));
  std::size_t comma = 0; // after the rank
  for (std::size_t at = 1; (comma = line.find(',', at)) < bar; at = comma + 1) {
    int rank = -1;
    (void)std::from_chars(line.data() + at, line.data() + comma, rank);
    where.waits_for.push_back(rank);
  }
  return where;
}

//! Leaves word for the other ranks of where this one stands.
//! @param name tells the runs of one store apart.
template <run_store Store>
void tell_standing(Store& line, std::string const& name, int rank, rank_standing const& where) {
  line.set(standing_key(name, rank), write_standing(where));
}

//! Calls a store from another thread than its own, where it can tell that it is free.
template <run_store Store, class Speak>
void speak_if_free(Store& line, Speak what) {
  if constexpr (requires { line.if_free(what); })
    (void)line.if_free(what);
}

//! For a watchdog, while a pass lasts: once the run has failed, others want to know where this rank
//! is. @param answered whether it has told them; set when it has. @param place what it is in.
template <run_store Store, class Place>
void answer_in_pass(
  Store& line, std::string const& name, int rank, bool& answered, Place const& place) {
  speak_if_free(line, [&] {
    if (!answered && line.failure())
      tell_standing(line, name, rank, {"is still in " + place(), {}, failure_cause::told});
    answered = line.failure().has_value();
  });
}

//! For a watchdog, when a pass has not returned. @return what it has told the other ranks.
template <run_store Store>
std::string tell_of_hang(Store& line, std::string const& name, int rank, std::string const& place) {
  std::string const where = "is not back from " + place;
  std::string const reason =
    "no progress before the deadline: rank " + std::to_string(rank) + ' ' + where;
  speak_if_free(line, [&] {
    tell_standing(line, name, rank, {where, {}, failure_cause::own});
    line.abort(reason);
  });
  return reason;
}

//! Follows who waits for whom, from the rank that has reported a failure to the one that
//! does not answer, or that waits for nobody. Equal on all ranks that get the same answers.
//! @param named the rank that has reported; it has told its standing before.
//! @param patience the longest that a rank may take to answer.
//! @complexity O(P) questions to the store.
template <run_store Store>
[[nodiscard]] failure_origin
trace_origin(Store& line, std::string const& name, int named, std::chrono::nanoseconds patience) {
  using kind = failure_origin::kind;
  failure_origin const unknown{named, kind::named, {}};
  auto const ask = [&](int rank) -> std::optional<rank_standing> {
    auto const answer = line.look_up(standing_key(name, rank), patience);
    return answer ? std::optional(read_standing(*answer)) : std::nullopt;
  };
  std::optional<rank_standing> const first = named < 0 ? std::nullopt : ask(named);
  if (!first || (first->cause != failure_cause::library && first->cause != failure_cause::deadline))
    return unknown;
  bool const late = first->cause == failure_cause::deadline;
  std::string lines;
  std::vector<int> seen{named};
  std::vector<int> next(first->waits_for.rbegin(), first->waits_for.rend());
  while (!next.empty()) {
    int const rank = next.back();
    next.pop_back();
    if (std::find(seen.begin(), seen.end(), rank) != seen.end())
      continue;
    seen.push_back(rank);
    std::optional<rank_standing> const at = ask(rank);
    if (!at)
      return {rank, kind::silent, {}};
    if (at->cause == failure_cause::ended)
      continue;
    if (late && at->waits_for.empty())
      return {rank, kind::busy, at->text};
    lines += "\n  rank " + std::to_string(rank) + ' ' + at->text;
    next.insert(next.end(), at->waits_for.rbegin(), at->waits_for.rend());
  }
  return late && !lines.empty() ? failure_origin{named, kind::circle, lines} : unknown;
}

} // namespace detail

//! @brief The line of a report that says where a failure began; empty where the report says it
//! already.
[[nodiscard]] inline std::string describe(detail::failure_origin const& origin) {
  using kind = detail::failure_origin::kind;
  std::string const who = "\n  rank " + std::to_string(origin.rank);
  switch (origin.found) {
  case kind::named: return {};
  case kind::silent:
    return who +
           " is where it began: it does not answer; its process is stopped or hung, or gone with "
           "its machine, or outside of its runner";
  case kind::busy: return who + " is where it began: it " + origin.text;
  case kind::circle: return origin.text;
  }
  return {};
}

namespace detail {

//! The standing of a rank before its first step, of which reports say nothing.
inline constexpr char const* not_begun = "has not begun";

//! The reason why a rank has stopped. Of another rank: all that it has reported.
struct stop_reason {
  run_stop stop{};
  bool thrown = false;           //!< by a stage or a library: the exception is to be nested
  std::vector<int> missing = {}; //!< ranks that a wait was for
};

//! Understands the exception in flight. @pre called from a handler.
//! @tparam Library errors of a library that talks to other ranks.
template <class... Library, run_store Store>
[[nodiscard]] stop_reason why_stopped(Store& line) {
  try {
    throw;
  } catch (run_stop const& stopped) {
    return {stopped};
  } catch (std::exception const& thrown) {
    // A wait in the store ends with the reason of another rank, and what comes after that reason is
    // its consequence.
    if (auto const reason = line.failure())
      return {{*reason, failure_cause::told}};
    if (auto const* const late = dynamic_cast<deadline_error const*>(&thrown))
      return {{thrown.what(), failure_cause::deadline}, true, late->missing()};
    bool const foreign = ((dynamic_cast<Library const*>(&thrown) != nullptr) || ...);
    return {{thrown.what(), foreign ? failure_cause::library : failure_cause::own}, true};
  } catch (...) {
    return {{"an exception of a type that is no std::exception"}, true};
  }
}

//! One rank's part in a report: it tells the others why it stopped and where it stood, hears where
//! they stood, and says with which rank it began.
template <class Clock, run_store Store>
class failure_report {
public:
  //! @param name tells the runs of one store apart. @param patience the longest that others may
  //! take to answer.
  failure_report(Store& line, std::string const& name, int rank, std::chrono::nanoseconds patience)
      : line_(line), name_(name), rank_(rank), patience_(patience) {}

  //! Tells the others. To be called once, before anything is ended that they may wait for.
  //! @param reason of this rank; of another one, where `where` says that it was told.
  void tell(std::string const& reason, rank_standing const& where) {
    if (where.text != not_begun)
      own_line_ = "\n  rank " + std::to_string(rank_) + ' ' + where.text;
    tell_standing(line_, name_, rank_, where);
    reason_ = reason;
    if (where.cause == failure_cause::told)
      return;
    line_.abort(reason);
    // Of several failures at once, all ranks report the same one. The echo of this one's would come
    // back from any store that is alive.
    auto const first = first_failure<Clock>(line_, patience_);
    reason_ = first.value_or(reason);
    silent_ = !first;
    own_ = reason_ == reason;
  }

  //! The whole report, once the others have had the time to answer.
  //! @param text before it. @param more after it.
  [[nodiscard]] run_error made(std::string text, std::string const& more = {}) const {
    int began = rank_named_in(reason_);
    text += reason_;
    if (silent_) {
      text += "\n  rank 0 is where it began: its process, which serves the store, does not answer";
      began = 0;
    } else if (!reason_.starts_with(store_saw)) {
      failure_origin const origin = trace_origin(line_, name_, began, patience_);
      text += describe(origin);
      began = origin.rank;
    }
    if (!own_ && text.find("\n  rank " + std::to_string(rank_) + ' ') == std::string::npos)
      text += own_line_;
    return {text + more, began < 0 ? rank_ : began};
  }

private:
  Store& line_;
  std::string const& name_;
  int rank_;
  std::chrono::nanoseconds patience_;
  std::string reason_{};
  std::string own_line_{};
  bool own_ = false;    // the reason is this rank's
  bool silent_ = false; // the store does not answer
};

} // namespace detail

} // namespace pipelining::inline v0_3
