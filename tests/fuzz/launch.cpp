// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/launch_environment.hpp>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "file_readers.hpp"
#include "reader.hpp"

namespace pp = pipelining;

namespace fuzz {
namespace {

//! Variables of the environment, for as long as it lives.
class variables {
public:
  explicit variables(std::string_view lines) {
    while (!lines.empty()) {
      std::string const line(lines.substr(0, std::min(lines.find('\n'), lines.find('\0'))));
      lines.remove_prefix(std::min(line.size() + 1, lines.size()));
      auto const name = line.substr(0, line.find('='));
      // No others: programs of the toolchain read the environment, too.
      bool const launchers =
        std::any_of(std::begin(prefixes), std::end(prefixes), [&](std::string_view prefix) {
          return name.starts_with(prefix);
        });
      if (!launchers || name.size() == line.size())
        continue;
      ::setenv(name.c_str(), line.substr(name.size() + 1).c_str(), 1);
      names_.push_back(name);
    }
  }
  variables(variables const&) = delete;
  variables& operator=(variables const&) = delete;
  ~variables() {
    for (std::string const& name : names_)
      ::unsetenv(name.c_str());
  }

private:
  static constexpr std::string_view prefixes[] = {"RANK",
                                                  "WORLD_",
                                                  "LOCAL_",
                                                  "MASTER_",
                                                  "OMPI_",
                                                  "MV2_",
                                                  "FLUX_",
                                                  "PALS_",
                                                  "PMI",
                                                  "MPI_",
                                                  "SLURM_",
                                                  "TORCHELASTIC_",
                                                  "PIPELINING_"};

  std::vector<std::string> names_;
};

} // namespace

void read_launch_variables(std::string_view text) {
  variables const set(text);
  (void)takes<std::invalid_argument>([] {
    pp::launch_environment const here = pp::read_launch_environment();
    check(here.rank >= 0 && here.rank < here.size, "a rank that its run has not");
    check(here.local_rank >= 0 && here.local_size >= 0, "numbers of a machine");
    check(here.size == 1 || here.launcher != std::string_view("none"), "ranks of no launcher");
    pp::store_address const address = pp::store_address_of(here);
    check(address.port >= 1 && address.port <= 65535, "a port that is none");
    check(address.ranks == here.size, "ranks of a store");
  });
}

} // namespace fuzz
