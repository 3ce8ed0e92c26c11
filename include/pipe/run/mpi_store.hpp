// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The store of a run whose processes have MPI. Header for pipelining::mpi_store.

#include <pipe/run/launch_environment.hpp>
#include <pipe/run/store.hpp>

#include <mpi.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <unistd.h>

namespace pipelining::inline v0_1 {

//! @brief Rank 0's server, and this process's line to it.
//!
//! With both MASTER_ADDR and MASTER_PORT in the environment, rank 0 serves there. Else rank 0 takes
//! a free port and tells the others by MPI; MASTER_ADDR alone replaces the name of its host.
//!
//! A process that dies before this is made is a matter of MPI and its launcher; from then on it is
//! a failure of the run. Destroyed on rank 0, it waits up to two seconds for the other ranks to
//! end, so that all learn why a run has failed: report first.
class mpi_store {
public:
  //! @brief Collective over `world`.
  //! @throws std::runtime_error when rank 0 cannot be reached before the deadline.
  explicit mpi_store(MPI_Comm world = MPI_COMM_WORLD,
                     std::chrono::nanoseconds deadline = std::chrono::seconds(60)) {
    int rank = 0;
    (void)MPI_Comm_rank(world, &rank);
    std::string const host = detail::environment_text("MASTER_ADDR");
    int const port = detail::environment_number("MASTER_PORT").value_or(0);
    store_address address;
    address.port = host.empty() ? 0 : port;
    if (rank == 0) {
      server_ = std::make_unique<store_server>(address);
      address.port = server_->port();
    }
    if (host.empty() || port == 0)
      address = told_by_rank_0(world, host, address.port);
    else
      address.host = host;
    line_ = std::make_unique<store>(address, rank, deadline);
    // From here on the server knows all ranks, so that none can fail without the others learning
    // it.
    std::string const own_key = "mpi_store/" + std::to_string(rank);
    line_->set(own_key, "here");
    (void)line_->get(own_key, deadline);
    (void)MPI_Barrier(world);
  }

  [[nodiscard]] store& line() noexcept { return *line_; }

private:
  struct invitation {
    std::array<char, 256> host{};
    int port = 0;
  };

  static store_address told_by_rank_0(MPI_Comm world, std::string const& host, int port) {
    invitation mine;
    if (::gethostname(mine.host.data(), mine.host.size() - 1) != 0)
      throw std::runtime_error("store: this machine does not know its name; set MASTER_ADDR");
    invitation told = mine;
    if (!host.empty()) {
      told.host.fill('\0');
      host.copy(told.host.data(), told.host.size() - 1);
    }
    told.port = port;
    if (MPI_Bcast(&told, sizeof told, MPI_BYTE, 0, world) != MPI_SUCCESS)
      throw std::runtime_error("store: MPI could not pass on the address of rank 0");
    store_address address;
    address.port = told.port;
    // On rank 0's own machine the address of that machine needs no name server.
    if (std::strcmp(told.host.data(), mine.host.data()) != 0)
      address.host = told.host.data();
    return address;
  }

  std::unique_ptr<store_server> server_;
  std::unique_ptr<store> line_;
};

} // namespace pipelining::inline v0_1
