#include "common/wire/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "proto/parameter_server.pb.h"
#include "tests/testing/test_seed.h"

namespace thermocline::wire {
namespace {

uint64_t Seed() {
  static const uint64_t seed = TestSeed(20240611);
  return seed;
}

template <typename T>
std::string AsBytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// One slice, or with `rng` many short ones, as they come off the network.
grpc::ByteBuffer ToBuffer(const std::string& bytes, std::mt19937_64* rng = nullptr) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n =
        rng == nullptr ? bytes.size() : std::min<size_t>(1 + (*rng)() % 40, bytes.size() - at);
    slices.emplace_back(bytes.data() + at, n);
    at += n;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

class Generator {
 public:
  explicit Generator(uint64_t seed) : rng_(seed) {}
  std::mt19937_64& rng() { return rng_; }
  uint64_t Below(uint64_t n) { return rng_() % n; }
  // Small, huge and zero values alike.
  uint64_t Number() { return Below(8) == 0 ? 0 : rng_() >> Below(64); }
  int64_t Signed() { return Below(4) == 0 ? -1 : static_cast<int64_t>(Number() >> 1); }
  float Float() { return static_cast<float>(static_cast<int64_t>(rng_())) * 1e-18f; }

  template <typename T>
  std::vector<T> Integers(size_t n) {
    std::vector<T> values(n);
    for (T& value : values) value = static_cast<T>(Number());
    return values;
  }
  std::vector<float> Floats(size_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = Float();
    return values;
  }

  Header MakeHeader() {
    return {Below(5) == 0 ? "" : "job-" + std::to_string(Below(1000)), Number(),
            WorkerRank(static_cast<uint32_t>(Number())), Step(Signed())};
  }

