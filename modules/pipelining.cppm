// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The host part of the library as a module: `import pipelining;` instead of `#include <pipe/pipe.hpp>`. Macros stay with
// the headers: <pipe/version.hpp>. How to compile and use it: docs/how_to/depend_on_it.md.
module;

// Every header that is not ours comes before the module, so that none of its names become part of it.
#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <compare>
#include <concepts>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <exception>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <ios>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <new>
#include <numeric>
#include <optional>
#include <poll.h>
#include <random>
#include <sched.h>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unistd.h>
#include <unordered_map>
#include <utility>
#include <vector>
#include <pipe/config.hpp>

export module pipelining;

#if defined(__clang__)
#pragma clang diagnostic ignored "-Winclude-angled-in-module-purview"
#endif

// Names stay those of the headers, so that a program may import in one source and include in another.
export extern "C++" {
#include <pipe/pipe.hpp>
#include <pipe/cluster.hpp>
#include <pipe/planner.hpp>
#include <pipe/view.hpp>
}
