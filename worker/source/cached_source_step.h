// The state of a CachedSource in a step (cached_source.h): its transfers, and the rows that a step
// with a checkpoint writes back.
#ifndef THERMOCLINE_WORKER_SOURCE_CACHED_SOURCE_STEP_H_
#define THERMOCLINE_WORKER_SOURCE_CACHED_SOURCE_STEP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/completion.h"
#include "common/base/uninitialized_vector.h"
#include "kernels/transfer.h"
#include "worker/cache/cache_plan.h"
#include "worker/source/cached_source.h"

namespace thermocline {

// Rows of one table that are newer than the servers', on their way to them.
struct CachedSource::WrittenRows {
  CachedKeys keys;
  UninitializedVector<uint32_t> counts;  // [keys] lookups
  DownloadArena::Array<float> rows;      // [keys, row_floats]
};

// What goes between host and device for one table.
struct CachedSource::TableOfStep {
  UploadArena::Array<float> loaded_rows;    // [loaded, row_floats], or [loaded, dim] of a copy
  UploadArena::Array<float> bypassed_rows;  // [bypassed, dim]
  UninitializedVector<uint32_t> bypassed_counts;
  DownloadArena::Array<float> bypassed_gradients;  // [bypassed, dim]
  DownloadArena::Array<float> gradients;           // several workers: [num_unique, dim]
  WrittenRows evicted;                             // as they were before the step
  WrittenRows written_ahead;                       // they stay in the cache; values after the step
  DeviceSpan<const int32_t> rows;                  // the plan's, on the device
  DeviceSpan<const int32_t> bypassed_positions;    // the plan's, on the device
};

struct CachedSource::OfStep {
  std::vector<TableOfStep> tables;
  Completion fetched;
  std::shared_ptr<WrittenBack> lending;  // between Push and FinishPush
};

// All rows of the cache that are newer than the servers', for one push, in pieces. If there are few
// pieces, their values stay until the push is acknowledged. Otherwise they are lent to the session:
// a place is reused when every server has its piece, and the training thread waits for the
// acknowledgement, so that rows do not change and can be read again if a restarted server has lost
// pieces.
struct CachedSource::WrittenBack {
  struct Table {
    CachedKeys keys;
    UninitializedVector<uint32_t> counts;
    size_t first_float = 0;  // of its rows in the piece
  };
  struct Piece {
    std::vector<Table> tables;
    size_t floats = 0;
  };
  std::vector<Piece> pieces;
  std::vector<UninitializedVector<float>> places;  // piece p is at p modulo their number

  bool is_lent() const { return places.size() < pieces.size(); }
  float* PlaceOf(size_t piece) { return places[piece % places.size()].data(); }

  // Waits until the piece's place is free, and takes it. False: the push is over.
  bool TakePlace(size_t piece) {
    const auto is_free = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
      return is_over || PlaceIsFree(piece);
    };
    absl::MutexLock lock(&mutex, absl::Condition(&is_free));
    if (!is_over) is_here[piece] = true;
    return !is_over;
  }
  // Waits until a piece with a free place is wanted again, and takes its place. Empty: the push is
  // over.
  std::optional<size_t> TakeWanted() {
    std::optional<size_t> found;
    const auto has_news = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
      for (const size_t piece : wanted) {
        if (found.has_value()) break;
        if (PlaceIsFree(piece)) found = piece;
      }
      return is_over || found.has_value();
    };
    absl::MutexLock lock(&mutex, absl::Condition(&has_news));
    if (is_over) return std::nullopt;
    wanted.erase(*found);
    is_here[*found] = true;
    return found;
  }
  // The session's callbacks, on any thread.
  void Return(size_t piece) {
    absl::MutexLock lock(&mutex);
    is_here[piece] = false;
  }
  void Want(size_t piece) {
    absl::MutexLock lock(&mutex);
    wanted.insert(piece);
  }
  void End() {
    absl::MutexLock lock(&mutex);
    is_over = true;
  }

  bool PlaceIsFree(size_t piece) const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    for (size_t other = piece % places.size(); other < pieces.size(); other += places.size()) {
      if (is_here[other]) return false;
    }
    return true;
  }

  absl::Mutex mutex;
  std::vector<bool> is_here ABSL_GUARDED_BY(mutex);  // [pieces] released, and not returned
  std::set<size_t> wanted ABSL_GUARDED_BY(mutex);
  bool is_over ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SOURCE_CACHED_SOURCE_STEP_H_
