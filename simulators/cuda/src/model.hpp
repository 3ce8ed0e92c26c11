// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The modelled machine: host threads, devices, streams, events, graphs, communicators, and
//! who moves next.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fiber.hpp"
#include "shadow.hpp"

namespace standin::detail {

using nanoseconds = std::chrono::nanoseconds;

struct host;
struct stream;
struct event;
struct graph;
struct graph_exec;
struct communicator;
struct clique;
struct operation;
using operation_ptr = std::shared_ptr<operation>;

enum class operation_kind {
  kernel,
  copy,
  fill,
  host_function,
  record,
  wait,
  marker,
  allocate,
  release,
  nccl
};

enum class part_kind { send, receive, all_reduce, broadcast, reduce, all_gather, reduce_scatter };

//! @brief One call inside an NCCL group.
struct part {
  part_kind kind{};
  char const* input = nullptr;
  char* output = nullptr;
  std::size_t count = 0;
  std::size_t bytes = 0; //!< of count elements
  ncclDataType_t type{};
  ncclRedOp_t reduction{};
  int peer = -1; //!< of a message; root of a broadcast or reduce
  bool done = false;
  std::shared_ptr<std::vector<char>> buffered{};
  operation* partner = nullptr; //!< the operation at the other end, once matched
};

//! @brief What a device does: enqueued by a host thread, ordered after others, run once.
struct operation {
  std::uint64_t id = 0;
  std::uint64_t stable = 0; //!< equal in every order of execution
  operation_kind kind{};
  std::shared_ptr<std::string const> what{};
  int device = 0;
  int agent = 0;
  stream* on = nullptr;
  host* by = nullptr;
  std::vector<operation_ptr> after{}; //!< must be finished first
  operation_ptr after_start{};        //!< must have started first
  std::vector<operation*> next{};     //!< operations that wait for this one to finish
  std::vector<operation*> next_on_start{};
  int missing = 0; //!< unfinished operations in after and after_start
  std::vector<memory_access> accesses{};
  std::function<std::vector<memory_access>(operation&)> run{};
  vector_clock issued{};
  vector_clock clock{};
  nanoseconds issued_at{}, finished_at{}, cost{};
  bool started = false, done = false, stalled = false;
  int fails_with = 0; //!< cudaError_t it raises on its device
  communicator* comm = nullptr;
  event* records = nullptr; //!< of a node of a graph: what every launch records
  //! Of a node that NCCL adds to a graph: a wait for what this stream of its own did before the
  //! launch, or a record of where it has come to.
  std::shared_ptr<operation_ptr> own_stream{};
  std::vector<part> parts{};
};

//! @brief Where a kernel thread waits until another one rings. Rung without the lock of the model,
//! so that the thread that wakes finds it free.
class turn_bell {
public:
  void ring() {
    {
      std::lock_guard const held(lock_);
      rung_ = true;
    }
    came_.notify_one();
  }
  //! False when nobody has rung for so long.
  bool wait_for(nanoseconds length) {
    std::unique_lock held(lock_);
    return came_.wait_for(held, length, [&] { return std::exchange(rung_, false); });
  }

private:
  std::mutex lock_{};
  std::condition_variable came_{};
  bool rung_ = false;
};

enum class host_state { running, waiting, sleeping, parked, ended };

//! @brief A host thread.
struct host {
  int id = 0;
  int rank = -1;
  int agent = 0;
  host_state state = host_state::running;
  std::function<bool()> const* condition = nullptr;
  std::string why{};
  operation_ptr target{};
  std::uint64_t needed_for = ~std::uint64_t{0}; //!< operation that needed was made for
  std::unordered_set<std::uint64_t> needed{};
  bool woken = false;
  bool wants_turn = false; //!< in the model, waiting for its turn
  bool helper = false;     //!< started by a rank next to its own thread
  bool dead = false;       //!< with all threads of its rank
  bool unwinding = false;  //!< dead, and let go on so that it can end
  bool abandoned = false;  //!< a helper whose rank has ended: what it waits for fails
  bool joining = false;    //!< waits for others to end, whatever happens
  nanoseconds now{}, wake{};
  //! Of its kernel thread: rung when a host thread there has the turn. Shared, since who rings may
  //! come to it when its owner is gone.
  std::shared_ptr<turn_bell> bell{};
  fiber* runs_on = nullptr;
  fiber_ptr own_fiber{}; //!< of one that the model has started
  vector_clock clock{};
  std::uint64_t issued = 0; //!< operations enqueued
  std::uint64_t seen = 0;   //!< hash of what calls told it
  std::uint64_t calls = 0;
  std::uint64_t fruitless = 0; //!< polls in a row without success
  std::uint64_t idle = 0;      //!< of those, polls without any progress in the model
  std::uint64_t progress_seen = 0;
  std::vector<std::string> scopes{};
  cudaError_t last_error = cudaSuccess;
  int current_device = 0;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  // What the call in progress must do to the first operation it enqueues.
  bool stall_next = false;
  int fail_next = 0;
  bool fail_comm_next = false;
};

struct graph_node {
  operation_ptr prototype{};
  std::vector<graph_node*> after{};
  std::size_t index = 0;
};

struct graph {
  std::vector<std::unique_ptr<graph_node>> nodes{};
  std::string label{};
};

//! @brief One stream capture in progress; all streams that joined it share it.
struct capture {
  std::shared_ptr<graph> into{};
  stream* origin = nullptr;
  host* by = nullptr;
  cudaStreamCaptureMode mode{};
  bool invalid = false;
  std::set<stream*> streams{};
  //! By each stream of NCCL's own: its last node, from the wait on.
  std::map<std::shared_ptr<operation_ptr>, graph_node*> own_streams{};
  std::uint64_t id = 0;
};

struct graph_exec {
  std::shared_ptr<graph> from{};
  std::vector<int> agents{};
  operation_ptr last{};
  std::string label{};
  int launches = 0; // in progress
};

struct stream {
  int device = 0;
  int id = 0;
  int agent = 0;
  int priority = 0;
  bool blocking = true;
  bool legacy = false;
  std::string label{};
  operation_ptr last{};
  std::shared_ptr<capture> capturing{};
  std::vector<graph_node*> tail{};
};

struct event {
  int id = 0;
  int device = 0;
  bool timing = true;
  std::string label{};
  operation_ptr recorded{};
  std::shared_ptr<capture> captured{};
  std::vector<graph_node*> nodes{};
};

//! @brief A queue of parts of one connection whose other ends have not come yet.
struct end_of_message {
  operation_ptr op{};
  std::size_t index = 0;
  [[nodiscard]] part& item() const { return op->parts[index]; }
};

struct connection {
  std::deque<end_of_message> sends{}, receives{};
  std::size_t buffered = 0;
};

//! @brief All ranks of one communicator.
struct clique {
  std::string label{};
  int size = 0;
  std::vector<communicator*> ranks{};
  std::map<std::pair<int, int>, connection> connections{};
  std::set<std::tuple<int, int, bool>> wanted{}; //!< (rank, peer, sends): announced uses of a peer
  std::map<std::uint64_t, std::vector<end_of_message>> collectives{};
  struct split_request {
    int color = 0, key = 0;
  };
  std::map<std::uint64_t, std::map<int, split_request>> splits{};
  std::map<std::pair<std::uint64_t, int>, std::shared_ptr<clique>> children{};
};

struct communicator {
  std::shared_ptr<clique> members{};
  int rank = 0;
  int device = 0;
  bool blocking = true;
  ncclResult_t state = ncclInProgress;
  bool aborted = false, destroyed = false, finalized = false, revoked = false;
  //! Last kernel of the lane; split children with splitShare use the lane of their parent.
  std::shared_ptr<operation_ptr> lane = std::make_shared<operation_ptr>();
  std::shared_ptr<operation_ptr> proxy = std::make_shared<operation_ptr>(); //!< the same, of hosts
  std::uint64_t collectives = 0, splits = 0;
  int graph_references = 0;
  int blocks = 0; //!< of a kernel, at most
  host* by = nullptr;
  std::string label{};
};

struct message {
  end_of_message send{}, receive{};
  std::vector<end_of_message> collective{};
  std::uint64_t number = 0; //!< among those from one device to the other, from 1; 0: not counted
};

//! @brief Work of NCCL's host side that waits for other ranks, or that a thread of its own does.
struct job {
  std::string what{};
  communicator* comm = nullptr;
  bool launches = false; //!< puts kernels on a device, which an abort cannot take back
  std::function<bool()> ready{};
  std::function<void()> act{};
  std::function<std::string()> waits_for{};
};

enum class memory_kind { device, pinned, managed };

struct allocation {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  int device = 0;
  memory_kind kind = memory_kind::device;
  bool freed = false;
  std::uint64_t id = 0;
  std::string label{};
  std::unique_ptr<char[]> storage{};
};

//! @brief The machine. Every member function expects the lock to be held by the calling host
//! thread.
class model {
public:
  static model& instance();

