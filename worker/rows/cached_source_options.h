// What a worker that holds rows on its device is told of its cache.
#ifndef THERMOCLINE_WORKER_ROWS_CACHED_SOURCE_OPTIONS_H_
#define THERMOCLINE_WORKER_ROWS_CACHED_SOURCE_OPTIONS_H_

#include <algorithm>
#include <cstdint>

#include "common/base/ids.h"
#include "worker/rows/device_slab.h"
#include "worker/rows/embedding_source.h"

namespace thermocline {

class HotRows;

struct CachedSourceOptions : RemoteSourceOptions {
  // Several workers: every row has one of them as its owner, who alone holds and updates it
  // (cache_stage.h). Else what they hold are copies.
  bool shares_rows = false;
  Step start_step{0};
  CacheLayout layout;
  // Where set, these rows are held from the first step to the last, and no others (Cache::STATIC);
  // the layout is theirs, with staging. One worker alone. They outlive the source and its stage.
  const HotRows* static_rows = nullptr;
  int window_steps = 8;
  int prefetch_steps = 2;  // less than window_steps
  // Where rows are updated here: of those held, the ones that are newer than their server's are at
  // most so many bytes a server after each step, those of all workers together, as evenly as keys
  // are spread. It bounds the push of a checkpoint, far below what a server takes of one push.
  uint64_t max_unwritten_bytes = uint64_t{1} << 30;
  // The rows of a write-back, and static ones when they are loaded, are on the host in pieces of
  // about so many bytes, a few at a time.
  uint64_t write_back_piece_bytes = uint64_t{32} << 20;

  // Whether rows held are updated in their place; else they come without optimizer state.
  bool updates_rows() const { return num_workers == 1 || shares_rows; }
  // Whether servers may forget rows of a table, in any step.
  bool servers_forget_rows() const {
    return std::any_of(tables.begin(), tables.end(), [](const TableLayout& table) {
      return table.unused_steps > 0 || table.max_rows > 0;
    });
  }
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_CACHED_SOURCE_OPTIONS_H_
