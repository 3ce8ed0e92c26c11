// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <pipe/cluster/checkpoint.hpp>
#include <pipe/cluster/rank_layout.hpp>
#include <pipe/cluster/safetensors.hpp>
#include <pipe/cluster/store.hpp>
#include <pipe/cluster/store_server.hpp>
#include <pipe/cluster/tensor_checkpoint.hpp>
#include <pipe/cluster/tensor_index.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <tests/support/raw_store.hpp>
#include <tests/support/temporary_folder.hpp>
#include <tests/support/text.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace pp = pipelining;

namespace {

std::string content_of(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void set_content(std::string const& path, std::string const& text) {
  std::ofstream(path, std::ios::binary) << text;
}

using steps = std::vector<std::int64_t>;

//! Layers cut evenly into P V stages, of which the devices have every P-th.
struct pipeline {
  int devices = 1;
  int stages_per_device = 1;

  [[nodiscard]] int device_of(int layer, int layers) const {
    int const stages = devices * stages_per_device;
    int stage = 0;
    for (int before = 0; stage < stages; ++stage) {
      before += layers / stages + (stage < layers % stages ? 1 : 0);
      if (layer < before)
        break;
    }
    return stage % devices;
  }
};

constexpr int layers = 26; // more than most pipelines have stages

//! Layer `layer` has so many weights, and as many means.
std::size_t weights_of(int layer) {
  return static_cast<std::size_t>(3 + layer % 5);
}

//! The layers that a rank has.
struct rank_state {
  std::map<int, std::vector<float>> weights{};
  std::map<int, std::vector<double>> means{};
  std::vector<std::uint8_t> position = std::vector<std::uint8_t>(4);
  std::vector<pp::state_tensor> tensors{};

  rank_state(pipeline const& of, int device, float filled) {
    for (int layer = 0; layer < layers; ++layer)
      if (of.device_of(layer, layers) == device) {
        auto& w = weights[layer] = std::vector<float>(weights_of(layer), filled);
        auto& m = means[layer] = std::vector<double>(weights_of(layer), filled);
        std::string const name = "layers." + std::to_string(layer);
        tensors.push_back(pp::tensor_of(name + ".value", w));
        tensors.push_back(pp::tensor_of(name + ".mean", m));
      }
    tensors.push_back(pp::tensor_of("position", position));
  }
  rank_state(rank_state const&) = delete;
  rank_state& operator=(rank_state const&) = delete;
  ~rank_state() = default;

  //! What every number must be.
  void fill() {
    for (auto& [layer, numbers] : weights)
      for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = static_cast<float>(1000 * layer) + static_cast<float>(i);
    for (auto& [layer, numbers] : means)
      for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = -1000.0 * layer - static_cast<double>(i);
    position = {4, 3, 2, 1};
    tensors.back() = pp::tensor_of("position", position);
  }
};

pp::checkpoint_place place_of(std::string const& folder, int device, pipeline const& of) {
  return {folder, "rank-" + std::to_string(device), "model=x\n", {.devices = of.devices}};
}

void save_all(std::string const& folder, pipeline const& of, std::int64_t step) {
  for (int device = 0; device < of.devices; ++device) {
    rank_state state(of, device, 0);
    state.fill();
    pp::save_tensors(place_of(folder, device, of), step, state.tensors);
  }
}

std::vector<pipeline> pipelines() {
  bool const all = std::getenv("PIPELINING_TEST_EVERYTHING") != nullptr;
  std::vector<pipeline> result;
  for (int devices = 1; devices <= 8; ++devices)
    for (int per_device = 1; per_device <= 8; ++per_device)
      if (all || per_device <= 2 || (per_device == 3 && devices % 3 != 1))
        result.push_back({devices, per_device});
  return result;
}

} // namespace

TEST_CASE("any layout loads what any other has saved, each byte once, and moves what it must") {
  for (pipeline const& before : pipelines()) {
    support::temporary_folder const there("tensors");
    save_all(there.path(), before, 7);
    for (pipeline const& after : pipelines()) {
      CAPTURE(before.devices);
      CAPTURE(before.stages_per_device);
      CAPTURE(after.devices);
      CAPTURE(after.stages_per_device);
      std::int64_t read = 0;
      std::int64_t moved = 0;
      for (int device = 0; device < after.devices; ++device) {
        rank_state state(after, device, -1);
        rank_state expected(after, device, 0);
        expected.fill();
        auto const bytes =
          pp::load_tensors(place_of(there.path(), device, after), 7, state.tensors);
        REQUIRE(state.weights == expected.weights);
        REQUIRE(state.means == expected.means);
        REQUIRE(state.position == expected.position);
        // Every rank wants the position; one that is new has not written it.
        read += bytes.read - 4;
        moved += bytes.moved - (device < before.devices ? 0 : 4);
      }
      std::int64_t all = 0;
      std::int64_t elsewhere = 0;
      for (int layer = 0; layer < layers; ++layer) {
        auto const bytes = static_cast<std::int64_t>(12 * weights_of(layer));
        all += bytes;
        elsewhere += before.device_of(layer, layers) == after.device_of(layer, layers) ? 0 : bytes;
      }
      CHECK(read == all);
      CHECK(moved == elsewhere);
    }
  }
}

TEST_CASE("of a file only those tensors are read that are wanted") {
  support::temporary_folder const there("tensors");
  save_all(there.path(), {2, 1}, 7);
  pipeline const after{4, 1};
  rank_state state(after, 0, -1);
  rank_state expected(after, 0, 0);
  expected.fill();
  // Spoil all numbers of other layers.
  for (int rank = 0; rank < 2; ++rank) {
    std::string const path = there.path() + "/rank-" + std::to_string(rank) + ".step-7.safetensors";
    std::string text = content_of(path);
    auto const header =
      pp::detail::read_safetensors_head(path, text, static_cast<std::int64_t>(text.size()));
    for (auto const& each : header.tensors)
      if (std::none_of(state.tensors.begin(), state.tensors.end(), [&](auto const& wanted) {
            return wanted.name == each.name;
          }))
        std::fill(
          text.begin() + header.bytes + each.begin, text.begin() + header.bytes + each.end, 'x');
    set_content(path, text);
  }
  (void)pp::load_tensors(place_of(there.path(), 0, after), 7, state.tensors);
  CHECK(state.weights == expected.weights);
  CHECK_THROWS_AS(
    [&] {
      rank_state other(after, 1, -1);
      (void)pp::load_tensors(place_of(there.path(), 1, after), 7, other.tensors);
    }(),
    std::runtime_error);
}

namespace {

//! A matrix in boxes of rows and columns, cut as evenly as they go.
struct cut_matrix {
  std::vector<std::vector<std::int64_t>> numbers{};
  std::vector<pp::state_tensor> boxes{};

