// Protobuf messages as JSON for users and their programs: stats, results of workers, plans.
#ifndef THERMOCLINE_COMMON_JSON_MESSAGE_JSON_H_
#define THERMOCLINE_COMMON_JSON_MESSAGE_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace thermocline {

// The message's fields in the order of the .proto file and under its names. 64-bit integers are
// numbers (protobuf's own printer quotes them), and fields with their default value are there, too.
// Left out are messages and `optional` fields that are absent, and fields of bytes.
nlohmann::ordered_json MessageToJson(const google::protobuf::Message& message);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JSON_MESSAGE_JSON_H_