  // ---- life
  void configure(configuration chosen);
  configuration config{};
  std::mutex lock{};

  // ---- hosts.cpp: whose turn it is
  host& self();
  host& add_host(int rank, std::shared_ptr<turn_bell> bell, fiber* runs_on);
  host& start_host(int rank, std::function<void(host&)> work);
  void enter(std::unique_lock<std::mutex>& held);
  void leave();
  bool
  wait(std::string why, std::function<bool()> const& condition, operation_ptr target = nullptr);
  bool poll(std::function<bool()> const& condition);
  void sleep_until(nanoseconds when);
  void park();
  void park_if_dead();
  void wake(host& sleeper);
  void give_up_turn();
  bool wait_for_bell(host& me, nanoseconds length, std::function<bool()> const& condition);
  void kill(host& who);
  void end_host();
  void start_ranks(std::vector<host*> const& ranks);
  [[nodiscard]] bool all_ranks_ended() const;
  [[nodiscard]] bool all_helpers_ended() const;
  bool deadlocked = false;

  // ---- enqueue.cpp: operations
  stream& resolve(cudaStream_t handle);
  stream& add_stream(int device, bool blocking, int priority);
  operation_ptr make(operation_kind kind, stream& on, std::string const& what);
  void enqueue(stream& on, operation_ptr const& op);
  void submit(operation_ptr const& op, std::uint64_t stable);
  void depend(operation& op, operation_ptr const& on) const;
  [[nodiscard]] bool idle(stream const& s) const { return !s.last || s.last->done; }
  [[nodiscard]] int device_error(int device) const;
  [[nodiscard]] long unfinished(int device) const;
  [[nodiscard]] bool queue_has_room(int device) const;
  std::map<int, int> broken_devices{};
  void add_graph_operation(operation_ptr const& op, std::uint64_t stable);

