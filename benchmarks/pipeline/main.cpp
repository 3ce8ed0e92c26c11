// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! @file
//! @brief How well the stream runner keeps to the plan, and what it costs the host: several
//! devices of a plan on one GPU, whose passes wait for a known time instead of computing.

#include <pipe/plan/lower.hpp>
#include <pipe/plan/policy.hpp>
#include <pipe/plan/sizes.hpp>
#include <pipe/schedule/one_f_one_b.hpp>
#include <pipe/schedule/seq1f1b.hpp>
#include <pipe/schedule/v_shape.hpp>
#include <pipe/schedule/zero_bubble.hpp>
#include <pipe/timetable/make_timetable.hpp>
#include <pipe/timetable/metrics.hpp>
#include <pipe/timetable/simulate.hpp>
#include <pipe/view/append.hpp>
#include <pipe/view/json.hpp>
#include <pipe/view/svg.hpp>
#include <pipe/view/trace.hpp>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tests/gpu/machine.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "figures.hpp"
#include "spin.hpp"

namespace {

namespace pp = pipelining;

constexpr char const* usage =
  "usage: pipeline [option...]\n"
  "  --devices LIST        devices of the plans, default 4,8\n"
  "  --microbatches N      of each plan, default 4 for each device\n"
  "  --pass MICROSECONDS   of a forward pass and of each half of a backward, default 200\n"
  "  --message BYTES       default 1048576\n"
  "  --repeats N           iterations that are counted, default 21\n"
  "  --connections N       CUDA_DEVICE_MAX_CONNECTIONS, default 32\n"
  "  --quick               7 repeats\n"
  "  --json FILE           figures, default the standard output\n"
  "  --pictures FOLDER     planned and measured passes as .svg and .trace.json\n"
  "Ends with 77 where there is no GPU.\n";

struct settings {
  std::vector<int> devices{4, 8};
  int microbatches = 0;
  double pass = 200;
  std::int64_t message = 1 << 20;
  int repeats = 21;
  int connections = 32;
  std::string json{};
  std::string pictures{};
};

double number_of(std::string_view option, std::string const& text, double least) {
  char* end = nullptr;
  double const value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(value >= least))
    throw std::invalid_argument(std::string(option) + " wants a number of at least " +
                                std::to_string(static_cast<int>(least)) + ", not '" + text + "'");
  return value;
}

settings read_settings(std::span<char*> words) {
  settings chosen;
  for (std::size_t i = 1; i < words.size(); ++i) {
    std::string_view const option = words[i];
    if (option == "--quick") {
      chosen.repeats = 7;
      continue;
    }
    if (i + 1 == words.size())
      throw std::invalid_argument("'" + std::string(option) +
                                  "' is no option, or lacks its value\n" + usage);
    std::string const value = words[++i];
    if (option == "--devices") {
      chosen.devices.clear();
      std::istringstream list(value);
      for (std::string each; std::getline(list, each, ',');)
        chosen.devices.push_back(static_cast<int>(number_of(option, each, 1)));
    } else if (option == "--microbatches") {
      chosen.microbatches = static_cast<int>(number_of(option, value, 1));
    } else if (option == "--pass") {
      chosen.pass = number_of(option, value, 1);
    } else if (option == "--message") {
      chosen.message = static_cast<std::int64_t>(number_of(option, value, 0));
    } else if (option == "--repeats") {
      chosen.repeats = static_cast<int>(number_of(option, value, 1));
    } else if (option == "--connections") {
      chosen.connections = static_cast<int>(number_of(option, value, 1));
    } else if (option == "--json") {
      chosen.json = value;
    } else if (option == "--pictures") {
      chosen.pictures = value;
    } else {
      throw std::invalid_argument("'" + std::string(option) + "' is no option\n" + usage);
    }
  }
  return chosen;
}

void write_file(std::string const& path, std::string const& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush())
    throw std::runtime_error("cannot write " + path);
}

//! One line of figures, as an object of JSON.
struct line {
  std::string text{};

  template <class Value>
  void add(char const* name, Value const& value) {
    text += text.empty() ? "{" : ", ";
    text += "\"" + std::string(name) + "\": ";
    if constexpr (std::is_convertible_v<Value, std::string>)
      pp::append_quoted(text, std::string(value));
    else
      pp::append_general(text, static_cast<double>(value), 6);
  }
};

struct benchmark {
  settings const& chosen;
  std::vector<std::string> lines{};

