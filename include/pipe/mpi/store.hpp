// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The store of a run whose processes have MPI. Header for pipelining::mpi_store.

#include <pipe/config.hpp>

#if __cplusplus >= 202002L // what comes below would bury the one error of config.hpp
#include <pipe/cluster/launch_environment.hpp>
#include <pipe/cluster/store.hpp>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pipelining::inline v0_3 {

namespace detail {

//! The addresses at which other machines may reach this one, its name after them; the loopback
//! address where it has no other one.
[[nodiscard]] inline std::string own_addresses() {
  std::vector<std::string> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    for (ifaddrs const* each = list; each != nullptr && found.size() < 8; each = each->ifa_next) {
      int const family = each->ifa_addr == nullptr ? AF_UNSPEC : each->ifa_addr->sa_family;
      if ((family != AF_INET && family != AF_INET6) || (each->ifa_flags & IFF_LOOPBACK) != 0 ||
          (each->ifa_flags & IFF_UP) == 0)
        continue;
      char text[NI_MAXHOST] = {};
      socklen_t const length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      bool const known =
        ::getnameinfo(each->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
      // An address with a scope means something on this machine only.
      if (known && std::string_view(text).find('%') == std::string_view::npos)
        found.emplace_back(text);
    }
    ::freeifaddrs(list);
  }
  if (found.empty())
    return "127.0.0.1";
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0')
    found.emplace_back(name);
  std::string joined;
  for (std::string const& each : found)
    joined += (joined.empty() ? "" : ",") + each;
  return joined;
}

//! Refuses what would be several runs of one rank each.
//! @throws std::invalid_argument where MPI has started this process alone, and another launcher has
//! started several.
inline void check_started_by_mpi() {
  int everyone = 1;
  (void)MPI_Comm_size(MPI_COMM_WORLD, &everyone);
  if (everyone > 1)
    return;
    // Open MPI asks PMIx itself, and sets its variables where a program starts without mpirun.
#if defined(OPEN_MPI)
  constexpr bool knows_pmix = true;
#else
  constexpr bool knows_pmix = false;
#endif
  launch_environment const here = read_launch_environment(knows_pmix);
  if (here.size > 1)
    throw std::invalid_argument("launch: this is rank " + std::to_string(here.rank) + " of " +
                                std::to_string(here.size) + ", as " + here.launcher +
                                " says, but MPI has started this process alone; start the program "
                                "with the mpirun of the MPI that it was built with");
}

} // namespace detail

//! @brief Rank 0's server, and this process's line to it.
//!
//! Rank 0 takes a free port, or MASTER_PORT where the environment has it next to MASTER_ADDR, and
//! tells the others by MPI where it is and a secret of this run. MASTER_ADDR replaces the addresses
//! of its machine. Both are said of rank 0 of the whole run, so a store of some of its ranks does
//! without them.
//!
//! A process that dies before this is made is a matter of MPI and its launcher; from then on it is
//! a failure of the run. Destroyed on rank 0, it waits up to two seconds for the other ranks to
//! end, so that all learn why a run has failed: report first.
class mpi_store {
public:
  //! @brief Collective over `world`.
  //! @param deadline the longest that this may take. @param listen the address of its machine on
  //! which rank 0 listens; empty: all of them.
  //! @throws std::invalid_argument where another launcher, such as torchrun, has started several
  //! processes, and MPI knows this one alone; deadline_error where a rank is late, with its name;
  //! std::runtime_error when rank 0 cannot listen or be reached. MPI may wait for the late rank for
  //! ever then: end the process with `std::_Exit`.
  explicit mpi_store(MPI_Comm world = MPI_COMM_WORLD,
                     std::chrono::nanoseconds deadline = std::chrono::seconds(60),
                     std::string const& listen = {})
      : end_(deadline) {
    detail::check_started_by_mpi();
    int rank = 0;
    int size = 1;
    (void)MPI_Comm_rank(world, &rank);
    (void)MPI_Comm_size(world, &size);
    store_address address;
    if (rank == 0)
      address = serve(world, size, listen);
    else
      address = hear_where(world, rank);
    address.ranks = size;
    if (rank != 0) {
      line_ = std::make_unique<store>(address, rank, left());
      line_->arrive("mpi_store", size);
    }
    // From here on the server knows all ranks, so that none can fail without the others learning
    // it.
    try {
      line_->await_all("mpi_store", left());
    } catch (deadline_error const& late) {
      line_->abort(late.what());
      throw;
    }
  }