  // ---- steps.cpp: what the devices do next
  bool step();
  void finish(operation_ptr const& op);
  std::uint64_t choose(std::uint64_t among);
  std::uint64_t random();
  std::uint64_t progress = 0;
  [[nodiscard]] operation_ptr live_operation(operation const* op) const;
  void remember(std::uint64_t fact) { state_hash_ ^= fact * 0x9E3779B97F4A7C15ull; }

  // ---- nccl_steps.cpp: what NCCL kernels do
  void post(operation_ptr const& op);
  void deliver(message const& item);
  void fail_communicator(communicator& comm);
  [[nodiscard]] bool has_room(operation const& op) const;
  std::vector<message> messages{};
  std::map<std::pair<int, int>, std::uint64_t> sent{}; //!< from one device to another, matched
  std::map<std::tuple<int, int, std::uint64_t>, std::vector<char>> kept{}; //!< what those held
  std::map<int, int> resident{};        //!< kernels of NCCL on a device
  std::map<int, int> resident_blocks{}; //!< and their blocks
  std::vector<operation_ptr> finishable{};
  std::list<job> jobs{};

  // ---- reports.cpp
  void report_finding(finding kind, std::string text, std::vector<std::string> waits = {});
  void declare_deadlock();
  [[nodiscard]] std::vector<std::string> who_waits();
  [[nodiscard]] std::string memory_name(std::uintptr_t address) const;
  [[nodiscard]] std::string describe(host const& who) const;
  std::vector<report> reports{};
  bool frozen = false;
  void setting_up(std::string const& what);
  void add_context() { contexts.insert({self().rank, self().current_device}); }
  std::set<std::pair<int, int>> contexts{}; //!< (rank, device): what has taken memory of a device

