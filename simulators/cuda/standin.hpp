// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief Control of the link-time stand-in for the CUDA runtime and NCCL.
//!
//! Code under test includes the real <cuda_runtime.h> and <nccl.h>, is compiled by nvcc and linked
//! with this library instead of libcudart and libnccl. Nothing here is seen by that code except,
//! where it wants virtual time, standin::clock as its clock type.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace standin {

//! @brief Which of the operations that may run next runs next.
enum class order {
  lazy,    //!< nothing runs before a host thread has to wait for it
  eager,   //!< everything that can run does so as soon as it is enqueued
  random,  //!< a seeded coin decides about operations and about host threads
  scripted //!< choices are read from configuration::script; explore() uses this
};

//! @brief What happens at the call a fault names.
enum class fault_action {
  error, //!< the call does nothing and returns the code
  stall, //!< the operation it enqueues never completes; a call that enqueues none never returns
  death, //!< the calling rank makes no further call, and what it enqueued no longer starts
  asynchronous_error //!< the enqueued operation fails on the device; NCCL: the communicator turns
                     //!< bad
};

//! @brief One injected fault: at the call-th call of function by rank.
struct fault {
  std::string function{}; //!< "" matches every function
  std::uint64_t call = 1; //!< counts the matching calls from 1
  int rank = -1;          //!< -1 matches every host thread
  fault_action action = fault_action::error;
  int cuda_code = 999; //!< cudaErrorUnknown
  int nccl_code = 2;   //!< ncclSystemError
};

//! @brief A message that does not arrive as it was sent.
struct corruption {
  int from = 0;              //!< device
  int to = 1;                //!< device
  std::uint64_t message = 1; //!< counts the messages from one to the other from 1, as they are sent
  std::size_t byte = 0;      //!< that has one bit changed
  std::uint64_t instead = 0; //!< or: what arrives is what this earlier one of equal size held
};

