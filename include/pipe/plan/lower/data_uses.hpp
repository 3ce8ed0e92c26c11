// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

//! @file
//! @brief The uses of data by passes. Data have one instance per unit of a stage, per microbatch,
//! or per reader. The colouring of slots, their sizes, their proof and the checked mode share the
//! uses.

#include <pipe/flow/array_of.hpp>
#include <pipe/flow/dependencies.hpp>
#include <pipe/flow/flow.hpp>
#include <pipe/flow/pass.hpp>
#include <pipe/flow/pipeline.hpp>
#include <pipe/flow/resolve.hpp>
#include <pipe/plan/item.hpp>

#include <algorithm>
#include <cstdint>

namespace pipelining::inline v0_3::detail {

//! Where an instance of a datum is on a device.
struct held_datum {
  int slot = nothing;
  int maker = nothing;     //!< the item that made it, or that received it
  std::uint16_t pool = 0;  //!< of the slot
  std::uint16_t reads = 0; //!< that are still to come, of what other stages read
};

//! The maker of a datum without one yet, whose readers have been counted.
inline constexpr int made_by_reader = -2;

//! True when a pass brings a datum to life: it makes the datum, or is the first to add to it.
[[nodiscard]] constexpr bool
brings(pipeline_view const& over, does what, effect::chunk_order order, pass const& work) noexcept {
  return what == does::makes ||
         (what == does::adds_to &&
          work.chunk ==
            (order == effect::chunk_order::ascending ? 0 : over.chunks_of(work.microbatch) - 1));
}

//! One effect of a kind on a pipeline, worked out for walks over many passes. Of 24 bytes, as which
//! their lists are found without a multiplication.
struct alignas(8) data_use {
  std::uint8_t of = 0;    //!< the datum
  std::uint8_t pool = 0;  //!< where it lies
  std::int8_t stage = 0;  //!< of its own stage, of those before (-1), after (+1) or `group_step` it
  std::int8_t reader = 0; //!< it is there where such stages exist
  slot_place at = slot_place::none; //!< where a pass has its slot
  bool per_reader = false;          //!< there is one for each of them
  bool lies = false;                //!< in a slot, in this pipeline
  bool orders = false;              //!< says who runs first, and has no slot
  bool whole = false;               //!< one per unit
  does what = does::reads;          //!< what the pass does with it
  bool takes_part = false;          //!< lies, and is not the end of what the kind starts itself
  bool ends = false;                //!< may be the last use of its slot
  effect::chunk_order order = effect::chunk_order::ascending; //!< where it adds
  bool single = false; //!< about one instance, which `first` says
  int first = 0;       //!< the number of the first instance that a pass of stage 0 is about
};

//! Where the data of a pass are among those of all stages.
struct pass_place {
  int unit;       //!< what there is one of per unit
  int microbatch; //!< what there is one of per microbatch
};

//! The uses of data by each kind of pass, on a first, a last, an only and any other stage. Data of
//! stages that do not exist are left out.
struct data_uses {
  struct list {
    data_use uses[kind_of_pass::most_effects]{};
    int count = 0;
    int slots = 0;         //!< that a pass uses where stages are a chain
    int product = nothing; //!< the first instance of the first datum made for other stages
    int copied = nothing;  //!< of a copy: the pool that gives its bytes, on the device if it can

    [[nodiscard]] constexpr data_use const* begin() const noexcept { return uses; }
    [[nodiscard]] constexpr data_use const* end() const noexcept { return uses + count; }
  };

  pipeline_view over;
  int stage_count;
  int unit_count;
  int width;                          //!< the most neighbours of a stage on one side
  bool across;                        //!< edges lead to other chunks
  owned<unsigned char> position;      //!< [S], has_before + has_after where they do not
  list of[flow::most_kinds][4]{};     // [kind][has_before + has_after]
  bool completes[flow::most_kinds]{}; //!< whether the last of a kind on a stage completes its
                                      //!< gradients
  bool read_once; //!< each datum of another stage at most once, which need not be counted
  //! The streams that may read one slot without knowing of each other: streams of messages, and the
  //! engines of the device.
  int most_readers;
  //! Only data that kinds use are numbered: [data], [lines].
  std::int8_t line_of[flow::most_data]{};
  std::uint8_t datum_on[flow::most_data]{};
  int lines = 0;
  int row_size = 0; //!< the instances of the data of a stage

