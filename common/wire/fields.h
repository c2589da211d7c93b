// Field numbers of the data plane's messages in proto/parameter_server.proto. codec_test.cc
// compares them with the generated classes.
#ifndef THERMOCLINE_COMMON_WIRE_FIELDS_H_
#define THERMOCLINE_COMMON_WIRE_FIELDS_H_

#include <cstdint>

namespace thermocline::wire::fields {

inline constexpr uint32_t kHeaderJobId = 1;
inline constexpr uint32_t kHeaderGeneration = 2;
inline constexpr uint32_t kHeaderWorkerRank = 3;
inline constexpr uint32_t kHeaderAckedThrough = 4;

inline constexpr uint32_t kPullHeader = 1;
inline constexpr uint32_t kPullKind = 2;
inline constexpr uint32_t kPullStep = 3;
inline constexpr uint32_t kPullStalenessSteps = 4;
inline constexpr uint32_t kPullAfterStep = 5;
inline constexpr uint32_t kPullTables = 7;
inline constexpr uint32_t kPullWithState = 8;
inline constexpr uint32_t kPullCountRows = 9;

inline constexpr uint32_t kTableKeysTable = 1;
inline constexpr uint32_t kTableKeysKeys = 2;

// PullReply and PushReply alike.
inline constexpr uint32_t kReplyReadiness = 1;
inline constexpr uint32_t kReplyThrough = 2;
inline constexpr uint32_t kPullReplyTables = 3;
inline constexpr uint32_t kPullReplyRowCounts = 4;

inline constexpr uint32_t kRowCountsTable = 1;
inline constexpr uint32_t kRowCountsNewest = 2;
inline constexpr uint32_t kRowCountsRows = 3;

inline constexpr uint32_t kTableRowsTable = 1;
inline constexpr uint32_t kTableRowsRows = 2;

inline constexpr uint32_t kPushHeader = 1;
inline constexpr uint32_t kPushStep = 2;
inline constexpr uint32_t kPushChunk = 4;
inline constexpr uint32_t kPushNumChunks = 5;
inline constexpr uint32_t kPushLearningRate = 6;
inline constexpr uint32_t kPushTables = 8;
inline constexpr uint32_t kPushRowLimits = 9;

inline constexpr uint32_t kRowLimitTable = 1;
inline constexpr uint32_t kRowLimitOldestKept = 2;

inline constexpr uint32_t kTablePushTable = 1;
inline constexpr uint32_t kTablePushKind = 2;
inline constexpr uint32_t kTablePushKeys = 3;
inline constexpr uint32_t kTablePushValues = 4;
inline constexpr uint32_t kTablePushCounts = 5;

}  // namespace thermocline::wire::fields

#endif  // THERMOCLINE_COMMON_WIRE_FIELDS_H_
