// Collects the keys of one feature while a batch is parsed.
#ifndef THERMOCLINE_WORKER_DATA_KEY_BUFFER_H_
#define THERMOCLINE_WORKER_DATA_KEY_BUFFER_H_

#include <algorithm>
#include <cstddef>

#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

// Appends keys to a vector that is larger than the `size` keys it holds, so that most calls of Add
// write one number. It keeps up to `most` + 1 keys and drops further ones: a batch may have `most`,
// and its reader has to see that there are too many.
struct KeyBuffer {
  explicit KeyBuffer(UninitializedVector<Key>* keys, UninitializedVector<float>* weights = nullptr,
                     size_t most = kMaxTableLookups)
      : keys(keys),
        weights(weights),
        most(most),
        data(keys->data()),
        capacity(std::min(keys->size(), most + 1)) {}

  UninitializedVector<Key>* keys;       // Only this object changes its size.
  UninitializedVector<float>* weights;  // [size] once a list is read; unused without weights.
  size_t most;
  Key* data;  // keys->data()
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
