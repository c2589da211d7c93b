// The hot rows of a job (FAE: Adnan et al., VLDB 2022). Every worker holds all of them.
#ifndef THERMOCLINE_WORKER_PLAN_HOT_SET_H_
#define THERMOCLINE_WORKER_PLAN_HOT_SET_H_

#include <cstdint>
#include <vector>

#include "common/base/hash.h"
#include "common/base/ids.h"

namespace thermocline {

struct HotSet {
  std::vector<std::vector<Key>> tables;  // [JobTables::sparse] Ascending, each key once.
  Digest digest;                         // The digest of all keys with their tables.

  int64_t num_rows() const {
    int64_t rows = 0;
    for (const std::vector<Key>& keys : tables) rows += static_cast<int64_t>(keys.size());
    return rows;
  }
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_PLAN_HOT_SET_H_
