// A protobuf message as JSON with 64-bit integers as numbers (protobuf's own printer quotes them),
// every field present, names as in the .proto file.
#ifndef THERMOCLINE_DEPLOY_CONSOLE_PROTO_JSON_H_
#define THERMOCLINE_DEPLOY_CONSOLE_PROTO_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace thermocline {

// Bytes fields are left out: none of the messages shown has any.
nlohmann::ordered_json ProtoToJson(const google::protobuf::Message& message);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONSOLE_PROTO_JSON_H_