  template <class Schedule>
  void measure(std::string const& name, int devices) {
    int const microbatches = chosen.microbatches > 0 ? chosen.microbatches : 4 * devices;
    pp::uniform_cost const cost{
      .forward = chosen.pass, .backward_input = chosen.pass, .backward_weight = chosen.pass};
    pp::dynamic_timetable const plan = pp::make_timetable<Schedule>({devices, microbatches}, cost);
    pp::plan const work =
      pp::lower<pp::communicators::per_pair>(plan, pp::uniform_sizes{.message = chosen.message});
    for (bool const graph : {false, true})
      measure(name, plan, work, cost, graph);
  }

private:
  void measure(std::string const& name,
               pp::dynamic_timetable const& plan,
               pp::plan const& work,
               pp::uniform_cost const& cost,
               bool graph) {
    char const* const mode = graph ? "graph" : "eager";
    spin_times const times =
      run_spinning({.work = work, .graph = graph, .cost = cost, .repeats = chosen.repeats});
    auto const ran = figures::typical(plan, times);
    auto const delays = figures::delays_of(ran);
    auto const passes = static_cast<double>(plan.passes.size());
    line figures_of_case;
    figures_of_case.add("schedule", name);
    figures_of_case.add("devices", plan.over.extents.devices);
    figures_of_case.add("microbatches", plan.over.extents.microbatches);
    figures_of_case.add("mode", mode);
    figures_of_case.add("passes", passes);
    figures_of_case.add("planned_span_us", pp::span_of(plan));
    figures_of_case.add("measured_span_us", pp::span_of(ran));
    figures_of_case.add("span_ratio", pp::span_of(ran) / pp::span_of(plan));
    figures_of_case.add("span_with_messages_us", span_with_messages(plan, cost, delays.message));
    figures_of_case.add("planned_bubble", pp::bubble_rate(plan));
    figures_of_case.add("delay_own_us", delays.own);
    figures_of_case.add("delay_message_us", delays.message);
    figures_of_case.add("host_us_per_pass", figures::median(times.host) / passes);
    lines.push_back(figures_of_case.text + "}");
    if (!chosen.pictures.empty())
      draw(name, mode, plan, ran, cost);
  }

  //! The planned span if every message took as long as they did.
  static double
  span_with_messages(pp::dynamic_timetable const& plan, pp::uniform_cost cost, double message) {
    cost.communication = message;
    return pp::span_of(pp::simulate({plan.over, plan.passes, plan.offsets}, cost));
  }

  void draw(std::string const& name,
            std::string const& mode,
            pp::dynamic_timetable const& plan,
            pp::dynamic_timetable const& ran,
            pp::uniform_cost const& cost) const {
    std::string file = name;
    for (char& each : file)
      each = static_cast<char>(std::tolower(static_cast<unsigned char>(each)));
    file =
      chosen.pictures + "/" + file + "-" + std::to_string(plan.over.extents.devices) + "-" + mode;
    std::string const measured = name + ", measured, " + mode;
    std::string text;
    pp::write_svg(text, ran, {.schedule = measured, .cost = cost});
    write_file(file + ".svg", text);
    text.clear();
    pp::write_svg(text, plan, {.schedule = name + ", planned", .cost = cost});
    write_file(file.substr(0, file.rfind('-')) + "-planned.svg", text);
    std::vector<pp::measured_pass> passes;
    for (int device = 0; device < ran.over.extents.devices; ++device)
      for (int i = ran.offsets[static_cast<std::size_t>(device)];
           i < ran.offsets[static_cast<std::size_t>(device) + 1];
           ++i) {
        auto const at = static_cast<std::size_t>(i);
        passes.push_back({device, ran.passes[at], ran.starts[at], ran.ends[at]});
      }
    text.clear();
    pp::write_trace(text,
                    plan,
                    {.schedule = name, .cost = cost},
                    passes,
                    {.planned_unit = 1, .measured_unit = 1});
    write_file(file + ".trace.json", text);
  }
};

std::string run(settings const& chosen) {
  gpu_facts const gpu = read_gpu_facts();
  double const floor = figures::median(time_floor(chosen.repeats));
  benchmark all{chosen};
  for (int const devices : chosen.devices) {
    all.measure<pp::OneFOneB>("1F1B", devices);
    all.measure<pp::Seq1F1B<4>>("Seq1F1B", devices);
    all.measure<pp::VHalf>("V-Half", devices);
    all.measure<pp::ZeroBubbleH1>("ZB-H1", devices);
  }
  line head;
  head.add("program", "pipeline");
  head.add("gpu", gpu.name);
  head.add("processors", gpu.processors);
  head.add("tick_ns", gpu.tick);
  head.add("driver", gpu.driver);
  head.add("runtime", gpu.runtime);
  head.add("pass_us", chosen.pass);
  head.add("message_bytes", chosen.message);
  head.add("repeats", chosen.repeats);
  head.add("connections", chosen.connections);
  head.add("floor_us", floor);
  std::string text = head.text + ",\n\"cases\": [";
  for (std::size_t i = 0; i < all.lines.size(); ++i)
    text += (i == 0 ? "\n" : ",\n") + all.lines[i];
  return text + "\n]}\n";
}

} // namespace

int main(int count, char** words) {
  try {
    std::span<char*> const all(words, static_cast<std::size_t>(count));
    if (all.size() > 1 && std::string_view(all[1]) == "--help") {
      std::fputs(usage, stdout);
      return 0;
    }
    settings const chosen = read_settings(all);
    // Every stream of the plan wants a queue of its own. CUDA reads this once, before its first
    // call.
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(chosen.connections).c_str(), 1);
    if (std::string const why = machine::obstacle(); !why.empty()) {
      std::printf("skipped: %s\n", why.c_str());
      return 77;
    }
    machine::begin();
    std::string const text = run(chosen);
    if (std::string const broken = machine::findings(); !broken.empty())
      throw std::runtime_error(broken);
    if (chosen.json.empty())
      std::fputs(text.c_str(), stdout);
    else
      write_file(chosen.json, text);
  } catch (std::exception const& failure) {
    std::fprintf(stderr, "pipeline: %s\n", failure.what());
    return 1;
  }
  return 0;
}