 private:
  std::mt19937_64 rng_;
};

void FillHeader(const Header& header, RequestHeader* proto) {
  proto->set_job_id(header.job_id);
  proto->set_generation(header.generation);
  proto->set_worker_rank(header.rank.value());
  if (header.acked_through != kNoStep) proto->set_acked_through(header.acked_through.value());
}

void ExpectHeader(const Header& header, const RequestHeader& proto) {
  EXPECT_EQ(header.job_id, proto.job_id());
  EXPECT_EQ(header.generation, proto.generation());
  EXPECT_EQ(header.rank.value(), proto.worker_rank());
  EXPECT_EQ(header.acked_through.value(), proto.has_acked_through() ? proto.acked_through() : -1);
}

::thermocline::PullRequest RandomPull(Generator* g) {
  ::thermocline::PullRequest proto;
  FillHeader(g->MakeHeader(), proto.mutable_header());
  proto.set_kind(static_cast<::thermocline::PullRequest::Kind>(g->Below(2)));
  proto.set_step(g->Signed());
  proto.set_staleness_steps(static_cast<uint32_t>(g->Number()));
  if (const int64_t after = g->Signed(); after >= 0) proto.set_after_step(after);
  for (uint64_t tables = g->Below(6); tables > 0; --tables) {
    TableKeys* table = proto.add_tables();
    table->set_table(static_cast<uint32_t>(g->Number()));
    table->set_keys(AsBytes(g->Integers<Key>(g->Below(40))));
  }
  proto.set_with_state(g->Below(2) == 1);
  proto.set_count_rows(g->Below(2) == 1);
  return proto;
}

::thermocline::PushRequest RandomPush(Generator* g) {
  ::thermocline::PushRequest proto;
  FillHeader(g->MakeHeader(), proto.mutable_header());
  proto.set_step(g->Signed());
  proto.set_chunk(static_cast<uint32_t>(g->Number()));
  proto.set_num_chunks(static_cast<uint32_t>(g->Number()));
  proto.set_learning_rate(g->Below(3) == 0 ? 0.0f : g->Float());
  for (uint64_t tables = g->Below(6); tables > 0; --tables) {
    TablePush* table = proto.add_tables();
    table->set_table(static_cast<uint32_t>(g->Number()));
    table->set_kind(static_cast<TablePush::Kind>(g->Below(kNumPushKinds)));
    const size_t n = g->Below(30);
    table->set_keys(AsBytes(g->Integers<Key>(n)));
    table->set_counts(AsBytes(g->Integers<uint32_t>(n)));
    const size_t width = table->kind() == TablePush::COUNT ? 0 : 1 + g->Below(20);
    table->set_values(AsBytes(g->Floats(n * width)));
  }
  for (uint64_t limits = g->Below(4); limits > 0; --limits) {
    ::thermocline::RowLimit* limit = proto.add_row_limits();
    limit->set_table(static_cast<uint32_t>(g->Number()));
    limit->set_oldest_kept(static_cast<uint32_t>(g->Number()));
  }
  return proto;
}

void ExpectPull(const PullRequest& pull, const ::thermocline::PullRequest& proto) {
  ExpectHeader(pull.header, proto.header());
  EXPECT_EQ(static_cast<int>(pull.kind), static_cast<int>(proto.kind()));
  EXPECT_EQ(pull.step.value(), proto.step());
  EXPECT_EQ(pull.staleness_steps, proto.staleness_steps());
  EXPECT_EQ(pull.after_step.value(), proto.has_after_step() ? proto.after_step() : -1);
  EXPECT_EQ(pull.with_state, proto.with_state());
  EXPECT_EQ(pull.count_rows, proto.count_rows());
  ASSERT_EQ(pull.tables.size(), static_cast<size_t>(proto.tables_size()));
  for (int i = 0; i < proto.tables_size(); ++i) {
    EXPECT_EQ(pull.tables[i].table.value(), proto.tables(i).table());
    const auto keys = pull.KeysOf(pull.tables[i]);
    EXPECT_EQ(AsBytes(std::vector<Key>(keys.begin(), keys.end())), proto.tables(i).keys());
  }
}

void ExpectPush(const PushChunk& push, const ::thermocline::PushRequest& proto) {
  ExpectHeader(push.header, proto.header());
  EXPECT_EQ(push.step.value(), proto.step());
  EXPECT_EQ(push.chunk, proto.chunk());
  EXPECT_EQ(push.num_chunks, proto.num_chunks());
  EXPECT_EQ(push.learning_rate, proto.learning_rate());
  ASSERT_EQ(push.tables.size(), static_cast<size_t>(proto.tables_size()));
  for (int i = 0; i < proto.tables_size(); ++i) {
    const PushRange& range = push.tables[i];
    EXPECT_EQ(range.table.value(), proto.tables(i).table());
    EXPECT_EQ(static_cast<int>(range.kind), static_cast<int>(proto.tables(i).kind()));
    const auto keys = push.KeysOf(range);
    const auto counts = push.CountsOf(range);
    const auto values = push.ValuesOf(range);
    EXPECT_EQ(AsBytes(std::vector<Key>(keys.begin(), keys.end())), proto.tables(i).keys());
    EXPECT_EQ(AsBytes(std::vector<uint32_t>(counts.begin(), counts.end())),
              proto.tables(i).counts());
    EXPECT_EQ(AsBytes(std::vector<float>(values.begin(), values.end())), proto.tables(i).values());
  }
  ASSERT_EQ(push.row_limits.size(), static_cast<size_t>(proto.row_limits_size()));
  for (int i = 0; i < proto.row_limits_size(); ++i) {
    EXPECT_EQ(push.row_limits[i].table.value(), proto.row_limits(i).table());
    EXPECT_EQ(push.row_limits[i].oldest_kept, proto.row_limits(i).oldest_kept());
  }
}

PullView ViewOf(const PullRequest& pull, std::vector<PullTableView>* tables) {
  for (const KeyRange& range : pull.tables) tables->push_back({range.table, pull.KeysOf(range)});
  return {pull.header,          pull.kind,       pull.step,
          pull.staleness_steps, pull.after_step, absl::MakeConstSpan(*tables),
          pull.with_state,      pull.count_rows};
}

PushView ViewOf(const PushChunk& push, std::vector<PushSlice>* tables) {
  for (const PushRange& range : push.tables) {
    tables->push_back(
        {range.table, range.kind, push.KeysOf(range), push.CountsOf(range), push.ValuesOf(range)});
  }
  return {push.header,     push.step,          push.chunk,
          push.num_chunks, push.learning_rate, absl::MakeConstSpan(*tables),
          push.row_limits};
}

// Permutes the fields of a serialized message (those of `repeated` keep their order, nested
// messages are permuted too where `nested` says so) and mixes in fields that no version knows.
std::string Shuffle(const std::string& message, std::mt19937_64* rng,
                    const std::vector<uint32_t>& nested) {
  using ::google::protobuf::io::CodedInputStream;
  using ::google::protobuf::io::CodedOutputStream;
  struct Field {
    uint32_t number;
    std::string bytes;
  };
  std::vector<Field> fields;
  const auto* data = reinterpret_cast<const uint8_t*>(message.data());
  CodedInputStream in(data, static_cast<int>(message.size()));
  for (uint32_t tag; (tag = in.ReadTag()) != 0;) {
    uint8_t head[20];
    uint8_t* end = CodedOutputStream::WriteTagToArray(tag, head);
    std::string value;
    uint64_t varint;
    switch (tag & 7) {
      case 0:
        EXPECT_TRUE(in.ReadVarint64(&varint));
        end = CodedOutputStream::WriteVarint64ToArray(varint, end);
        break;
      case 5:
        EXPECT_TRUE(in.ReadString(&value, 4));
        break;
      default: {
        int length;
        EXPECT_TRUE(in.ReadVarintSizeAsInt(&length) && in.ReadString(&value, length));
        if (std::count(nested.begin(), nested.end(), tag >> 3) > 0) value = Shuffle(value, rng, {});
        end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(value.size()), end);
      }
    }
    fields.push_back({tag >> 3, std::string(reinterpret_cast<char*>(head), end - head) + value});
  }
  // Field 99 as a varint, field 100 as bytes, field 101 as fixed64, field 102 as fixed32.
  const std::string unknown[] = {"\x98\x06\x07", std::string("\xa2\x06\x03xyz"),
                                 "\xa9\x06" + std::string(8, 'x'),
                                 "\xb5\x06" + std::string(4, 'x')};
  for (const std::string& bytes : unknown) {
    if ((*rng)() % 2 == 0) fields.push_back({1000, bytes});
  }
  std::vector<Field> shuffled = fields;
  std::shuffle(shuffled.begin(), shuffled.end(), *rng);
  for (uint32_t number : nested) {  // the entries of one repeated field back into their order
    auto next = fields.begin();
    for (Field& field : shuffled) {
      if (field.number != number) continue;
      next = std::find_if(next, fields.end(), [&](const Field& f) { return f.number == number; });
      field.bytes = (next++)->bytes;
    }
  }
  std::string result;
  for (const Field& field : shuffled) result += field.bytes;
  return result;
}

TEST(Codec, PullRequestIsTheProtobufMessageBothWays) {
  Generator g(Seed());
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const ::thermocline::PullRequest proto = RandomPull(&g);
    const std::string bytes = proto.SerializeAsString();
    const auto pull = DecodePullRequest(ToBuffer(bytes, &g.rng()));
    ASSERT_TRUE(pull.ok()) << pull.status();
    ExpectPull(*pull, proto);
    EXPECT_EQ(PeekPullKind(ToBuffer(bytes, &g.rng())), pull->kind);
    std::vector<PullTableView> tables;
    const PullView view = ViewOf(*pull, &tables);
    EXPECT_EQ(ToString(Encode(view)), bytes);
    EXPECT_EQ(EncodedBytes(view), bytes.size());
  }
}