  cut_matrix(std::int64_t rows, std::int64_t columns, int down, int across) {
    numbers.reserve(static_cast<std::size_t>(down * across));
    for (int i = 0; i < down; ++i)
      for (int j = 0; j < across; ++j) {
        std::vector<std::int64_t> const first{rows * i / down, columns * j / across};
        std::vector<std::int64_t> const shape{rows * (i + 1) / down - first[0],
                                              columns * (j + 1) / across - first[1]};
        auto& box = numbers.emplace_back(static_cast<std::size_t>(shape[0] * shape[1]));
        boxes.push_back(pp::tensor_of("matrix", box, shape));
        boxes.back().whole = {rows, columns};
        boxes.back().first = first;
      }
  }
  //! Calls visit(number, row, column).
  template <class Visit>
  void each(Visit visit) {
    for (std::size_t k = 0; k < boxes.size(); ++k)
      for (std::size_t i = 0; i < numbers[k].size(); ++i) {
        auto const at = static_cast<std::int64_t>(i);
        visit(numbers[k][i],
              boxes[k].first[0] + at / boxes[k].shape[1],
              boxes[k].first[1] + at % boxes[k].shape[1]);
      }
  }
};

} // namespace

TEST_CASE("shards of a tensor load what other shards have saved") {
  std::pair<int, int> const cuts[] = {{1, 1}, {2, 1}, {1, 2}, {3, 2}, {2, 4}, {6, 7}};
  for (auto const& [down, across] : cuts) {
    support::temporary_folder const there("tensors");
    cut_matrix saved(6, 7, down, across);
    saved.each(
      [](std::int64_t& x, std::int64_t row, std::int64_t column) { x = 100 * row + column; });
    for (std::size_t k = 0; k < saved.boxes.size(); ++k)
      pp::save_tensors({there.path(), "shard-" + std::to_string(k)}, 1, {&saved.boxes[k], 1});
    for (auto const& [other_down, other_across] : cuts) {
      cut_matrix loaded(6, 7, other_down, other_across);
      for (auto& box : loaded.boxes)
        (void)pp::load_tensors({there.path(), "x"}, 1, {&box, 1});
      int wrong = 0;
      loaded.each([&](std::int64_t x, std::int64_t row, std::int64_t column) {
        wrong += x != 100 * row + column ? 1 : 0;
      });
      CHECK(wrong == 0);
    }
    // A shard that is missing is missed.
    if (saved.boxes.size() > 1) {
      std::filesystem::remove(there.path() + "/shard-1.step-1.index.json");
      cut_matrix loaded(6, 7, 1, 1);
      CHECK(support::thrown_by([&] {
              (void)pp::load_tensors({there.path(), "x"}, 1, loaded.boxes);
            }).find(" of 42 numbers of tensor \"matrix\"; a rank's file is missing or not whole") !=
            std::string::npos);
    }
  }
}

namespace {

//! Two ranks with a tensor each; what a third one reads of both.
struct small_run {
  support::temporary_folder there{"tensors"};
  std::vector<float> one{1, 2, 3};
  std::vector<float> other{4, 5, 6};
  std::vector<float> read_one = std::vector<float>(3, 9);
  std::vector<float> read_other = std::vector<float>(3, 9);
  std::vector<pp::state_tensor> wanted{pp::tensor_of("one", read_one),
                                       pp::tensor_of("other", read_other)};

