// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! @file
//! @brief Trains the model of the example gpt with one MPI process per device, in one pipeline or
//! several that share the batch.
//!
//! What to read, in this order: the model and its stages in the folder above, rank_run.hpp (how
//! processes meet), rank_model.hpp (one rank's share of the model), sums.hpp (what ranks add up
//! together), then this file: how they train, and end or go on when one of them fails.
//! paper_ranks.hpp has shares of another kind.

#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>
#include <pipe/mpi/store.hpp>

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "../backend.hpp"
#include "../compiled_layers.hpp"
#include "../papers/tensor_parallel.hpp"
#include "../papers/vocabulary.hpp"
#include "comparison.hpp"
#include "paper_ranks.hpp"
#include "rank_model.hpp"
#include "tools/support/termination.hpp"

namespace pp = pipelining;

namespace {

using namespace gpt;

enum exit_status { good = 0, differs = 1, misused = 2, failed = 3 };

//! To stderr at once, so that the reports of several processes do not mix; and into a file, since a
//! launcher that ends its processes may drop what they still say.
void report(std::string const& text, std::string const& file = {}) {
  std::string const line = "gpt_mpi: " + text + '\n';
  if (!file.empty() && example::why_not_opened(file).empty())
    std::ofstream(file) << line;
  [[maybe_unused]] auto const written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::string name_of_machine() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

void introduce(int rank, int ranks, std::string const& pipeline) {
  std::printf("rank %d of %d is process %ld on %s, %s\n",
              rank,
              ranks,
              static_cast<long>(::getpid()),
              name_of_machine().c_str(),
              pipeline.c_str());
  std::fflush(stdout);
}

//! Where the checkpoints of a rank lie, and of which run they are.
pp::checkpoint_place checkpoints_of(rank_run const& run) {
  return {run.o.checkpoint,
          "rank-" + std::to_string(run.rank),
          about_state(run.o, run.chosen.layout.replicas, run.text),
          run.chosen.layout};
}

//! All steps, with checkpoints between. Returns the gradients of the last one, as `gather` does,
//! where they will be held against those of one process.
template <class Model>
std::vector<float> train(rank_run& run, Model& model, before_step const& before) {
  rank_options const& chosen = run.chosen;
  introduce(run.rank, pp::ranks_of(chosen.layout), run.pipeline_name());
  auto o = of_all_replicas(run.o, chosen.layout.replicas);
  bool const reports = model.reports_loss() && run.place.replica == 0 && run.place.shard == 0;
  o.tells = reports ? telling::line_by_line : telling::nothing;
  rank_in_training<Model, pp::store> training{{model, checkpoints_of(run), o.every, o.steps},
                                              run.line(),
                                              run.place.replica,
                                              run.o.microbatches};
  auto const bytes = training.agree(
    run.everyone, run.rank, "attempt " + std::to_string(run.now.attempt), chosen.deadline);
  run.first = run.now.step = training.first;
  bool const leads = run.rank == 0;
  if (leads && run.first > 0) {
    std::printf("read %.0f kB, %.0f kB of them from files of other ranks\n",
                1e-3 * static_cast<double>(bytes.read),
                1e-3 * static_cast<double>(bytes.moved));
  }
  (void)training.has_steps(leads);
  std::fflush(stdout);
  auto const save = [&] {
    if (training.save() && leads) {
      std::printf("saved step %lld\n", static_cast<long long>(training.done));
      std::fflush(stdout);
    }
  };
  std::vector<float> gradients;
  auto const optimizer = optimizer_of(o);
  auto const begin = [&](std::int64_t step) {
    save();
    run.now.step = step;
    if (before)
      before(step);
    model.fail_in_next_step(run.now.attempt == 0 && run.place.replica == 0 &&
                            run.place.shard == 0 && step + 1 == chosen.fail_at);
    return false; // its passes are not measured
  };
  auto const update = [&](std::int64_t step) {
    if (step + 1 == o.steps && chosen.check && o.clip == 0)
      gradients = gather(model, &parameter<float>::gradient, run.groups);
    training.update(optimizer, step);
  };
  run.now.trains = true;
  (void)train_steps(o, run.text, training, begin, update, run.first);
  save();
  return gradients;
}

//! Holds all replicas against the first, and that against one process.
//! @param alone trains that one
template <class Alone>
exit_status hold(rank_run const& run, trained own, Alone alone) {
  if (!run.chosen.check || !run.leads_pipeline())
    return good;
  auto different = differences_of_replicas(own, run.groups.replicas);
  if (!run.leads())
    return good;
  trained const expected = alone();
  bool const with_gradients = !own.gradients.empty();
  if (with_gradients)
    different += differences(own.gradients, expected.gradients);
  different += differences(own.weights, expected.weights);
  std::printf("%zu %s after %lld steps, held against one process: %zu values differ\n",
              own.gradients.size() + own.weights.size(),
              with_gradients ? "gradients and weights" : "weights",
              static_cast<long long>(run.o.steps),
              different);
  return different == 0 ? good : differs;
}

//! Trains a model and holds it against one process.
//! @param report what a run ends with, of all weights where it clips; by all ranks together
//! @param alone trains on one process: `alone()` returns what it has learnt
template <class Model, class Report, class Alone>
exit_status train_and_hold(
  rank_run& run, Model& model, Report report, Alone alone, before_step const& before = {}) {
  auto gradients = train(run, model, before);
  model.finish();
  std::vector<float> weights;
  if (run.chosen.check || run.o.clip != 0)
    weights = gather(model, &parameter<float>::value, run.groups);
  if (run.first < run.o.steps)
    report(weights);
  return hold(run, {std::move(gradients), std::move(weights)}, alone);
}

//! Trains a device that has all stages and shards.
template <class Device>
trained train_device(rank_run const& run, Device device) {
  auto const optimizer = optimizer_of(run.o);
  return train_alone(run, device, [&](std::int64_t step) { device.update(optimizer, step); });
}

//! Trains whole stages on one process: what ranks are held against.
//! @param sizes of the iterations that take turns
trained train_stages_alone(rank_run const& run,
                           std::vector<sized_table> const& sizes,
                           clipping const& how) {
  options const& o = run.o;
  pp::timetable_view const table = sizes.front().table;
  bool const halves = table.over.extents.where == pp::placement::bidirectional;
  auto const cut = [&](std::size_t at) {
    return cut_whole(sizes[at].lengths).back_from_last(adds_from_last(table));
  };
  // The norm adds up stage by stage.
  auto const stages =
    o.clip != 0 ? cut_model(o.size, table.over.extents) : cut_layers(o.size.layers, 1);
  single_device device(o.size, stages, cut(0), seed_of(run.o), halves);
  std::int64_t taken = 0;
  auto const update = [&](std::int64_t step) {
    if (o.clip != 0)
      taken =
        take_clipped_step(device.stages(), {how.optimizer, o.clip, false}, taken, device.copies());
    else
      device.update(how.optimizer, step);
  };
  return train_alone(run, device, update, [&](std::int64_t step) {
    if (sizes.size() > 1)
      device.set_cut(cut(size_of_step(step, o.steps, sizes.size())));
  });
}

//! What rank 0 tells of slots and memory. Collective.
template <class Model>
void report_memory(rank_run const& run, Model& model, pp::timetable_view table, std::size_t sizes) {
  bool const leads = run.rank == 0;
  if (leads && sizes > 1) {
    std::printf("iterations of %zu sizes: %ld plans made, %ld times one was there\n",
                sizes,
                model.plans().made(),
                model.plans().reused());
  }
  if (run.o.own.adapted == registry::adapter::offload) {
    auto const slots = model.slots();
    if (leads)
      report_slots(run.o, slots);
  }
  auto const peaks = model.peak_bytes();
  if (leads)
    report_kept(run.o, table, peaks);
}

//! Whole stages that stay on their ranks: of layers, or of layers cut at their attention.
//! @tparam Place a `place_of_stage`, or with its optimizer
template <class Place>
exit_status train_stages(rank_run& run) {
  options& o = run.o;
  auto const table = timetable_of(o, name_of(o));
  check_early_steps(o, table);
  o.lengths = lengths_of(o.size, table);
  auto const sizes = tables_of_sizes(o, table);
  plan_maker plans{host_slots(o.size, Place::totals_bytes, false), o.post_validation};
  left_to_mpi<model_on_rank<Place>> here(run, table, std::move(plans), [&](auto& shared) {
    return make_host_stages(o.size, table, o.lengths, seed_of(o), shared, run.place.device);
  });
  auto& model = *here;
  auto const how = clipping_of(o);
  model.set_clipping(how);
  auto const report = [&](std::vector<float> const& weights) {
    report_memory(run, model, table, sizes.size());
    if constexpr (Place::totals_bytes > 0) {
      auto found = model.clipping_done();
      bool const halves = table.over.extents.where == pp::placement::bidirectional;
      found.weights = hash_of(std::span(weights).first(weights.size() / (halves ? 2 : 1)));
      if (run.rank == 0)
        report_clipping(o, found, static_cast<std::size_t>(o.steps));
    }
  };
  return train_and_hold(
    run,
    model,
    report,
    [&] { return train_stages_alone(run, sizes, how); },
    [&](std::int64_t step) {
      if (sizes.size() > 1) {
        auto const& size = sizes[size_of_step(step, o.steps, sizes.size())];
        model.use(size.table, size.lengths);
      }
    });
}

//! WeiPipe: ranks have groups of layers at home.
exit_status train_travelling(rank_run& run) {
  options& o = run.o;
  auto const table = travelling_system::plan(o);
  o.lengths.assign(static_cast<std::size_t>(o.microbatches), o.size.sequence);
  left_to_mpi<travelling_rank> here(run, table);
  travelling_rank& model = *here;
  auto const report = [&](auto const&) {
    auto const rows = model.rows();
    if (run.leads())
      report_travelled(o, rows);
  };
  return train_and_hold(
    run, model, report, [&] { return train_device(run, travelling_system::one_device(o, table)); });
}

template <class Stage>
using rank_of = model_on_rank<place_of_stage<Stage>>;

//! Stages in shards, each a rank.
exit_status train_tensor(rank_run& run) {
  options& o = run.o;
  auto const table = tensor_system::plan(o);
  o.lengths = whole_lengths(o.size, table);
  shard_of_stage const which{run.place.shard, run.chosen.layout.shards};
  left_to_mpi<shard_sums> kept(run.groups.shards, run.wait_for("the other shards"));
  shard_sums& sums = *kept;
  shard_device here{[&](std::vector<float> const& part) { return sums.begin(part); },
                    [&](std::size_t one, std::vector<float>& sum) { sums.end(one, sum); }};
  left_to_mpi<rank_of<tensor_stage>> stages(
    run, table, plan_maker{shard_slots(o.size, which)}, [&](auto&) {
      return make_shards(o.size, which, table, seed_of(o), std::span(&here, 1), run.place.device);
    });
  auto& model = *stages;
  auto const report = [&](auto const&) {
    std::vector<sum_counts> counts(static_cast<std::size_t>(run.chosen.layout.devices));
    int const bytes = sizeof(sum_counts);
    MPI_Allgather(
      &here.counts, bytes, MPI_BYTE, counts.data(), bytes, MPI_BYTE, run.groups.pipeline);
    auto const rows = model.slots();
    auto const ran = model.trace();
    if (run.leads())
      tensor_system::report_shard(o, rows, ran, counts);
  };
  return train_and_hold(
    run,
    model,
    report,
    [&] { return train_device(run, tensor_system::one_device(o, table)); },
    [&](std::int64_t) { here.counts = {}; });
}

//! Embedding and output layer in shards.
exit_status train_vocabulary(rank_run& run) {
  options& o = run.o;
  auto const table = vocabulary_system::plan(o);
  o.lengths = whole_lengths(o.size, table);
  int const barriers = barriers_of(o);
  left_to_mpi<rank_of<sharded_piece>> pieces(
    run, table, plan_maker{piece_slots(o.size, barriers)}, [&](auto& shared) {
      return make_pieces(o.size, barriers, table, seed_of(o), shared, run.place.device);
    });
  auto const report = [&](auto const&) {
    auto const rows = (*pieces).slots();
    if (run.leads())
      report_in_slots(o, vocabulary_system::in_slots, rows);
  };
  return train_and_hold(run, *pieces, report, [&] {
    return train_device(run, vocabulary_system::one_device(o, table));
  });
}

exit_status train_chosen(rank_options const& chosen, int rank, pp::store& everyone, progress& now) {
  auto text = find_text(chosen.training.text, GPT_EXAMPLE_README);
  agree_on_run(everyone,
               about_ranks(chosen, text),
               rank,
               pp::ranks_of(chosen.layout),
               "options",
               chosen.deadline);
  rank_run run(chosen, rank, std::move(text), everyone, now);
  if (has_shards_of_stages(run.o))
    return train_tensor(run);
  if (run.o.own.has_shards())
    return train_vocabulary(run);
  if (registry::find_schedule(run.o.schedule).traits.weights_travel)
    return train_travelling(run);
  using place = place_of_stage<pipeline_stage>;
  return run.o.clip == 0 ? train_stages<place>(run) : train_stages<clipped_stage<place>>(run);
}

//! True where a stage has thrown, and all processes live: MPI is as good as before. Where one has
//! died, its launcher has to start all of them again.
bool can_go_on(std::string_view reason) {
  return reason.find(" failed in ") != std::string_view::npos &&
         reason.find("the process of rank") == std::string_view::npos;
}

exit_status run(rank_options const& chosen, int rank) {
  progress now;
  for (;; ++now.attempt) {
    now.trains = false;
    // Rank 0's store outlives its report: it tells the other ranks what has failed. Every attempt
    // has a store, a runner and communicators of its own: nothing of an earlier one gets in.
    pp::mpi_store meeting(MPI_COMM_WORLD, chosen.deadline);
    try {
      return train_chosen(chosen, rank, meeting.line(), now);
    } catch (std::invalid_argument const&) {
      throw;
    } catch (std::exception const& error) {
      if (chosen.layout.devices != pp::ranks_of(chosen.layout)) {
        auto const group = pp::group_of(chosen.layout, pp::rank_axis::pipeline, rank);
        meeting.line().abort(group.name + ": " + error.what());
      }
      report("rank " + std::to_string(rank) + ", step " + std::to_string(now.step + 1) + ": " +
               error.what(),
             chosen.reports.empty() ? std::string()
                                    : chosen.reports + "/rank-" + std::to_string(rank) + ".txt");
      if (!now.trains || now.attempt >= chosen.restarts || !can_go_on(error.what()))
        return failed;
    }
  }
}

//! Options that cannot be run. Collective, with ranks that may have read better ones: then the
//! difference is told.
rank_options read_options_of_rank(std::vector<std::string_view> const& words, int rank, int ranks) {
  try {
    return read_rank_options(words, ranks);
  } catch (std::invalid_argument const& error) {
    rank_options const usual;
    pp::mpi_store meeting(MPI_COMM_WORLD, usual.deadline);
    agree_on_run(meeting.line(),
                 std::string("options=refused (") + error.what() + ")\n",
                 rank,
                 ranks,
                 "options",
                 usual.deadline);
    throw;
  }
}

} // namespace

int gpt::run_on_mpi(std::vector<std::string_view> const& words) {
  // When a process dies, mpirun sends SIGTERM to all others at once, and a second later what nobody
  // can ignore. That second is for their reports.
  example::keep_termination_for_later();
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int status = failed;
  try {
    auto const chosen = read_options_of_rank(words, rank, ranks);
    if (chosen.training.help) {
      std::fputs(rank == 0 ? usage_of_ranks : "", stdout);
      status = good;
    } else {
      status = run(chosen, rank);
    }
  } catch (std::invalid_argument const& error) {
    if (rank == 0)
      report(error.what());
    status = misused;
  } catch (std::exception const& error) {
    report("rank " + std::to_string(rank) + ": " + error.what());
  }
  std::fflush(stdout);
  if (status == failed) {
    // When another process ends, mpirun of Open MPI 4 loses its patience with the rest at once, and
    // kills them before they have reported.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::_Exit(status); // MPI_Finalize would wait for what never comes
  }
  MPI_Finalize();
  return status;
}