TEST(Codec, PushRequestIsTheProtobufMessageBothWays) {
  Generator g(Seed() + 1);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const ::thermocline::PushRequest proto = RandomPush(&g);
    const std::string bytes = proto.SerializeAsString();
    const auto push = DecodePushChunk(ToBuffer(bytes, &g.rng()));
    ASSERT_TRUE(push.ok()) << push.status();
    ExpectPush(*push, proto);
    std::vector<PushSlice> tables;
    const PushView view = ViewOf(*push, &tables);
    EXPECT_EQ(ToString(Encode(view)), bytes);
    EXPECT_EQ(EncodedBytes(view), bytes.size());
  }
}

TEST(Codec, AnyFieldOrderAndUnknownFieldsDecode) {
  Generator g(Seed() + 2);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const ::thermocline::PullRequest pull = RandomPull(&g);
    const std::string pull_bytes = Shuffle(pull.SerializeAsString(), &g.rng(), {1, 7});
    ::thermocline::PullRequest parsed_pull;
    ASSERT_TRUE(parsed_pull.ParseFromString(pull_bytes));  // the shuffle itself is right
    const auto decoded_pull = DecodePullRequest(ToBuffer(pull_bytes, &g.rng()));
    ASSERT_TRUE(decoded_pull.ok()) << decoded_pull.status();
    ExpectPull(*decoded_pull, pull);

    const ::thermocline::PushRequest push = RandomPush(&g);
    const std::string push_bytes = Shuffle(push.SerializeAsString(), &g.rng(), {1, 8, 9});
    const auto decoded_push = DecodePushChunk(ToBuffer(push_bytes, &g.rng()));
    ASSERT_TRUE(decoded_push.ok()) << decoded_push.status();
    ExpectPush(*decoded_push, push);
  }
}

