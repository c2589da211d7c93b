#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/wire/codec.h"
#include "common/wire/fields.h"
#include "common/wire/scan.h"

namespace thermocline::wire {
namespace {

static_assert(sizeof(float) == 4 && sizeof(Key) == 8, "the wire's element sizes");

bool ReadJobId(CodedInputStream& in, std::string* job_id) {
  int length;
  if (!ReadLength(in, &length) || static_cast<size_t>(length) > kMaxJobIdBytes) return false;
  return in.ReadString(job_id, length) && IsJobId(*job_id);
}

bool ReadHeader(CodedInputStream& in, Header* header) {
  return ReadNested(in, [&](uint32_t tag) {
    uint32_t rank;
    switch (tag) {
      case BytesTag(fields::kHeaderJobId):
        return ReadJobId(in, &header->job_id);
      case VarintTag(fields::kHeaderGeneration):
        return ReadUint64(in, &header->generation);
      case VarintTag(fields::kHeaderWorkerRank):
        if (!ReadUint32(in, &rank)) return false;
        header->rank = WorkerRank(rank);
        return true;
      case VarintTag(fields::kHeaderAckedThrough):
        return ReadStep(in, &header->acked_through);
      default:
        return WireFormatLite::SkipField(&in, tag);
    }
  });
}

// Reads an entry of a list whose entries name a table each; `read_field(tag, entry)` reads its
// other fields.
template <typename Entry, typename ReadField>
bool ReadEntry(CodedInputStream& in, uint32_t table_field, std::vector<Entry>* entries,
               ReadField read_field) {
  if (entries->size() == kMaxTablesPerMessage) return false;
  Entry& entry = entries->emplace_back();
  return ReadNested(in, [&](uint32_t tag) {
    uint32_t table;
    if (tag != VarintTag(table_field)) return read_field(tag, entry);
    if (!ReadUint32(in, &table)) return false;
    entry.table = TableId(table);
    return true;
  });
}

// ---- Whole messages.

absl::Status CheckKeys(TableId table, const BulkField& keys) {
  if (keys.bytes % sizeof(Key) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("table ", table.value(), ": keys have ",
                                                 keys.bytes, " bytes, not a multiple of 8"));
}

struct ScannedKeys {
  TableId table;
  BulkField keys;
};

// One entry of `repeated {table, bytes}`: TableKeys and TableRows look alike.
bool ReadTableAndBulk(CodedInputStream& in, std::vector<ScannedKeys>* tables) {
  static_assert(fields::kTableKeysTable == fields::kTableRowsTable);
  static_assert(fields::kTableKeysKeys == fields::kTableRowsRows);
  return ReadEntry(in, fields::kTableKeysTable, tables, [&](uint32_t tag, ScannedKeys& scanned) {
    return tag == BytesTag(fields::kTableKeysKeys) ? ReadBulk(in, &scanned.keys)
                                                   : WireFormatLite::SkipField(&in, tag);
  });
}

struct ScannedPush {
  TableId table;
  uint32_t kind = 0;
  BulkField keys, counts, values;
};

bool ReadTablePush(CodedInputStream& in, std::vector<ScannedPush>* tables) {
  return ReadEntry(in, fields::kTablePushTable, tables, [&](uint32_t tag, ScannedPush& scanned) {
    switch (tag) {
      case VarintTag(fields::kTablePushKind):
        return ReadUint32(in, &scanned.kind);
      case BytesTag(fields::kTablePushKeys):
        return ReadBulk(in, &scanned.keys);
      case BytesTag(fields::kTablePushCounts):
        return ReadBulk(in, &scanned.counts);
      case BytesTag(fields::kTablePushValues):
        return ReadBulk(in, &scanned.values);
      default:
        return WireFormatLite::SkipField(&in, tag);
    }
  });
}

bool ReadRowLimit(CodedInputStream& in, std::vector<RowLimit>* limits) {
  return ReadEntry(in, fields::kRowLimitTable, limits, [&](uint32_t tag, RowLimit& limit) {
    return tag == VarintTag(fields::kRowLimitOldestKept) ? ReadUint32(in, &limit.oldest_kept)
                                                         : WireFormatLite::SkipField(&in, tag);
  });
}

struct ScannedCounts {
  TableId table;
  BulkField groups, rows;
};

bool ReadRowCounts(CodedInputStream& in, std::vector<ScannedCounts>* counts) {
  return ReadEntry(in, fields::kRowCountsTable, counts, [&](uint32_t tag, ScannedCounts& scanned) {
    switch (tag) {
      case BytesTag(fields::kRowCountsNewest):
        return ReadBulk(in, &scanned.groups);
      case BytesTag(fields::kRowCountsRows):
        return ReadBulk(in, &scanned.rows);
      default:
        return WireFormatLite::SkipField(&in, tag);
    }
  });
}

absl::Status CheckTablePush(const ScannedPush& scanned) {
  RETURN_IF_ERROR(CheckKeys(scanned.table, scanned.keys));
  const auto error = [&](const auto&... chunks) {
    return absl::InvalidArgumentError(
        absl::StrCat("table ", scanned.table.value(), ": ", chunks...));
  };
  if (scanned.kind >= kNumPushKinds) {
    return error("unknown kind of push ", scanned.kind);
  }
  const size_t n = scanned.keys.bytes / sizeof(Key);
  if (scanned.counts.bytes != n * sizeof(uint32_t)) {
    return error("counts have ", scanned.counts.bytes, " bytes; ", n, " keys need ",
                 n * sizeof(uint32_t));
  }
  if (scanned.kind == static_cast<uint32_t>(PushKind::kCount) && scanned.values.bytes != 0) {
    return error("values have ", scanned.values.bytes, " bytes; keys without a gradient have none");
  }
  if (n == 0 ? scanned.values.bytes != 0 : scanned.values.bytes % (n * sizeof(float)) != 0) {
    return error("values have ", scanned.values.bytes, " bytes, not a multiple of ",
                 n * sizeof(float), " (4 bytes for each of ", n, " keys)");
  }
  return absl::OkStatus();
}

absl::Status MalformedReply(absl::string_view why) {
  return absl::InternalError(absl::StrCat("the server's reply is wrong: ", why));
}

absl::StatusOr<Readiness> CheckReadiness(uint32_t readiness) {
  if (readiness > static_cast<uint32_t>(Readiness::kRecovering)) {
    return MalformedReply(absl::StrCat("unknown readiness ", readiness));
  }
  return static_cast<Readiness>(readiness);
}

}  // namespace

PullKind PeekPullKind(const grpc::ByteBuffer& bytes) {
  uint32_t kind = 0;
  const absl::Status scanned =
      ScanMessage(bytes, "PullRequest", [&](CodedInputStream& in, uint32_t tag) {
        if (tag == VarintTag(fields::kPullKind)) return ReadUint32(in, &kind);
        return WireFormatLite::SkipField(&in, tag);
      });
  const bool reads = scanned.ok() && kind == static_cast<uint32_t>(PullKind::kRead);
  return reads ? PullKind::kRead : PullKind::kTrain;
}

absl::StatusOr<PullRequest> DecodePullRequest(const grpc::ByteBuffer& bytes) {
  PullRequest pull;
  uint32_t kind = 0;
  std::vector<ScannedKeys> scanned;
  RETURN_IF_ERROR(ScanMessage(bytes, "PullRequest", [&](CodedInputStream& in, uint32_t tag) {
    switch (tag) {
      case BytesTag(fields::kPullHeader):
        return ReadHeader(in, &pull.header);
      case VarintTag(fields::kPullKind):
        return ReadUint32(in, &kind);
      case VarintTag(fields::kPullStep):
        return ReadStep(in, &pull.step);
      case VarintTag(fields::kPullStalenessSteps):
        return ReadUint32(in, &pull.staleness_steps);
      case VarintTag(fields::kPullAfterStep):
        return ReadStep(in, &pull.after_step);
      case BytesTag(fields::kPullTables):
        return ReadTableAndBulk(in, &scanned);
      case VarintTag(fields::kPullWithState):
        return ReadBool(in, &pull.with_state);
      case VarintTag(fields::kPullCountRows):
        return ReadBool(in, &pull.count_rows);
      default:
        return WireFormatLite::SkipField(&in, tag);
    }
  }));
  if (kind > static_cast<uint32_t>(PullKind::kRead)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown kind of pull ", kind));
  }
  pull.kind = static_cast<PullKind>(kind);

  size_t num_keys = 0;
  pull.tables.reserve(scanned.size());
  for (const ScannedKeys& table : scanned) {
    RETURN_IF_ERROR(CheckKeys(table.table, table.keys));
    const size_t n = table.keys.bytes / sizeof(Key);
    pull.tables.push_back({table.table, num_keys, n});
    num_keys += n;
  }
  pull.keys.resize(num_keys);
  std::vector<BulkCopy> copies;
  copies.reserve(scanned.size());
  for (size_t i = 0; i < scanned.size(); ++i) {
    copies.push_back({scanned[i].keys, pull.keys.data() + pull.tables[i].begin});
  }
  CopyBulk(bytes, &copies);
  return pull;
}

absl::StatusOr<PushChunk> DecodePushChunk(const grpc::ByteBuffer& bytes) {
  PushChunk push;
  push.num_chunks = 0;
  std::vector<ScannedPush> scanned;
  RETURN_IF_ERROR(ScanMessage(bytes, "PushRequest", [&](CodedInputStream& in, uint32_t tag) {
    switch (tag) {
      case BytesTag(fields::kPushHeader):
        return ReadHeader(in, &push.header);
      case VarintTag(fields::kPushStep):
        return ReadStep(in, &push.step);
      case VarintTag(fields::kPushChunk):
        return ReadUint32(in, &push.chunk);
      case VarintTag(fields::kPushNumChunks):
        return ReadUint32(in, &push.num_chunks);
      case Fixed32Tag(fields::kPushLearningRate):
        return ReadFloat(in, &push.learning_rate);
      case BytesTag(fields::kPushTables):
        return ReadTablePush(in, &scanned);
      case BytesTag(fields::kPushRowLimits):
        return ReadRowLimit(in, &push.row_limits);
      default:
        return WireFormatLite::SkipField(&in, tag);
    }
  }));

  size_t num_keys = 0, num_values = 0;
  push.tables.reserve(scanned.size());
  for (const ScannedPush& table : scanned) {
    RETURN_IF_ERROR(CheckTablePush(table));
    const size_t n = table.keys.bytes / sizeof(Key);
    const size_t floats = table.values.bytes / sizeof(float);
    push.tables.push_back(
        {table.table, static_cast<PushKind>(table.kind), num_keys, n, num_values, floats});
    num_keys += n;
    num_values += floats;
  }
  push.keys.resize(num_keys);
  push.counts.resize(num_keys);
  push.values.resize(num_values);
  std::vector<BulkCopy> copies;
  copies.reserve(3 * scanned.size());
  for (size_t i = 0; i < scanned.size(); ++i) {
    const PushRange& range = push.tables[i];
    copies.push_back({scanned[i].keys, push.keys.data() + range.begin});
    copies.push_back({scanned[i].counts, push.counts.data() + range.begin});
    copies.push_back({scanned[i].values, push.values.data() + range.value_begin});
  }
  CopyBulk(bytes, &copies);
  return push;
}

absl::StatusOr<PullAnswer> DecodePullReply(const grpc::ByteBuffer& bytes,
                                           absl::Span<const RowsView> tables) {
  PullAnswer answer;
  uint32_t readiness = 0;
  std::vector<ScannedKeys> scanned;
  std::vector<ScannedCounts> counts;
  scanned.reserve(tables.size());
  const absl::Status status =
      ScanMessage(bytes, "PullReply", [&](CodedInputStream& in, uint32_t tag) {
        switch (tag) {
          case VarintTag(fields::kReplyReadiness):
            return ReadUint32(in, &readiness);
          case VarintTag(fields::kReplyThrough):
            return ReadStep(in, &answer.complete_through);
          case BytesTag(fields::kPullReplyTables):
            return ReadTableAndBulk(in, &scanned);
          case BytesTag(fields::kPullReplyRowCounts):
            return ReadRowCounts(in, &counts);
          default:
            return WireFormatLite::SkipField(&in, tag);
        }
      });
  if (!status.ok()) return MalformedReply(status.message());
  ASSIGN_OR_RETURN(answer.readiness, CheckReadiness(readiness));
  if (answer.readiness != Readiness::kReady) return answer;

  if (scanned.size() != tables.size()) {
    return MalformedReply(
        absl::StrCat(scanned.size(), " tables for ", tables.size(), " asked for"));
  }
  std::vector<BulkCopy> copies;
  copies.reserve(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    const size_t want = tables[i].rows.size() * sizeof(float);
    if (scanned[i].table != tables[i].table || scanned[i].keys.bytes != want) {
      return MalformedReply(absl::StrCat("table ", scanned[i].table.value(), " with ",
                                         scanned[i].keys.bytes, " bytes of rows, where table ",
                                         tables[i].table.value(), " with ", want, " is due"));
    }
    copies.push_back({scanned[i].keys, tables[i].rows.data()});
  }
  answer.row_counts.reserve(counts.size());  // No copy's destination moves.
  for (const ScannedCounts& of_table : counts) {
    const size_t n = of_table.groups.bytes / sizeof(uint32_t);
    if (of_table.groups.bytes % sizeof(uint32_t) != 0 ||
        of_table.rows.bytes != n * sizeof(uint64_t)) {
      return MalformedReply(absl::StrCat("table ", of_table.table.value(), " with ",
                                         of_table.groups.bytes, " bytes of groups and ",
                                         of_table.rows.bytes, " of their rows"));
    }
    TableRowCounts& to = answer.row_counts.emplace_back();
    to.table = of_table.table;
    to.groups.resize(n);
    to.rows.resize(n);
    copies.push_back({of_table.groups, to.groups.data()});
    copies.push_back({of_table.rows, to.rows.data()});
  }
  CopyBulk(bytes, &copies);
  return answer;
}

absl::StatusOr<PushAnswer> DecodePushReply(const grpc::ByteBuffer& bytes) {
  PushAnswer answer;
  uint32_t readiness = 0;
  const absl::Status status =
      ScanMessage(bytes, "PushReply", [&](CodedInputStream& in, uint32_t tag) {
        switch (tag) {
          case VarintTag(fields::kReplyReadiness):
            return ReadUint32(in, &readiness);
          case VarintTag(fields::kReplyThrough):
            return ReadStep(in, &answer.accepted_through);
          default:
            return WireFormatLite::SkipField(&in, tag);
        }
      });
  if (!status.ok()) return MalformedReply(status.message());
  ASSIGN_OR_RETURN(answer.readiness, CheckReadiness(readiness));
  return answer;
}

}  // namespace thermocline::wire
