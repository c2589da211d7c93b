// The keys of one feature while a batch is parsed.
#ifndef THERMOCLINE_WORKER_DATA_KEY_BUFFER_H_
#define THERMOCLINE_WORKER_DATA_KEY_BUFFER_H_

#include <algorithm>
#include <cstddef>

#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

// `keys` has room for more than `size`, and
// changes its size here alone. `weights` are as many as the keys, where the feature has them.
// It keeps one key more than a batch may have (`most`), so that the reader sees that there are too
// many, and no further one.
struct KeyBuffer {
  explicit KeyBuffer(UninitializedVector<Key>* keys, UninitializedVector<float>* weights = nullptr,
                     size_t most = kMaxTableLookups)
      : keys(keys),
        weights(weights),
        most(most),
        data(keys->data()),
        capacity(std::min(keys->size(), most + 1)) {}

  UninitializedVector<Key>* keys;
  UninitializedVector<float>* weights;
  size_t most;
  Key* data;  // Of `keys`.
  size_t capacity;
  size_t size = 0;

  void Add(Key key) {
    if (size == capacity) Grow();
    data[size++] = key;
  }
  void Grow() {
    if (size > most) {
      size = most;
      return;
    }
    capacity = std::min(std::max<size_t>(64, 2 * size), most + 1);
    keys->resize(capacity);
    data = keys->data();
  }
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_KEY_BUFFER_H_