  // ---- memory
  void check(operation& op, memory_access const& range);
  void check_host(memory_access const& range, std::string const& doing);
  allocation* find_allocation(void const* address);
  std::map<std::uintptr_t, allocation> allocations{};
  shadow memory;
  void* allocate(std::size_t bytes, int device, memory_kind kind);
  void adopt_host_memory(void* begin, std::size_t bytes);

  // ---- objects, by handle
  std::map<void const*, std::unique_ptr<stream>> streams{};
  std::map<void const*, std::unique_ptr<event>> events{};
  std::map<void const*, std::shared_ptr<graph>> graphs{};
  std::map<void const*, std::unique_ptr<graph_exec>> graph_execs{};
  std::map<void const*, std::unique_ptr<communicator>> communicators{};
  std::vector<std::unique_ptr<stream>> retired_streams{};
  std::vector<std::unique_ptr<event>> retired_events{};
  std::map<void const*, int> shared_limits{}; //!< opted-in dynamic shared memory of kernels
  //! Bytes of shared memory that a block may have, by compute capability.
  int shared_opt_in() const;
  std::map<std::string, std::shared_ptr<clique>> cliques{};
  std::set<std::pair<int, int>> peers{};
  std::vector<std::shared_ptr<capture>> captures{};
  std::map<int, std::unique_ptr<stream>> legacy_streams{};
  std::map<host*, std::map<int, std::unique_ptr<stream>>> thread_streams{};
  std::map<void const*, std::string> names{};
  int next_agent = 0, next_stream = 0, next_event = 0;
  std::uint64_t next_operation = 0, next_unique_id = 0, next_capture = 0, next_graph = 0,
                next_allocation = 0;

  // ---- counting and faults
  std::map<std::string, std::uint64_t> calls{};
  std::uint64_t total_calls = 0;
  std::vector<std::uint64_t> fault_seen{};
  totals counts{};
  std::uint64_t choices_hash = 0;

  operation* in_callback = nullptr;
  bool in_job = false; //!< what is enqueued now does not keep a host waiting

  // ---- exploration
  std::vector<std::uint64_t> taken{}, width{};
  std::function<bool(std::uint64_t)> visited{};
  bool pruned = false;

  std::uint64_t epoch = 0;
  std::vector<std::unique_ptr<host>> hosts{};
  host* turn = nullptr;
  std::map<std::uint64_t, operation_ptr> live{};  //!< not finished, by id
  std::map<std::uint64_t, operation_ptr> ready{}; //!< may start, by id

private:
  model();

  struct candidate {
    enum class step_kind { deliver, finish, start } kind{};
    std::size_t index = 0;
    operation_ptr op{};
  };
  void turn_over(host& me);
  host* choose_other(host const& me);
  bool hand_to_someone(host& me);
  void hand_to(host& me, host& other);
  void await_turn(host& me);
  [[nodiscard]] bool is_here(host const* who, host const& me) const;
  void resume(host& other);
  [[nodiscard]] bool can_run(host const& h) const;
  host* earliest_sleeper();
  host* earliest_able_before(nanoseconds when);
  host* releasable();
  bool wait_for_newcomer();
  [[nodiscard]] bool somebody_is_outside(host const& me) const;
  std::condition_variable somebody_came_{};
  bool run_jobs();
  std::vector<candidate> candidates();
  candidate pick(std::vector<candidate> const& all);
  void start(operation_ptr const& op);
  void begin(operation& op);
  void throttle(operation const& op);
  void steps_after_enqueue();
  [[nodiscard]] bool urgent(candidate const& c) const;
  void why_waits(operation const& op, std::vector<std::string>& lines);

  std::uint64_t coin_ = 0;
  std::uint64_t state_hash_ = 0;
  std::map<std::pair<int, int>, operation_ptr> queues_{};
};

//! @brief The thread's place in the model; made at its first call.
struct thread_place {
  host* who = nullptr;
  std::uint64_t epoch = 0;
  ~thread_place();
};
thread_place& place();

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15ull + b + 0x632BE59BD9B4E019ull;
  x ^= x >> 31;
  x *= 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 29);
}

} // namespace standin::detail
