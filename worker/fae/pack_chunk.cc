// A batch as bytes, and back.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "worker/fae/pack_bytes.h"
#include "worker/fae/pack_format.h"

namespace thermocline {
namespace {

struct ChunkHeader {
  uint32_t crc = 0;  // of all that follows it
  uint32_t is_hot = 0;
  uint64_t bytes = 0;  // of the chunk
  int64_t batch = 0;
  uint32_t rows = 0;
  uint32_t num_dense = 0;
  uint32_t num_features = 0;
  uint32_t has_weights = 0;
  uint32_t has_groups = 0;
  uint32_t more_tasks = 0;  // Labels of a row beyond the first.

  uint64_t tasks() const { return uint64_t{more_tasks} + 1; }
};
static_assert(sizeof(ChunkHeader) == 48);

struct ChunkFeature {
  uint64_t keys = 0;
  uint32_t has_weights = 0;
  uint32_t has_offsets = 0;  // 0: each bag is one key.
};
static_assert(sizeof(ChunkFeature) == 16);

constexpr uint64_t kAlignment = 8;

bool HasOneKeyEach(const FeatureLookups& feature, int rows) {
  if (feature.keys.size() != static_cast<size_t>(rows)) return false;
  for (int i = 0; i <= rows; ++i) {
    if (feature.offsets[i] != i) return false;
  }
  return true;
}

absl::Status Damaged(const ChunkName& name) {
  return absl::DataLossError(
      absl::StrCat("is damaged in ", name.is_hot ? "hot" : "cold", " batch ", name.batch));
}

// Where the parts of a chunk are.
class ChunkView {
 public:
  struct Feature {
    ChunkFeature about;
    const char* keys = nullptr;
    const char* offsets = nullptr;  // [rows + 1]; null: each bag is one key
    const char* weights = nullptr;
  };

  // False: the parts don't add up to the bytes.
  bool Find(absl::string_view bytes) {
    if (bytes.size() < sizeof(header)) return false;
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (header.bytes != bytes.size() || header.crc != Crc32c(bytes.data() + 4, bytes.size() - 4)) {
      return false;
    }
    PackTaker taker(bytes.substr(sizeof(header)));
    const auto take = [&taker](uint64_t bytes_each, uint64_t n) {
      return taker.TakeBytes(bytes_each, n).data();
    };
    const uint64_t rows = header.rows;
    const char* const about = take(sizeof(ChunkFeature), header.num_features);
    if (!taker.is_good()) return false;
    features.resize(header.num_features);
    for (size_t f = 0; f < features.size(); ++f) {
      std::memcpy(&features[f].about, about + f * sizeof(ChunkFeature), sizeof(ChunkFeature));
    }
    if (header.has_groups) groups = take(sizeof(uint64_t), rows);
    for (Feature& feature : features) feature.keys = take(sizeof(Key), feature.about.keys);
    for (Feature& feature : features) {
      if (feature.about.has_offsets) feature.offsets = take(sizeof(int32_t), rows + 1);
      if (feature.about.has_weights) feature.weights = take(sizeof(float), feature.about.keys);
    }
    labels = take(sizeof(float) * header.tasks(), rows);
    if (header.has_weights) weights = take(sizeof(float) * header.tasks(), rows);
    dense = take(sizeof(float) * header.num_dense, rows);
    return taker.is_good() && taker.left() < kAlignment;
  }