  small_run() { save(5); }
  void save(std::int64_t step) {
    pp::state_tensor const a = pp::tensor_of("one", one);
    pp::state_tensor const b = pp::tensor_of("other", other);
    pp::save_tensors(of("rank-0"), step, {&a, 1});
    pp::save_tensors(of("rank-1"), step, {&b, 1});
  }
  [[nodiscard]] pp::checkpoint_place of(std::string const& owner,
                                        std::string const& about = "seed=1\n") const {
    return {there.path(), owner, about};
  }
  [[nodiscard]] std::string path(std::string const& name) const {
    return there.path() + '/' + name;
  }
  //! What loading says; nothing may have been overwritten then.
  std::string refusal(std::string const& about = "seed=1\n") {
    std::string const said =
      support::thrown_by([&] { (void)pp::load_tensors(of("rank-0", about), 5, wanted); });
    bool const untouched =
      read_one == std::vector<float>(3, 9) && read_other == std::vector<float>(3, 9);
    CHECK(untouched == !said.empty());
    read_one.assign(3, 9); // where it is: the tensors know no other place
    read_other.assign(3, 9);
    return said;
  }
};

std::vector<std::string> const names = {"rank-0.step-5.safetensors",
                                        "rank-0.step-5.index.json",
                                        "rank-1.step-5.safetensors",
                                        "rank-1.step-5.index.json"};

} // namespace

TEST_CASE(
  "a bit that has changed, and an end that is missing, are found before anything is overwritten") {
  small_run run;
  CHECK(run.refusal().empty());
  CHECK(run.there.files() == std::set<std::string>(names.begin(), names.end()));
  for (std::string const& name : names) {
    std::string const good = content_of(run.path(name));
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1 << at % 8);
      set_content(run.path(name), bad);
      REQUIRE(!run.refusal().empty());
      set_content(run.path(name), good.substr(0, at));
      REQUIRE(!run.refusal().empty());
    }
    set_content(run.path(name), good + 'x');
    CHECK(!run.refusal().empty());
    std::filesystem::remove(run.path(name));
    CHECK(!run.refusal().empty());
    set_content(run.path(name), good);
    CHECK(run.refusal().empty());
  }
}

TEST_CASE("files that were exchanged, and those of other runs and models, are refused") {
  small_run run;
  auto const exchange = [&](std::string const& a, std::string const& b) {
    std::filesystem::rename(run.path(a), run.path("kept"));
    std::filesystem::rename(run.path(b), run.path(a));
    std::filesystem::rename(run.path("kept"), run.path(b));
  };
  exchange(names[0], names[2]);
  CHECK(
    run.refusal().find("rank-0.step-5.safetensors belongs elsewhere: the file has owner=rank-1, "
                       "this run has owner=rank-0; ") != std::string::npos);
  exchange(names[1], names[3]);
  CHECK(run.refusal().find("rank-0.step-5.index.json belongs elsewhere: it is the index of "
                           "rank-1.step-5.safetensors") != std::string::npos);
  exchange(names[0], names[2]);
  CHECK(!run.refusal().empty());
  exchange(names[1], names[3]);
  CHECK(run.refusal().empty());
  CHECK(
    run.refusal("seed=2\n").find("belongs elsewhere: the file has seed=1, this run has seed=2") !=
    std::string::npos);
  // Of another run it is not written over, either.
  pp::state_tensor const mine = pp::tensor_of("one", run.one);
  auto const before = content_of(run.path(names[0]));
  CHECK_THROWS_AS(pp::save_tensors(run.of("rank-0", "seed=2\n"), 6, {&mine, 1}),
                  std::runtime_error);
  CHECK(run.there.files() == std::set<std::string>(names.begin(), names.end()));
  CHECK(content_of(run.path(names[0])) == before);
  // Another model.
  std::vector<float> four(4);
  std::vector<double> wide(3);
  pp::state_tensor wanted = pp::tensor_of("one", four);
  CHECK(support::thrown_by([&] {
          (void)pp::load_tensors(run.of("x"), 5, {&wanted, 1});
        }).find("is of another model: tensor \"one\" is F32[3] there, and F32[4] in this run") !=
        std::string::npos);
  wanted = pp::tensor_of("one", wide);
  CHECK(support::thrown_by([&] {
          (void)pp::load_tensors(run.of("x"), 5, {&wanted, 1});
        }).find("F32[3] there, and F64[3] in this run") != std::string::npos);
  wanted = pp::tensor_of("third", wide);
  CHECK(support::thrown_by([&] {
          (void)pp::load_tensors(run.of("x"), 5, {&wanted, 1});
        }).find(" after step 5 has 0 of 3 numbers of tensor \"third\"") != std::string::npos);
  // What is no file could be waited for for ever.
  std::filesystem::remove(run.path(names[1]));
  CHECK(::mkfifo(run.path(names[1]).c_str(), 0600) == 0);
  CHECK(run.refusal().find("is a FIFO, not a file") != std::string::npos);
}

