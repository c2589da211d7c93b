// The data plane's messages. The first byte says which, the second where the buffer is cut into two
// slices. Protobuf must read what the codec accepts with the same result.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/wire/codec.h"
#include "proto/parameter_server.pb.h"
#include "tests/fuzz/fuzz_target.h"

namespace thermocline::wire {
namespace {

grpc::ByteBuffer Buffer(absl::string_view bytes, size_t cut) {
  cut = std::min(cut, bytes.size());
  const grpc::Slice slices[] = {grpc::Slice(bytes.data(), cut),
                                grpc::Slice(bytes.data() + cut, bytes.size() - cut)};
  return grpc::ByteBuffer(slices, 2);
}

void TryPullRequest(absl::string_view bytes, size_t cut) {
  const auto pull = DecodePullRequest(Buffer(bytes, cut));
  if (!pull.ok()) return;
  size_t keys = 0;
  std::vector<PullTableView> tables;
  for (const KeyRange& range : pull->tables) {
    CHECK_LE(range.begin + range.count, pull->keys.size());
    tables.push_back({range.table, pull->KeysOf(range)});
    keys += range.count;
  }
  CHECK_EQ(keys, pull->keys.size());
  // A job id may be bytes that protobuf refuses.
  thermocline::PullRequest proto;
  if (proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    CHECK_EQ(proto.tables_size(), static_cast<int>(tables.size()));
    CHECK_EQ(proto.header().job_id(), pull->header.job_id);
    CHECK_EQ(proto.step(), pull->step.value());
    CHECK_EQ(proto.with_state(), pull->with_state);
    CHECK_EQ(proto.count_rows(), pull->count_rows);
  }
  const PullView view{pull->header,     pull->kind, pull->step,       pull->staleness_steps,
                      pull->after_step, tables,     pull->with_state, pull->count_rows};
  const auto again = DecodePullRequest(Encode(view));
  CHECK(again.ok());
  CHECK(again->keys == pull->keys);
  CHECK_EQ(again->header.job_id, pull->header.job_id);
}

void TryPushChunk(absl::string_view bytes, size_t cut) {
  const auto push = DecodePushChunk(Buffer(bytes, cut));
  if (!push.ok()) return;
  std::vector<PushSlice> tables;
  for (const PushRange& range : push->tables) {
    CHECK_LE(range.begin + range.count, push->keys.size());
    CHECK_LE(range.value_begin + range.value_floats, push->values.size());
    tables.push_back({range.table, range.kind, push->KeysOf(range), push->CountsOf(range),
                      push->ValuesOf(range)});
  }
  CHECK_EQ(push->keys.size(), push->counts.size());
  thermocline::PushRequest proto;
  if (proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    CHECK_EQ(proto.tables_size(), static_cast<int>(tables.size()));
    CHECK_EQ(proto.row_limits_size(), static_cast<int>(push->row_limits.size()));
    CHECK_EQ(proto.header().job_id(), push->header.job_id);
  }
  const PushView view{push->header,        push->step, push->chunk,     push->num_chunks,
                      push->learning_rate, tables,     push->row_limits};
  const auto again = DecodePushChunk(Encode(view));
  CHECK(again.ok());
  CHECK(again->keys == push->keys);
  CHECK(again->counts == push->counts);
  CHECK(again->row_limits == push->row_limits);
  CHECK_EQ(again->values.size(), push->values.size());
}

void TryPullReply(absl::string_view bytes, size_t cut) {
  std::vector<float> first(6, 0.5f), second(2, 0.5f);
  const RowsView tables[] = {{TableId(1), absl::MakeSpan(first)},
                             {TableId(2), absl::MakeSpan(second)}};
  const auto answer = DecodePullReply(Buffer(bytes, cut), tables);
  if (answer.ok()) return;
  // "Nothing is written then."
  for (const float f : first) CHECK_EQ(f, 0.5f);
  for (const float f : second) CHECK_EQ(f, 0.5f);
}

}  // namespace
}  // namespace thermocline::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace thermocline::wire;
  if (size < 2) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  switch (data[0] % 4) {
    case 0:
      TryPullRequest(bytes, data[1]);
      break;
    case 1:
      TryPushChunk(bytes, data[1]);
      break;
    case 2:
      TryPullReply(bytes, data[1]);
      break;
    case 3:
      DecodePushReply(Buffer(bytes, data[1])).status().IgnoreError();
      break;
  }
  return 0;
}