  //! The store that the ranks share.
  [[nodiscard]] store& line() noexcept { return *line_; }

private:
  // Of the messages by which ranks meet; any MPI has tags up to 32767.
  static constexpr int tag = 32601;

  struct invitation {
    std::array<char, 1024> host{};
    std::array<char, 64> secret{};
    std::array<char, 512> problem{};
    int port = 0;
  };

  [[nodiscard]] std::chrono::nanoseconds left() { return end_.left(); }

  template <std::size_t Size>
  static void put(std::array<char, Size>& place, std::string const& text) {
    text.copy(place.data(), Size - 1);
  }

  store_address serve(MPI_Comm world, int size, std::string const& listen) {
    auto told = std::make_unique<invitation>();
    store_address address;
    std::exception_ptr failure;
    try {
      address = open_server(size, listen);
    } catch (std::exception const& error) {
      failure = std::current_exception();
      put(told->problem, error.what());
    }
    put(told->host, address.host);
    put(told->secret, address.secret);
    told->port = address.port;
    // Synchronous: what has completed needs no further help from MPI on this rank.
    std::vector<MPI_Request> sends(static_cast<std::size_t>(size), MPI_REQUEST_NULL);
    for (int other = 1; other < size; ++other)
      (void)MPI_Issend(told.get(),
                       sizeof *told,
                       MPI_BYTE,
                       other,
                       tag,
                       world,
                       &sends[static_cast<std::size_t>(other)]);
    std::vector<int> const missing = wait(sends);
    if (!missing.empty()) {
      (void)told.release(); // MPI may still read it
      std::string const reason = "store: rank 0 has waited for " + detail::name_ranks(missing) +
                                 " at 'mpi_store' beyond its deadline; is every rank running?";
      if (failure)
        std::rethrow_exception(failure);
      line_->abort(reason);
      throw deadline_error(reason, missing);
    }
    if (failure)
      std::rethrow_exception(failure);
    return address;
  }

  store_address open_server(int size, std::string const& listen) {
    store_address address;
    int everyone = size;
    (void)MPI_Comm_size(MPI_COMM_WORLD, &everyone);
    std::string const host =
      size == everyone ? detail::environment_text("MASTER_ADDR") : std::string();
    address.host = host.empty() ? detail::own_addresses() : host;
    address.port = host.empty() ? 0 : detail::environment_port();
    address.secret = make_secret();
    address.listen = listen;
    address.ranks = size;
    server_ = std::make_unique<store_server>(address);
    address.port = server_->port();
    store_address local = address;
    std::string const place = detail::place_to_listen(address);
    local.host = place.empty() ? "127.0.0.1" : place;
    line_ = std::make_unique<store>(local, 0, left());
    line_->arrive("mpi_store", size);
    return address;
  }

  store_address hear_where(MPI_Comm world, int rank) {
    auto told = std::make_unique<invitation>();
    std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
    (void)MPI_Irecv(told.get(), sizeof *told, MPI_BYTE, 0, tag, world, request.data());
    if (!wait(request).empty()) {
      (void)told.release(); // MPI may still write it
      throw deadline_error("store: rank " + std::to_string(rank) +
                             " has waited for rank 0 to say where its store is, beyond its "
                             "deadline; is every rank running?",
                           {0});
    }
    if (told->problem[0] != '\0')
      throw std::runtime_error("store: rank 0 cannot serve: " + std::string(told->problem.data()));
    store_address address;
    address.host = told->host.data();
    address.port = told->port;
    address.secret = told->secret.data();
    return address;
  }

  //! @return the numbers of those that have not completed before the end.
  std::vector<int> wait(std::vector<MPI_Request>& requests) {
    for (;;) {
      int done = 0;
      if (MPI_Testall(
            static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE) !=
          MPI_SUCCESS)
        throw std::runtime_error("store: MPI could not pass on the address of rank 0");
      if (done != 0)
        return {};
      if (end_.is_over())
        break;
      detail::polling_clock::sleep_for(std::chrono::microseconds(100));
    }
    std::vector<int> late;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      int done = 1;
      if (requests[i] != MPI_REQUEST_NULL)
        (void)MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
      if (done == 0)
        late.push_back(static_cast<int>(i));
    }
    return late;
  }

  detail::countdown<detail::polling_clock> end_;
  std::unique_ptr<store_server> server_;
  std::unique_ptr<store> line_;
};

} // namespace pipelining::inline v0_3
#endif
