// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The address of the store of a launched run. Header for pipelining::store_address_of.

#include <pipe/cluster/launch_environment.hpp>
#include <pipe/cluster/store_protocol.hpp>

#include <stdexcept>
#include <string>
#include <string_view>

namespace pipelining::inline v0_3 {

//! @brief The address where ranks that a launcher has started meet, if they have no MPI.
//!
//! The job's name is the launcher's, so that two runs on one port refuse each other where the
//! launcher tells them apart; `PIPELINING_SECRET` in the environment of all ranks keeps strangers
//! out, `PIPELINING_LISTEN` says on which address of its machine rank 0 listens.
//!
//! @param default_port where the launcher names none.
//! @throws std::invalid_argument where the ranks are on several machines, and neither the launcher
//! nor MASTER_ADDR says which of them is rank 0's: to wait would be in vain.
[[nodiscard]] inline store_address store_address_of(launch_environment const& here,
                                                    int default_port = 29511) {
  std::string_view const launcher = here.launcher;
  bool const says_where = !here.address.empty();
  if (!says_where && here.local_size > 0 && here.local_size < here.size)
    throw std::invalid_argument(
      "launch: the " + std::to_string(here.size) + " ranks are on several machines, and " +
      here.launcher +
      " does not say which of them is rank 0's; set MASTER_ADDR for all of them, as in: " +
      (launcher == "MPICH"      ? "mpirun -genv MASTER_ADDR node0"
       : launcher == "MVAPICH2" ? "mpirun_rsh MASTER_ADDR=node0"
       : launcher == "Flux"     ? "flux run --env=MASTER_ADDR=node0"
       : launcher == "PALS"     ? "mpiexec --env MASTER_ADDR=node0"
                                : "mpirun -x MASTER_ADDR=node0"));
  store_address address;
  if (says_where)
    address.host = here.address;
  address.port = here.port == 0 ? default_port : here.port;
  if (launcher == "torchrun" && here.port != 0)
    address.port += address.port < 65535 ? 1 : -1; // torchrun itself serves on its port
  if (!here.job.empty())
    address.job = here.job;
  address.secret = detail::environment_text("PIPELINING_SECRET");
  address.listen = detail::environment_text("PIPELINING_LISTEN");
  address.ranks = here.size;
  return address;
}

} // namespace pipelining::inline v0_3