TEST(Codec, RepeatedScalarsAndBytesKeepTheLastAndHeadersMerge) {
  ::thermocline::PullRequest first, second;
  first.mutable_header()->set_job_id("first");
  first.mutable_header()->set_generation(3);
  first.set_step(1);
  second.mutable_header()->set_job_id("second");
  second.set_step(9);
  TableKeys old_keys, new_keys;
  old_keys.set_table(4);
  old_keys.set_keys(AsBytes<Key>({1, 2, 3}));
  new_keys.set_keys(AsBytes<Key>({7}));
  const std::string table = old_keys.SerializeAsString() + new_keys.SerializeAsString();
  const std::string bytes = first.SerializeAsString() + second.SerializeAsString() + "\x3a" +
                            static_cast<char>(table.size()) + table;
  ::thermocline::PullRequest proto;
  ASSERT_TRUE(proto.ParseFromString(bytes));
  const auto pull = DecodePullRequest(ToBuffer(bytes));
  ASSERT_TRUE(pull.ok()) << pull.status();
  ExpectPull(*pull, proto);
  EXPECT_EQ(pull->header.job_id, "second");
  EXPECT_EQ(pull->keys.size(), 1u);
}

TEST(Codec, PullReplyIsTheProtobufMessageBothWays) {
  Generator g(Seed() + 3);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    ::thermocline::PullReply proto;
    const int64_t through = g.Signed();
    if (through >= 0) proto.set_complete_through(through);
    std::vector<PullReplyBuilder::Table> sizes;
    std::vector<std::vector<float>> rows;
    for (uint64_t i = g.Below(5); i > 0; --i) {
      rows.push_back(g.Floats(g.Below(200)));
      sizes.push_back({TableId(static_cast<uint32_t>(g.Number())), rows.back().size() * 4});
      proto.add_tables()->set_table(sizes.back().table.value());
      proto.mutable_tables(proto.tables_size() - 1)->set_rows(AsBytes(rows.back()));
    }
    PullAnswer answer{Readiness::kReady, Step(through), {}};
    for (uint64_t i = g.Below(3); i > 0; --i) {
      const size_t n = g.Below(40);
      answer.row_counts.push_back({TableId(static_cast<uint32_t>(g.Number())),
                                   g.Integers<uint32_t>(n), g.Integers<uint64_t>(n)});
      ::thermocline::RowCounts* counts = proto.add_row_counts();
      counts->set_table(answer.row_counts.back().table.value());
      counts->set_newest(AsBytes(answer.row_counts.back().groups));
      counts->set_rows(AsBytes(answer.row_counts.back().rows));
    }
    PullReplyBuilder builder(answer, sizes);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!rows[i].empty()) std::memcpy(builder.rows(i), rows[i].data(), sizes[i].rows_bytes);
    }
    const std::string bytes = ToString(std::move(builder).Finish());
    EXPECT_EQ(bytes, proto.SerializeAsString());
    EXPECT_EQ(bytes.size(), PullReplyBuilder::EncodedBytes(answer, sizes));

    std::vector<std::vector<float>> got(rows.size());
    std::vector<RowsView> views;
    for (size_t i = 0; i < rows.size(); ++i) {
      got[i].assign(rows[i].size(), -1.0f);
      views.push_back({sizes[i].table, absl::MakeSpan(got[i])});
    }
    const auto decoded = DecodePullReply(ToBuffer(bytes, &g.rng()), views);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->readiness, Readiness::kReady);
    EXPECT_EQ(decoded->complete_through.value(), through);
    EXPECT_EQ(got, rows);
    ASSERT_EQ(decoded->row_counts.size(), answer.row_counts.size());
    for (size_t i = 0; i < answer.row_counts.size(); ++i) {
      EXPECT_EQ(decoded->row_counts[i].table, answer.row_counts[i].table);
      EXPECT_EQ(decoded->row_counts[i].groups, answer.row_counts[i].groups);
      EXPECT_EQ(decoded->row_counts[i].rows, answer.row_counts[i].rows);
    }
  }
}