TEST_CASE(
  "a box that is nowhere, and an index without end, are refused whatever their checksums say") {
  support::temporary_folder const there("tensors");
  pp::checkpoint_place const place{there.path(), "a", "x=1\n"};
  std::vector<float> numbers(2);
  std::map<std::string, bool> const boxes{{"[4] [2]", true},
                                          {"[4] [3]", false},
                                          {"[1] [0]", false},
                                          {"[4] [9223372036854775807]", false},
                                          {"[4,1] [2,0]", false},
                                          {"[4] [2] ", true},
                                          {"[4] [2] x", false},
                                          {"", false}};
  for (auto const& each : boxes) {
    std::string const& box = each.first;
    bool const good = each.second;
    CAPTURE(box);
    std::vector<pp::detail::safetensor> tensors{{.name = "w", .dtype = "F32", .shape = {2}}};
    pp::detail::lay_out(tensors);
    auto metadata = pp::detail::file_metadata(place, "a", 1);
    metadata["box of w"] = box;
    std::string const head = pp::detail::safetensors_head(tensors, metadata);
    std::string const data(8, '\0');
    pp::detail::tensor_index const index{
      "a.step-1.safetensors",
      8,
      pp::detail::checksum_text(pp::detail::crc32_of(head)),
      {{"w", pp::detail::checksum_text(pp::detail::crc32_of(data))}}};
    set_content(there.path() + "/a.step-1.safetensors", head + data);
    set_content(there.path() + "/a.step-1.index.json", pp::detail::index_text(index));
    auto wanted = pp::tensor_of("w", numbers);
    wanted.whole = {4};
    wanted.first = {2};
    std::string const said = support::thrown_by([&] {
      (void)pp::load_tensors(place, 1, {&wanted, 1});
    });
    CHECK(said.empty() == good);
    CHECK(pp::checkpoints_of(place, {&wanted, 1}) == (good ? steps{1} : steps{}));
  }
  // Bytes that the disk does not have, so they cost nothing to write.
  std::filesystem::resize_file(there.path() + "/a.step-1.index.json", 1ULL << 40);
  auto const wanted = pp::tensor_of("w", numbers);
  CHECK(support::thrown_by([&] {
          (void)pp::load_tensors(place, 1, {&wanted, 1});
        }).find("has more bytes than a header of its file may have") != std::string::npos);
}

TEST_CASE("replicas may write the same, and nothing else in the same place") {
  small_run run;
  pp::state_tensor const mine = pp::tensor_of("one", run.one);
  pp::save_tensors(run.of("rank-2"), 5, {&mine, 1});
  CHECK(run.refusal().empty());
  run.one[1] = 7;
  pp::save_tensors(run.of("rank-2"), 5, {&mine, 1});
  CHECK(run.refusal().find("have other numbers of tensor \"one\" in the same place") !=
        std::string::npos);
  // Boxes that overlap without being the same are of two layouts.
  std::vector<float> two{1, 2};
  pp::state_tensor box = pp::tensor_of("one", two);
  box.whole = {3};
  box.first = {0};
  pp::save_tensors(run.of("rank-2"), 5, {&box, 1});
  CHECK(run.refusal().find("in the same place") != std::string::npos);
}

