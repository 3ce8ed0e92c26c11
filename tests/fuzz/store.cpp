// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/socket.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cluster/store_protocol.hpp>
#include <pipe/cluster/store_server.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <ios>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <tests/support/raw_store.hpp>
#include <tests/support/temporary_folder.hpp>
#include <thread>
#include <utility>

#include "file_readers.hpp"
#include "reader.hpp"

namespace pp = pipelining;

namespace fuzz {
namespace {

//! A line of an input, without its escapes.
std::string take_line(std::string_view& text) {
  std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  std::string bytes;
  for (; !line.empty(); line.remove_prefix(1)) {
    bool const zero = line.starts_with("\\0");
    bytes += zero ? '\0' : line.front();
    if (zero)
      line.remove_prefix(1);
  }
  return bytes;
}

//! Sends 'f' and a frame, or 'b' and bytes, as far as the kernel takes them.
void send(pp::detail::connection& line, std::string_view words) {
  if (words.starts_with('f'))
    (void)line.write(words.substr(1));
  else if (!words.empty())
    (void)::send(line.get(), words.data() + 1, words.size() - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

pp::store_address address_of(int port) {
  return {.port = port, .job = "job", .secret = "secret", .ranks = 3};
}

//! The next frame of the store; the process ends where none comes.
std::string hear(pp::detail::connection& line) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(8);
  while (std::chrono::steady_clock::now() < end) {
    if (auto word = line.read())
      return *word;
    check(line.open(), "the store has closed the line of a rank that did nothing wrong");
    pp::detail::wait_for_socket(line.get(), false, std::chrono::milliseconds(10));
  }
  fail("the store does not answer");
}

//! A store that lets a rank in, says what is written, and is there for a moment.
void answer(pp::detail::descriptor const& door, std::string_view text) {
  pp::detail::wait_for_socket(door.get(), false, std::chrono::seconds(1));
  pp::detail::connection line(
    pp::detail::descriptor(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  (void)line.write(pp::detail::frame('W', pp::detail::store_magic));
  (void)line.write(pp::detail::frame('W', "welcome"));
  for (int lines = 0; lines < 64 && !text.empty(); ++lines)
    send(line, take_line(text));
  pp::detail::countdown<pp::detail::polling_clock> moment(std::chrono::milliseconds(20));
  while (line.open() && !moment.is_over()) {
    auto const word = line.read();
    if (word && word->starts_with('P'))
      (void)line.write(*word);
    else if (!word)
      pp::detail::wait_for_socket(line.get(), false, moment.slice());
  }
}

} // namespace

void read_frames(std::string_view text) {
  pp::store_server server(address_of(0));
  auto const enter = [&] { return support::knock(server.port()); };
  pp::detail::connection honest = enter();
  (void)honest.write(pp::detail::hello(address_of(0), 2));
  std::array<std::optional<pp::detail::connection>, 3> guests;
  for (int lines = 0; lines < 64 && !text.empty(); ++lines) {
    std::string const words = take_line(text);
    if (words.empty() || words.front() < 'a' || words.front() > 'c')
      continue;
    auto& guest = guests[static_cast<std::size_t>(words.front() - 'a')];
    if (!guest || !guest->open())
      guest.emplace(enter());
    send(*guest, std::string_view(words).substr(1));
    (void)guest->read();
  }
  // The store has read all that came before, or closed the line.
  for (auto& guest : guests)
    if (guest)
      (void)::shutdown(guest->get(), SHUT_WR);
  (void)honest.write(pp::detail::frame('P', "still there?"));
  std::string answer;
  do
    answer = hear(honest);
  while (answer != pp::detail::frame('P', "still there?"));
  (void)honest.write(pp::detail::frame('B', ""));
}

void read_answers(std::string_view text) {
  int port = 0;
  pp::detail::descriptor const door = pp::detail::listen_on("127.0.0.1", 0, port);
  std::thread speaker([&] { answer(door, text); });
  // A rank is trusted, and so is what it says of its failure.
  auto const call = [](auto const& what) {
    try {
      what();
    } catch (std::runtime_error const&) {
    }
  };
  call([&] {
    pp::store line(address_of(port), 1, std::chrono::seconds(3));
    constexpr auto soon = std::chrono::milliseconds(1);
    call([&] { (void)line.get("key", soon); });
    call([&] { line.barrier("meet", 3, soon); });
    (void)line.failure();
  });
  speaker.join();
}

void read_address(std::string_view text) {
  static support::temporary_folder const folder("pipelining-fuzz");
  std::string const path = folder.path() + "/store";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  (void)takes<std::runtime_error>([&] {
    auto const found = pp::read_store_file(path, "job", std::chrono::nanoseconds(0));
    check(found.job == "job" && found.port >= 0 && found.port <= 65535 && found.ranks >= 0,
          "an address is none");
  });
}

} // namespace fuzz
