// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief The sentences of findings.
#include "machine.hpp"

namespace ptx {

namespace {

std::string triple(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}

} // namespace

std::string result::text() const {
  std::string out;
  for (auto const& r : reports) {
    out += r.text + "\n";
  }
  if (dropped_reports != 0) {
    out += "and " + std::to_string(dropped_reports) + " more\n";
  }
  return out;
}

std::string place_of(warp const& w, instruction const& i, int lane) {
  block const& b = *w.home;
  run_state const& run = *b.launch;
  statement const& s = run.entry->text->body.at(i.statement);
  unsigned const t = w.index * 32 + static_cast<unsigned>(lane);
  auto const& size = run.block_size;
  std::string out = "kernel " + run.entry->text->name + ", block " +
                    triple(b.index.x, b.index.y, b.index.z) + ", thread " +
                    triple(t % size.x, t / size.x % size.y, t / size.x / size.y) + ", PTX line " +
                    std::to_string(s.line);
  auto const& files = run.code->text.files;
  if (s.source_line != 0 && s.source_file < files.size()) {
    out += " (" + files[s.source_file] + ":" + std::to_string(s.source_line) + ")";
  }
  return out + " `" + s.text() + "`: ";
}

void report_fault(warp& w, instruction const& i, int lane, fault kind, std::string const& what) {
  run_state& run = *w.home->launch;
  if (run.how.stops) {
    fail(w, i, lane, kind, what);
  }
  if (!run.seen_reports.insert({kind, i.statement}).second ||
      run.out.reports.size() >= run.how.report_limit) {
    ++run.out.dropped_reports;
    return;
  }
  run.out.reports.push_back({kind, place_of(w, i, lane) + what});
}

void fail(warp const& w, instruction const& i, int lane, fault kind, std::string const& what) {
  throw stop{kind, place_of(w, i, lane) + what};
}

} // namespace ptx