TEST_CASE("the newest two stay, and files of ranks that are no more go with the step they are of") {
  small_run run;
  run.save(6);
  run.save(7);
  CHECK(run.there.files().size() == 8);
  CHECK(pp::checkpoints_of(run.of("rank-0"), run.wanted) == steps{6, 7});
  // One rank goes on alone.
  std::vector<float> one(3);
  std::vector<float> other(3);
  std::vector<pp::state_tensor> const all{pp::tensor_of("one", one), pp::tensor_of("other", other)};
  (void)pp::load_tensors(run.of("rank-0"), 7, all);
  CHECK(one == run.one);
  CHECK(other == run.other);
  pp::save_tensors(run.of("rank-0"), 8, all);
  CHECK(pp::checkpoints_of(run.of("rank-0"), run.wanted) == steps{7, 8});
  pp::save_tensors(run.of("rank-0"), 9, all);
  CHECK(run.there.files() == std::set<std::string>{"rank-0.step-8.index.json",
                                                   "rank-0.step-8.safetensors",
                                                   "rank-0.step-9.index.json",
                                                   "rank-0.step-9.safetensors"});
  // A file whose index was not written yet does not count; nor does a draft.
  std::filesystem::remove(run.path("rank-0.step-9.index.json"));
  set_content(run.path("rank-0.draft"), "x");
  CHECK(pp::checkpoints_of(run.of("rank-0"), run.wanted) == steps{8});
}

TEST_CASE("ranks of another layout agree on a step that has all of theirs" *
          doctest::test_suite("threads")) {
  support::temporary_folder const there("tensors");
  save_all(there.path(), {4, 1}, 10);
  save_all(there.path(), {4, 1}, 20);
  // Of step 20 a rank's index is missing: it was killed.
  std::filesystem::remove(there.path() + "/rank-3.step-20.index.json");
  pp::store_server server({.job = "job", .ranks = 3});
  std::vector<std::thread> ranks;
  std::vector<std::optional<std::int64_t>> chosen(3);
  pipeline const after{3, 2};
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      rank_state state(after, rank, -1);
      pp::store line({.port = server.port(), .job = "job"}, rank, support::patience);
      chosen[static_cast<std::size_t>(rank)] =
        pp::agree_on_checkpoint(line,
                                place_of(there.path(), rank, after),
                                std::span<pp::state_tensor const>(state.tensors),
                                rank,
                                3,
                                "attempt",
                                support::patience);
    });
  for (auto& each : ranks)
    each.join();
  for (auto const& each : chosen)
    CHECK(each == 10);
  for (std::string const& name : there.files())
    CHECK(name.find("step-10.") != std::string::npos);
  CHECK(there.files().size() == 8);
}

TEST_CASE("what cannot be a tensor is refused") {
  support::temporary_folder const there("tensors");
  std::vector<float> numbers(6);
  auto const refused = [&](pp::state_tensor const& tensor, std::string const& owner = "a") {
    return support::thrown_by([&] { pp::save_tensors({there.path(), owner}, 1, {&tensor, 1}); });
  };
  auto tensor = pp::tensor_of("a", numbers, {2, 3});
  tensor.whole = {2, 4};
  tensor.first = {0, 2};
  CHECK(refused(tensor) == "checkpoint: tensor \"a\" goes beyond the whole of it on axis 1");
  tensor.first = {0};
  CHECK(refused(tensor) == "checkpoint: tensor \"a\" has not as many axes as the whole of it");
  tensor = pp::tensor_of("a", numbers, {2, 4});
  CHECK(refused(tensor) ==
        "checkpoint: tensor \"a\" has 24 bytes here, but not its shape [2,4] of F32");
  tensor = pp::tensor_of("a", numbers);
  CHECK(refused(tensor, "a/b").find("must be one line without '/'") != std::string::npos);
  std::vector<pp::state_tensor> const twice{tensor, tensor};
  CHECK(support::thrown_by([&] {
          pp::save_tensors({there.path(), "a"}, 1, twice);
        }) == "safetensors: tensor \"a\" has a name that is taken");
  CHECK(there.files().empty());
}

TEST_CASE("the checksum is that of zlib") {
  // Check value of the catalogue of parametrised CRCs, and the others by Python's zlib.crc32.
  CHECK(pp::detail::crc32_of("123456789") == 0xcbf43926U);
  CHECK(pp::detail::crc32_of("") == 0U);
  CHECK(pp::detail::crc32_of("a") == 0xe8b7be43U);
  std::string all;
  for (int i = 0; i < 1000; ++i)
    all += static_cast<char>(i * i % 251);
  CHECK(pp::detail::crc32_of(all) == 0x5e35712bU);
}