  constexpr explicit data_uses(pipeline_view const& whose)
      : over(whose), stage_count(whose.extents.stages()), unit_count(whose.units()),
        width(graph_width(whose)), across(whose.graph().names_chunks()), position(stage_count),
        most_readers(width + whose.declared->engines) {
    flow const& declared = *over.declared;
    for (int stage = 0; stage < stage_count; ++stage)
      position[stage] = static_cast<unsigned char>(over.graph().position({stage}));
    for (int number = 0; number < declared.kind_count; ++number)
      number_data(declared.kinds[number]);
    row_size = lines * width * unit_count;
    for (int number = 0; number < declared.kind_count; ++number) {
      completes[number] = completes_gradients(declared, static_cast<pass_kind>(number));
      for (int where = 0; where < 4; ++where)
        list_uses(number, where);
    }
    read_once = over.edges == nullptr && !shares_reads();
    for (int datum = 0; datum < declared.data_count; ++datum)
      read_once = read_once && has_one_reader(datum);
  }

  //! The uses of data by a pass.
  [[nodiscard]] constexpr list const& operator[](pass const& work) const noexcept {
    return of[index_of(work.kind)][across ? position_in_graph(over, work) : position[work.stage]];
  }
  //! The number of instances that a use is about: one for each stage whose data it uses, one for
  //! each reader of data per reader, else 1.
  [[nodiscard]] constexpr int count(data_use const& use, pass const& work) const noexcept {
    return use.single       ? 1
           : use.stage != 0 ? neighbours(over, work, use.stage)
                            : neighbours(over, work, use.reader);
  }
  //! Where the instances of a pass are, by the row of its stage: the stage, or its place among
  //! those of a device.
  [[nodiscard]] constexpr pass_place place_of(pass const& work, int row) const noexcept {
    int const first = row * row_size;
    return {first + over.unit_of(work), first + work.microbatch};
  }
  [[nodiscard]] constexpr pass_place place_of(pass const& work) const noexcept {
    return place_of(work, work.stage);
  }
  //! The number of the instance that a use is about, the `number`-th of `count`.
  [[nodiscard]] constexpr int index(data_use const& use,
                                    pass const& work,
                                    pass_place const& place,
                                    int number = 0) const noexcept {
    int const at = use.whole ? place.unit : place.microbatch;
    return use.single ? use.first + at : index_in_graph(use, work, number) + at;
  }
  //! The number of slots of a use.
  [[nodiscard]] constexpr int slots(data_use const& use, pass const& work) const noexcept {
    return use.takes_part ? count(use, work) : 0;
  }
  //! The number of slots that a pass uses.
  [[nodiscard]] constexpr int slots(pass const& work) const noexcept {
    list const& all = (*this)[work];
    if (over.edges == nullptr)
      return all.slots;
    int result = 0;
    for (data_use const& use : all)
      result += slots(use, work);
    return result;
  }
  //! True when several streams of a device may read the same slot of data for other stages.
  [[nodiscard]] constexpr bool shares_reads() const noexcept {
    return width > 1 || over.declared->reads_beside;
  }
  //! The stage and the chunk that own an instance, and its number among theirs.
  [[nodiscard]] constexpr stage_neighbour
  owner(data_use const& use, pass const& work, int number) const noexcept {
    return use.stage == 0 ? stage_neighbour{work.stage, number, work.chunk}
                          : neighbour(over, work, use.stage, number);
  }
  //! The number of the instance that a pass makes for a reader on another stage; `nothing` where
  //! there is no such reader.
  [[nodiscard]] constexpr int product(pass const& maker, int row, int reader) const noexcept {
    if (over.edges != nullptr)
      return product_in_graph(maker, reader);
    int const first = (*this)[maker].product; // with one reader at most
    return reader != 0 || first == nothing ? nothing : first + place_of(maker, row).unit;
  }
  //! The datum of an instance.
  [[nodiscard]] constexpr datum const& datum_of(int instance) const noexcept {
    return over.declared->data[datum_on[instance / (width * unit_count) % lines]];
  }
  //! How many instances there are.
  [[nodiscard]] constexpr int instances() const noexcept { return stage_count * row_size; }
  //! True when a pass brings a datum to life.
  [[nodiscard]] constexpr bool brings(data_use const& use, pass const& work) const noexcept {
    return detail::brings(over, use.what, use.order, work);
  }
  //! True when a pass gives its slot of a use back, or reads what other stages do, the last of whom
  //! gives it back.
  //! @param evaluates no backward pass reads what is kept
  [[nodiscard]] constexpr bool
  gives_back(data_use const& use, pass const& work, bool evaluates = false) const noexcept {
    if (!use.ends || use.stage != 0)
      return use.ends;
    return (use.what == does::frees || evaluates || goes_forward_only(over, work.stage)) &&
           (use.whole || ends_kind(work));
  }
  //! True when a pass is the last of its kind in its microbatch.
  [[nodiscard]] constexpr bool ends_kind(pass const& work) const noexcept {
    int const step = over.declared->links[index_of(work.kind)][0].chunk_step; // to the one before
    return step == 0 || work.chunk == (step > 0 ? 0 : over.chunks_of(work.microbatch) - 1);
  }

private:
  //! True when of the kinds that read a datum of other stages only one can run in a unit: all make
  //! the same row.
  [[nodiscard]] constexpr bool has_one_reader(int datum) const noexcept {
    flow const& declared = *over.declared;
    flow_set readers = 0;
    for (int kind = 0; kind < declared.kind_count; ++kind)
      for (data_use const& use : of[kind][has_before + has_after]) {
        if (use.of != datum || use.stage == 0)
          continue;
        if (holds(readers, kind))
          return false;
        readers |= only(kind);
      }
    return readers == 0 ||
           std::any_of(declared.makers,
                       declared.makers + declared.rows,
                       [readers](flow_set makers) { return (readers & ~makers) == 0; });
  }
  constexpr void number_data(kind_of_pass const& kind) noexcept {
    for (effect const& one : kind) {
      data_use const use = use_of(kind, one);
      bool const known = std::find(datum_on, datum_on + lines, one.of) != datum_on + lines;
      if (known || one.what == does::needs || (!use.lies && !use.orders))
        continue;
      datum_on[lines] = one.of;
      line_of[one.of] = static_cast<std::int8_t>(lines++);
    }
  }
  //! @param where with a stage before (1), with one after (2)
  constexpr void list_uses(int number, int where) noexcept {
    flow const& declared = *over.declared;
    kind_of_pass const& kind = declared.kinds[number];
    list& result = of[number][where];
    for (int e = 0; e < kind.effect_count; ++e) {
      if (kind.effects[e].what == does::needs)
        continue; // follows from where it stands
      data_use use = use_of(kind, kind.effects[e]);
      use.at = declared.places[number][e];
      use.single = over.edges == nullptr || (use.stage == 0 && !use.per_reader);
      use.first = line_of[use.of] * width * unit_count + (use.single ? use.stage : 0) * row_size;
      int const step = use.stage == 0 ? use.reader : use.stage;
      bool const there =
        step == 0 || step == group_step || (step < 0 ? where % 2 == 1 : where / 2 == 1);
      if (!there || (!use.lies && !use.orders && use.stage == 0))
        continue;
      result.slots += use.takes_part ? 1 : 0;
      result.product = result.product == nothing && is_product(use) ? use.first : result.product;
      bool const on_device = declared.data[use.of].lives == residence::device;
      if (is_copy(kind) && use.takes_part && (on_device || result.copied == nothing))
        result.copied = use.pool;
      result.uses[result.count++] = use;
    }
  }
  //! True for a datum that a kind makes for other stages.
  [[nodiscard]] constexpr bool is_product(data_use const& use) const noexcept {
    return use.what == does::makes && use.reader != 0 && !over.declared->freed[use.of];
  }
  // By themselves, so that `product` and `index` stay small enough to be inlined.
  [[nodiscard, gnu::noinline]] constexpr int product_in_graph(pass const& maker,
                                                              int reader) const noexcept {
    for (data_use const& use : (*this)[maker]) {
      int const count = is_product(use) ? neighbours(over, maker, use.reader) : 0;
      if (reader < count)
        return use.first + place_of(maker).unit + (use.per_reader ? reader * unit_count : 0);
      reader -= count;
    }
    return nothing;
  }
  [[nodiscard, gnu::noinline]] constexpr int
  index_in_graph(data_use const& use, pass const& work, int number) const noexcept {
    stage_neighbour const whose = owner(use, work, number);
    int const further = (whose.stage - work.stage) * row_size;
    int const reader = use.per_reader ? whose.number * unit_count : 0;
    return use.first + further + reader + whose.chunk - work.chunk;
  }
  [[nodiscard]] constexpr data_use use_of(kind_of_pass const& kind,
                                          effect const& one) const noexcept {
    flow const& declared = *over.declared;
    datum const& datum_of = declared.data[one.of];
    data_use use;
    use.of = one.of;
    use.pool = datum_of.pool;
    use.stage = static_cast<std::int8_t>(step_to(one.stage));
    use.reader = static_cast<std::int8_t>(to_readers(over.edges, declared.reader_step[one.of]));
    use.orders = datum_of.lives == residence::nowhere || one.what == does::follows;
    use.lies = !use.orders && (!datum_of.only_chunked || over.extents.chunks > 1);
    use.per_reader = datum_of.instance == datum::per::reader;
    use.whole = datum_of.instance != datum::per::microbatch;
    use.what = one.what;
    bool const frees = one.what == does::frees;
    bool const works_in =
      use.stage == 0 && detail::brings(kind, one.of) && has_effect(kind, does::frees, one.of);
    use.takes_part = use.lies && !(works_in && frees);
    // Where no kind that would free it runs, whoever changes it does so last.
    bool const left_alone = declared.freed[one.of] && one.what != does::reads && !works_in;
    use.ends = use.stage != 0 ? use.takes_part : use.lies && (frees || left_alone);
    use.order = one.order;
    return use;
  }
};

} // namespace pipelining::inline v0_3::detail