TEST(Codec, NotReadyReplyLeavesTheRowsAlone) {
  const PullAnswer answer{Readiness::kNotReady, Step(-1)};
  PullReplyBuilder builder(answer, {});
  const grpc::ByteBuffer bytes = std::move(builder).Finish();
  ::thermocline::PullReply proto;
  ASSERT_TRUE(proto.ParseFromString(ToString(bytes)));
  EXPECT_EQ(proto.readiness(), NOT_READY);
  std::vector<float> rows(4, 8.0f);
  const RowsView view{TableId(1), absl::MakeSpan(rows)};
  const auto decoded = DecodePullReply(bytes, absl::MakeConstSpan(&view, 1));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->readiness, Readiness::kNotReady);
  EXPECT_EQ(decoded->complete_through, Step(-1));
  EXPECT_EQ(rows, std::vector<float>(4, 8.0f));
}

TEST(Codec, CountsOfOtherSizesAreInternalErrors) {
  ::thermocline::PullReply proto;
  ::thermocline::RowCounts* counts = proto.add_row_counts();
  counts->set_newest(AsBytes(std::vector<uint32_t>{1, 2}));
  for (const size_t bytes : {0, 8, 15, 17, 24}) {
    counts->set_rows(std::string(bytes, 'x'));
    EXPECT_EQ(DecodePullReply(ToBuffer(proto.SerializeAsString()), {}).status().code(),
              absl::StatusCode::kInternal)
        << bytes;
  }
  counts->set_rows(std::string(16, 'x'));
  EXPECT_TRUE(DecodePullReply(ToBuffer(proto.SerializeAsString()), {}).ok());
  counts->set_newest("123");
  EXPECT_EQ(DecodePullReply(ToBuffer(proto.SerializeAsString()), {}).status().code(),
            absl::StatusCode::kInternal);
}

TEST(Codec, PushReplyIsTheProtobufMessageBothWays) {
  for (int64_t through : {int64_t{-1}, int64_t{0}, int64_t{5}, int64_t{1} << 40}) {
    for (Readiness readiness : {Readiness::kReady, Readiness::kNotReady, Readiness::kRecovering}) {
      ::thermocline::PushReply proto;
      if (through >= 0) proto.set_accepted_through(through);
      proto.set_readiness(static_cast<::thermocline::Readiness>(readiness));
      const grpc::ByteBuffer bytes = Encode(PushAnswer{readiness, Step(through)});
      EXPECT_EQ(ToString(bytes), proto.SerializeAsString());
      const auto decoded = DecodePushReply(bytes);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(decoded->readiness, readiness);
      EXPECT_EQ(decoded->accepted_through.value(), through);
    }
  }
}

TEST(Codec, AnAbsentStepIsNoneAndStepZeroIsNot) {
  EXPECT_EQ(DecodePullRequest(ToBuffer(""))->header.acked_through, kNoStep);
  EXPECT_EQ(DecodePullRequest(ToBuffer(""))->after_step, kNoStep);
  EXPECT_EQ(DecodePushChunk(ToBuffer(""))->header.acked_through, kNoStep);
  EXPECT_EQ(DecodePullReply(ToBuffer(""), {})->complete_through, kNoStep);
  EXPECT_EQ(DecodePushReply(ToBuffer(""))->accepted_through, kNoStep);

  ::thermocline::PullRequest pull;
  pull.mutable_header()->set_acked_through(0);
  pull.set_after_step(0);
  const auto zero = DecodePullRequest(ToBuffer(pull.SerializeAsString()));
  EXPECT_EQ(zero->header.acked_through, Step(0));
  EXPECT_EQ(zero->after_step, Step(0));
  // -1 leaves bytes, too.
  pull.mutable_header()->set_acked_through(-1);
  pull.set_after_step(-1);
  const auto none = DecodePullRequest(ToBuffer(pull.SerializeAsString()));
  EXPECT_EQ(none->header.acked_through, kNoStep);
  EXPECT_EQ(none->after_step, kNoStep);
}