  ChunkHeader header;
  std::vector<Feature> features;
  const char* groups = nullptr;
  const char* labels = nullptr;
  const char* weights = nullptr;
  const char* dense = nullptr;
};

template <typename Vector>
void CopyTo(const char* from, int64_t begin, int64_t end, Vector* to) {
  using T = typename Vector::value_type;
  to->resize(static_cast<size_t>(end - begin));
  if (end > begin) {
    std::memcpy(to->data(), from + begin * static_cast<int64_t>(sizeof(T)),
                static_cast<size_t>(end - begin) * sizeof(T));
  }
}

// The bags of rows [begin, end). False: the offsets are none.
bool CopyLookups(const ChunkView::Feature& from, int64_t begin, int64_t end, FeatureLookups* to) {
  int64_t first = begin, last = end;
  if (from.offsets == nullptr) {
    if (static_cast<uint64_t>(end) > from.about.keys) return false;
    to->offsets.resize(static_cast<size_t>(end - begin + 1));
    for (int64_t i = begin; i <= end; ++i) to->offsets[i - begin] = static_cast<int32_t>(i - begin);
  } else {
    CopyTo(from.offsets, begin, end + 1, &to->offsets);
    first = to->offsets.front();
    last = to->offsets.back();
    if (first < 0 || static_cast<uint64_t>(last) > from.about.keys) return false;
    for (size_t i = to->offsets.size(); i-- > 0;) {
      if (i > 0 && to->offsets[i] < to->offsets[i - 1]) return false;
      to->offsets[i] -= static_cast<int32_t>(first);
    }
  }
  CopyTo(from.keys, first, last, &to->keys);
  to->weights.clear();
  if (from.weights != nullptr) CopyTo(from.weights, first, last, &to->weights);
  return true;
}

void CopyDense(const ChunkView& view, int64_t begin, int64_t end, Batch* batch) {
  batch->num_dense = static_cast<int>(view.header.num_dense);
  batch->dense_stride = PaddedDenseColumns(batch->num_dense);
  const size_t row_bytes = sizeof(float) * batch->num_dense;
  const size_t stride = static_cast<size_t>(batch->dense_stride);
  batch->dense.resize(static_cast<size_t>(end - begin) * stride);
  for (int64_t row = begin; row < end; ++row) {
    float* const to = batch->dense.data() + static_cast<size_t>(row - begin) * stride;
    if (row_bytes > 0)
      std::memcpy(to, view.dense + static_cast<size_t>(row) * row_bytes, row_bytes);
    std::fill(to + batch->num_dense, to + stride, 0.0f);
  }
}

}  // namespace

std::string EncodeChunk(const ChunkName& name, const Batch& batch) {
  const size_t rows = static_cast<size_t>(batch.size);
  ChunkHeader header;
  header.is_hot = name.is_hot ? 1 : 0;
  header.batch = name.batch;
  header.rows = static_cast<uint32_t>(batch.size);
  header.num_dense = static_cast<uint32_t>(batch.num_dense);
  header.num_features = static_cast<uint32_t>(batch.features.size());
  header.has_weights = batch.weights.empty() ? 0 : 1;
  header.has_groups = batch.groups.empty() ? 0 : 1;
  header.more_tasks = static_cast<uint32_t>(batch.num_tasks - 1);
  std::string bytes;
  PutPackValues(&header, 1, &bytes);
  std::vector<ChunkFeature> about;
  for (const FeatureLookups& feature : batch.features) {
    const bool has_offsets = !HasOneKeyEach(feature, batch.size);
    about.push_back(
        {feature.keys.size(), feature.weights.empty() ? 0u : 1u, has_offsets ? 1u : 0u});
  }
  PutPackValues(about.data(), about.size(), &bytes);
  PutPackValues(batch.groups.data(), batch.groups.size(), &bytes);
  for (const FeatureLookups& feature : batch.features) {
    PutPackValues(feature.keys.data(), feature.keys.size(), &bytes);
  }
  for (size_t f = 0; f < about.size(); ++f) {
    const FeatureLookups& feature = batch.features[f];
    if (about[f].has_offsets) PutPackValues(feature.offsets.data(), rows + 1, &bytes);
    PutPackValues(feature.weights.data(), feature.weights.size(), &bytes);
  }
  PutPackValues(batch.labels.data(), batch.labels.size(), &bytes);
  PutPackValues(batch.weights.data(), batch.weights.size(), &bytes);
  for (int row = 0; row < batch.size; ++row) {
    PutPackValues(batch.dense_row(row).data(), static_cast<size_t>(batch.num_dense), &bytes);
  }
  bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment, '\0');
  header.bytes = bytes.size();
  std::memcpy(bytes.data(), &header, sizeof(header));
  header.crc = Crc32c(bytes.data() + 4, bytes.size() - 4);
  std::memcpy(bytes.data(), &header, sizeof(header.crc));
  return bytes;
}

absl::Status DecodeChunk(absl::string_view bytes, const ChunkName& name, int64_t rows,
                         int64_t begin, int64_t end, Batch* batch) {
  ChunkView view;
  if (!view.Find(bytes) || view.header.rows != rows || view.header.batch != name.batch ||
      view.header.is_hot != (name.is_hot ? 1u : 0u)) {
    return Damaged(name);
  }
  batch->size = static_cast<int>(end - begin);
  batch->padding_ids = 0;
  batch->carried.clear();
  batch->groups.clear();
  batch->weights.clear();
  const auto tasks = static_cast<int64_t>(view.header.tasks());
  batch->num_tasks = static_cast<int>(tasks);
  CopyTo(view.labels, begin * tasks, end * tasks, &batch->labels);
  if (view.groups != nullptr) CopyTo(view.groups, begin, end, &batch->groups);
  if (view.weights != nullptr) {
    CopyTo(view.weights, begin * tasks, end * tasks, &batch->weights);
  }
  CopyDense(view, begin, end, batch);
  batch->features.resize(view.features.size());
  for (size_t f = 0; f < view.features.size(); ++f) {
    if (!CopyLookups(view.features[f], begin, end, &batch->features[f])) return Damaged(name);
  }
  return absl::OkStatus();
}

void AppendRow(const Batch& from, int row, Batch* to) {
  to->num_dense = from.num_dense;
  to->dense_stride = from.dense_stride;
  const auto dense = from.dense.begin() + static_cast<int64_t>(row) * from.dense_stride;
  to->dense.insert(to->dense.end(), dense, dense + from.dense_stride);
  to->num_tasks = from.num_tasks;
  const auto append_of_tasks = [&](const UninitializedVector<float>& values,
                                   UninitializedVector<float>* added) {
    if (values.empty()) return;
    const auto first = values.begin() + int64_t{row} * from.num_tasks;
    added->insert(added->end(), first, first + from.num_tasks);
  };
  append_of_tasks(from.labels, &to->labels);
  append_of_tasks(from.weights, &to->weights);
  if (!from.groups.empty()) to->groups.push_back(from.groups[row]);
  to->features.resize(from.features.size());
  for (size_t f = 0; f < from.features.size(); ++f) {
    const FeatureLookups& lookups = from.features[f];
    FeatureLookups& added = to->features[f];
    const int32_t begin = lookups.offsets[row], end = lookups.offsets[row + 1];
    added.keys.insert(added.keys.end(), lookups.keys.begin() + begin, lookups.keys.begin() + end);
    if (!lookups.weights.empty()) {
      added.weights.insert(added.weights.end(), lookups.weights.begin() + begin,
                           lookups.weights.begin() + end);
    }
    if (added.offsets.empty()) added.offsets.push_back(0);
    added.offsets.push_back(static_cast<int32_t>(added.keys.size()));
  }
  ++to->size;
}

}  // namespace thermocline