//! @brief Durations of the virtual clock.
struct costs {
  std::chrono::nanoseconds call{500};       //!< of a call, on the host
  std::chrono::nanoseconds kernel{10'000};  //!< of a kernel, on the device
  std::chrono::nanoseconds transfer{5'000}; //!< of a copy, a fill or a message, plus its bytes
  double bytes_per_nanosecond = 50.0;
};

//! @brief How the modelled machine behaves.
struct configuration {
  int devices = 8;
  int compute_major = 9;
  int compute_minor = 0;
  int registers_per_thread = 255;    //!< at most, as -maxrregcount sets it
  bool reports_launch_bounds = true; //!< in cudaFuncGetAttributes; else what registers allow
  order execution = order::lazy;
  std::uint64_t seed = 1;
  std::vector<int> script{};      //!< for order::scripted; choices beyond its end are 0
  std::size_t buffered_bytes = 0; //!< sends of one connection NCCL may buffer; 0 is pure rendezvous
  int resident_nccl_kernels = 0;  //!< NCCL kernels a device can hold; 0 is unlimited
  int processors = 132;           //!< of a device
  //! A kernel of NCCL holds as many processors as its communicator may have blocks.
  bool blocks_take_processors = false;
  //! Messages go through a proxy on the host: in a graph every kernel of NCCL stands after a node
  //! of the host, which has a wait and an event of NCCL's own, as the kernel has.
  bool network = false;
  int launch_depth =
    0; //!< unfinished operations a device accepts before the host waits; 0 is unlimited
  int hardware_queues =
    0; //!< streams share this many launch queues per device; 0 is one queue each
  bool peer_access = true;  //!< devices can reach each other's memory
  bool lazy_connect = true; //!< the first use of a peer blocks the host until the peer uses it too
  bool mirrored_groups = true; //!< report groups whose two ends differ
  bool report_uninitialised = true;
  bool peers_notice_death =
    false; //!< communicators of a dead rank turn ncclRemoteError on the others
  bool allow_shared_device = false; //!< two ranks of a communicator may use one device
  bool expect_more_threads =
    false; //!< unregistered host threads may still come: wait for them before calling deadlock
  //! Real time after which a thread that holds the turn, but waits for something outside the model,
  //! is overtaken.
  std::chrono::nanoseconds overtaken_after = std::chrono::seconds(2);
  bool record_ranges = false; //!< keep what NVTX is told, for nvtx_ranges()
  bool reduce = true;         //!< explore(): branch only where orders do not commute
  costs cost{};
  std::vector<fault> faults{};
  std::vector<corruption> corrupted{};
};

//! @brief Forgets everything and models a fresh machine.
void configure(configuration chosen);
//! @brief Forgets everything and models the same machine again.
void reset();
[[nodiscard]] configuration const& current_configuration();

//! @brief Rules whose violation is reported.
enum class finding {
  use_before_ready, //!< read of memory not ordered after its writer
  overwrite_in_use, //!< write of memory not ordered after its readers
  write_conflict,   //!< write not ordered after another write
  use_after_free,
  double_free,
  uninitialised_read,
  out_of_bounds,
  mismatch,         //!< the two ends of a message or a collective differ
  unmirrored_group, //!< the two ends of a message group it differently
  deadlock,
  misuse,       //!< a call the interface forbids
  kernel_error, //!< a kernel broke a rule of its own
  late_setup,   //!< allocation, connection or creation after freeze()
  leak          //!< see report_leaks()
};
[[nodiscard]] char const* name_of(finding kind);

//! @brief One broken rule, in one sentence; waits is filled for deadlocks, one line per waiter.
struct report {
  finding kind{};
  std::string text{};
  std::vector<std::string> waits{};
};
[[nodiscard]] std::vector<report> const& reports();
[[nodiscard]] bool found(finding kind);
//! @brief Every report on a line of its own; "" when there is none.
[[nodiscard]] std::string summary();
//! @brief Adds a report for every stream, event, graph, communicator and allocation still alive.
void report_leaks();
//! @brief From here on setting anything up is reported as late_setup.
void freeze();

//! @brief Calls made so far, by name of the function.
[[nodiscard]] std::map<std::string, std::uint64_t> const& calls();
[[nodiscard]] std::uint64_t calls_of(std::string const& function);
[[nodiscard]] std::uint64_t total_calls();
[[nodiscard]] std::uint64_t calls_of_rank(int rank);
//! @brief True once an injected death has ended this rank.
[[nodiscard]] bool has_died(int rank);
//! @brief The devices on which a rank has a context: each takes some hundred megabytes.
[[nodiscard]] std::vector<int> contexts_of_rank(int rank);

//! @brief What the devices did so far.
struct totals {
  std::uint64_t operations = 0, steps = 0, kernels = 0, copies = 0, nccl_kernels = 0, messages = 0;
  std::uint64_t graph_launches = 0, host_functions = 0;
  std::uint64_t staged_copies = 0; //!< between devices without access to each other, by the host
  //! Asynchronous ones that have kept the host waiting, since their memory is pageable.
  std::uint64_t waiting_copies = 0;
  std::uint64_t stolen_turns =
    0; //!< times a thread outside the model was overtaken; 0 means deterministic
};
[[nodiscard]] totals const& counters();
//! @brief Hash of every choice of order made; equal for equal seeds.
[[nodiscard]] std::uint64_t order_hash();

//! @brief How one rank ended.
struct outcome {
  bool threw = false;
  bool died = false;  //!< by an injected death
  std::string what{}; //!< of the exception
};
//! @brief Runs body(rank) on one host thread per rank; only one of them runs at any moment, and it
//! must not wait for another one but through the model.
std::vector<outcome> run_ranks(int ranks, std::function<void(int)> body);

//! @brief Lets the others run until the condition holds. For test code that waits for another rank.
//! @return false when the model found a deadlock first
bool wait_until(std::function<bool()> condition, std::string why);

//! @brief Virtual time, to be injected as the clock of the code under test.
//!
//! Every host thread has its own hand of the clock. It moves with its calls and with what it waits
//! for; a sleeper wakes when nothing else in the model can happen before.
struct clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<clock, duration>;
  static constexpr bool is_steady = true;

  //! @brief A thread that a rank starts next to its own. It dies with the rank; one that is
  //! detached and waits for ever ends after all ranks, with errors.
  class thread {
  public:
    void join();
    void detach() { (void)host_.release(); }
    [[nodiscard]] bool joinable() const noexcept { return host_ != nullptr; }

  private:
    friend struct clock;
    struct neither_joined_nor_detached {
      void operator()(void*) const noexcept { std::terminate(); }
    };
    std::unique_ptr<void, neither_joined_nor_detached> host_{};
  };
  static thread start(std::function<void()> work);

  //! @brief Where one thread sleeps until another one rings or a time has come.
  class doorbell {
  public:
    void wait_until(time_point when);
    void ring();

  private:
    bool rung_ = false;
    void* sleeper_ = nullptr;
  };
  static time_point now();
  static void sleep_for(duration length);
  static void sleep_until(time_point when);
};

//! @brief Gives a stream, event, communicator, graph or allocation a name for the reports.
void name(void const* handle, std::string given);

//! @brief A range that code under test has opened with NVTX.
struct nvtx_range {
  std::string domain{}; //!< "" for the default
  std::string text{};
  unsigned argb = 0; //!< 0 where it has no colour
};
//! @brief All ranges since configure() with configuration::record_ranges, in the order in which
//! they were opened, and how many of them are still open.
[[nodiscard]] std::vector<nvtx_range> nvtx_ranges();
[[nodiscard]] int open_nvtx_ranges();

//! @brief What the calling thread is doing, for the reports, while the object lives.
class scope {
public:
  explicit scope(std::string text);
  ~scope();
  scope(scope const&) = delete;
  scope& operator=(scope const&) = delete;
};

//! @brief Tells the model that the host reads or writes memory that devices also touch.
void host_read(void const* begin, std::size_t bytes);
void host_write(void const* begin, std::size_t bytes);

//! @brief What a host function standing for a kernel may ask and must declare.
struct kernel_launch {
  unsigned grid[3]{}, block[3]{};
  std::size_t shared_bytes = 0;
  void read(void const* begin, std::size_t bytes) { touched.push_back({begin, bytes, false}); }
  void write(void const* begin, std::size_t bytes) { touched.push_back({begin, bytes, true}); }
  struct range {
    void const* begin;
    std::size_t bytes;
    bool write;
  };
  std::vector<range> touched{};
};

namespace detail {
using bound_kernel = std::function<void(kernel_launch&)>;
void register_binder(std::string name, std::function<bound_kernel(void**)> bind);

template <class... Arguments, class Body, std::size_t... Index>
bound_kernel bind_arguments(Body body, void** values, std::index_sequence<Index...>) {
  std::tuple<Arguments...> copied{*static_cast<Arguments*>(values[Index])...};
  return [body, copied](kernel_launch& launch) { body(launch, std::get<Index>(copied)...); };
}
} // namespace detail

//! @brief Runs body instead of the PTX of the kernel with this name.
//! @param kernel name without template arguments' parameter list, as "stage_forward" or
//! "loss<float>"
template <class... Arguments, class Body>
void register_kernel(std::string kernel, Body body) {
  detail::register_binder(std::move(kernel), [body](void** values) {
    return detail::bind_arguments<Arguments...>(
      body, values, std::make_index_sequence<sizeof...(Arguments)>{});
  });
}

//! @brief What explore() saw.
struct exploration {
  std::uint64_t runs = 0;      //!< programs run from the start
  std::uint64_t states = 0;    //!< distinct states with a choice
  std::uint64_t deadlocks = 0; //!< runs that ended in a deadlock
  std::uint64_t faulty = 0;    //!< runs with any report
  bool complete = false;       //!< every order was covered
  std::vector<report> first{}; //!< reports of the first faulty run
};
//! @brief Runs the program under every order of its operations that can make a difference.
exploration explore(configuration chosen,
                    std::function<void()> const& program,
                    std::uint64_t most_runs = 100'000);

//! @brief Runs the check under every machine of {rendezvous, buffered} x {unlimited, one resident
//! NCCL kernel} x {lazy, eager, seeded random}.
void for_each_machine(configuration base,
                      int seeds,
                      std::function<void(configuration const&, std::string const&)> const& check);

} // namespace standin