TEST(Codec, WrongRepliesAreInternalErrorsAndWriteNothing) {
  const auto decode = [](const ::thermocline::PullReply& proto, std::vector<float>* rows) {
    const RowsView view{TableId(2), absl::MakeSpan(*rows)};
    return DecodePullReply(ToBuffer(proto.SerializeAsString()), absl::MakeConstSpan(&view, 1))
        .status()
        .code();
  };
  const std::vector<float> untouched(4, 8.0f);
  std::vector<float> rows = untouched;
  ::thermocline::PullReply proto;
  EXPECT_EQ(decode(proto, &rows), absl::StatusCode::kInternal);  // no table
  proto.add_tables()->set_table(3);
  proto.mutable_tables(0)->set_rows(std::string(16, 'x'));
  EXPECT_EQ(decode(proto, &rows), absl::StatusCode::kInternal);  // another table
  proto.mutable_tables(0)->set_table(2);
  proto.mutable_tables(0)->set_rows(std::string(12, 'x'));
  EXPECT_EQ(decode(proto, &rows), absl::StatusCode::kInternal);  // too short
  proto.mutable_tables(0)->set_rows(std::string(20, 'x'));
  EXPECT_EQ(decode(proto, &rows), absl::StatusCode::kInternal);  // too long
  proto.set_readiness(static_cast<::thermocline::Readiness>(17));
  EXPECT_EQ(decode(proto, &rows), absl::StatusCode::kInternal);
  EXPECT_EQ(rows, untouched);
  EXPECT_EQ(DecodePullReply(ToBuffer("\x1a\x7f"), {}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(DecodePushReply(ToBuffer("\x08")).status().code(), absl::StatusCode::kInternal);
}

TEST(Codec, SizesThatDontFitAreRefusedByName) {
  ::thermocline::PullRequest pull;
  pull.add_tables()->set_table(6);
  pull.mutable_tables(0)->set_keys("thirteen byte");
  absl::Status status = DecodePullRequest(ToBuffer(pull.SerializeAsString())).status();
  EXPECT_EQ(status, absl::InvalidArgumentError("table 6: keys have 13 bytes, not a multiple of 8"));

  ::thermocline::PushRequest good;
  TablePush* table = good.add_tables();
  table->set_table(6);
  table->set_keys(std::string(16, 'k'));
  table->set_counts(std::string(8, 'c'));
  table->set_values(std::string(24, 'v'));
  const auto push_status = [](const ::thermocline::PushRequest& proto) {
    return DecodePushChunk(ToBuffer(proto.SerializeAsString())).status();
  };
  EXPECT_TRUE(push_status(good).ok());
  ::thermocline::PushRequest bad = good;
  bad.mutable_tables(0)->set_keys(std::string(17, 'k'));
  EXPECT_EQ(push_status(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.mutable_tables(0)->set_counts(std::string(4, 'c'));
  EXPECT_EQ(push_status(bad),
            absl::InvalidArgumentError("table 6: counts have 4 bytes; 2 keys need 8"));
  bad = good;
  bad.mutable_tables(0)->set_values(std::string(20, 'v'));
  EXPECT_EQ(push_status(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.mutable_tables(0)->clear_keys();
  bad.mutable_tables(0)->clear_counts();
  EXPECT_EQ(push_status(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.mutable_tables(0)->set_kind(static_cast<TablePush::Kind>(kNumPushKinds));
  EXPECT_EQ(push_status(bad), absl::InvalidArgumentError("table 6: unknown kind of push 3"));
  bad = good;
  bad.mutable_tables(0)->set_kind(TablePush::COUNT);
  EXPECT_EQ(push_status(bad),
            absl::InvalidArgumentError(
                "table 6: values have 24 bytes; keys without a gradient have none"));
  bad.mutable_tables(0)->clear_values();
  EXPECT_TRUE(push_status(bad).ok());
}

TEST(Codec, OtherKindsAreRefused) {
  ::thermocline::PullRequest pull;
  pull.set_kind(static_cast<::thermocline::PullRequest::Kind>(5));
  EXPECT_EQ(DecodePullRequest(ToBuffer(pull.SerializeAsString())).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Codec, LyingLengthsAreRefusedBeforeAnythingIsAllocated) {
  // A table whose keys claim 2 GiB - 8, within a table that claims 9 bytes, and the like.
  const std::string lies[] = {
      std::string("\x3a\x09\x12\xf8\xff\xff\xff\x07\x00\x00\x00", 11),
      std::string("\x3a\xff\xff\xff\xff\x07", 6),
      std::string("\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11),
      std::string("\x0a\x05\x0a\xff\x01xy", 7),
  };
  for (const std::string& lie : lies) {
    EXPECT_EQ(DecodePullRequest(ToBuffer(lie)).status().code(), absl::StatusCode::kInvalidArgument);
  }
  // More tables than a message may have; longer job ids than a job may have.
  std::string many;
  for (size_t i = 0; i <= kMaxTablesPerMessage; ++i) many += std::string("\x3a\x00", 2);
  EXPECT_EQ(DecodePullRequest(ToBuffer(many)).status().code(), absl::StatusCode::kInvalidArgument);
  many.resize(2 * kMaxTablesPerMessage);
  EXPECT_TRUE(DecodePullRequest(ToBuffer(many)).ok());
  ::thermocline::PullRequest pull;
  pull.mutable_header()->set_job_id(std::string(kMaxJobIdBytes + 1, 'j'));
  EXPECT_EQ(DecodePullRequest(ToBuffer(pull.SerializeAsString())).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Codec, TruncatedMessagesAreRefusedUnlessTheyAreMessagesThemselves) {
  Generator g(Seed() + 4);
  for (int round = 0; round < 6; ++round) {
    const std::string bytes = RandomPush(&g).SerializeAsString();
    for (size_t n = 0; n < bytes.size(); ++n) {
      const std::string prefix = bytes.substr(0, n);
      ::thermocline::PushRequest proto;
      const auto push = DecodePushChunk(ToBuffer(prefix, &g.rng()));
      EXPECT_EQ(push.ok(), proto.ParseFromString(prefix)) << "round " << round << ", " << n;
      if (!push.ok()) {
        EXPECT_EQ(push.status().code(), absl::StatusCode::kInvalidArgument);
      }
    }
  }
}

TEST(Codec, HostileBytesNeverDoMoreThanFail) {
  Generator g(Seed() + 5);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 10000; ++round) {
    std::string bytes =
        round % 2 == 0 ? RandomPull(&g).SerializeAsString() : RandomPush(&g).SerializeAsString();
    for (uint64_t flips = 1 + g.Below(6); flips > 0 && !bytes.empty(); --flips) {
      // Mostly near the front, where the structure is.
      const size_t at =
          g.Below(2) == 0 ? g.Below(std::min<size_t>(bytes.size(), 24)) : g.Below(bytes.size());
      bytes[at] = static_cast<char>(g.Below(256));
    }
    const auto pull = DecodePullRequest(ToBuffer(bytes, &g.rng()));
    const auto push = DecodePushChunk(ToBuffer(bytes, &g.rng()));
    for (const absl::Status& status : {pull.status(), push.status()}) {
      status.ok() ? ++accepted : ++refused;
      EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status) || absl::IsUnimplemented(status))
          << status;
    }
    // Our decoder accepts only what protobuf accepts, with the same meaning.
    if (pull.ok()) {
      ::thermocline::PullRequest proto;
      ASSERT_TRUE(proto.ParseFromString(bytes)) << round;
      ExpectPull(*pull, proto);
    }
    if (push.ok()) {
      ::thermocline::PushRequest proto;
      ASSERT_TRUE(proto.ParseFromString(bytes)) << round;
      ExpectPush(*push, proto);
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace thermocline::wire
