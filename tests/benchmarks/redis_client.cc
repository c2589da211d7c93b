#include "tests/benchmarks/redis_client.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

constexpr size_t kKeysPerSet = 1000;

}  // namespace

absl::StatusOr<std::unique_ptr<RedisClient>> RedisClient::Connect(const std::string& unix_socket) {
  redisContext* context = redisConnectUnix(unix_socket.c_str());
  if (context == nullptr) return absl::UnavailableError("no memory for a connection to Redis");
  std::unique_ptr<RedisClient> client(new RedisClient(context));
  if (context->err != 0) return client->Broken();
  return client;
}

absl::Status RedisClient::Broken() const {
  return absl::UnavailableError(absl::StrCat("Redis: ", context_->errstr));
}

absl::Status RedisClient::Set(absl::Span<const Key> keys, absl::Span<const float> rows) {
  const size_t dim = rows.size() / keys.size();
  for (size_t begin = 0; begin < keys.size(); begin += kKeysPerSet) {
    const size_t end = std::min(keys.size(), begin + kKeysPerSet);
    std::vector<const char*> arguments = {"MSET"};
    std::vector<size_t> sizes = {4};
    for (size_t i = begin; i < end; ++i) {
      arguments.push_back(reinterpret_cast<const char*>(&keys[i]));
      sizes.push_back(sizeof(Key));
      arguments.push_back(reinterpret_cast<const char*>(&rows[i * dim]));
      sizes.push_back(dim * sizeof(float));
    }
    const Reply reply(static_cast<redisReply*>(redisCommandArgv(
        context_.get(), static_cast<int>(arguments.size()), arguments.data(), sizes.data())));
    if (reply == nullptr) return Broken();
    if (reply->type == REDIS_REPLY_ERROR) return absl::InternalError(reply->str);
  }
  return absl::OkStatus();
}

absl::Status RedisClient::MultiGet(absl::Span<const Key> keys, size_t keys_per_command,
                                   absl::Span<float> rows) {
  std::vector<const char*> arguments;
  std::vector<size_t> sizes;
  for (size_t begin = 0; begin < keys.size(); begin += keys_per_command) {
    arguments.assign(1, "MGET");
    sizes.assign(1, 4);
    for (const Key& key : keys.subspan(begin, keys_per_command)) {
      arguments.push_back(reinterpret_cast<const char*>(&key));
      sizes.push_back(sizeof(Key));
    }
    if (redisAppendCommandArgv(context_.get(), static_cast<int>(arguments.size()), arguments.data(),
                               sizes.data()) != REDIS_OK) {
      return Broken();
    }
  }
  const size_t dim = rows.size() / keys.size();
  for (size_t begin = 0; begin < keys.size(); begin += keys_per_command) {
    const size_t n = std::min(keys.size() - begin, keys_per_command);
    RETURN_IF_ERROR(ReadMultiGet(keys.subspan(begin, n), rows.subspan(begin * dim, n * dim)));
  }
  return absl::OkStatus();
}

absl::Status RedisClient::ReadMultiGet(absl::Span<const Key> keys, absl::Span<float> rows) {
  void* raw = nullptr;
  if (redisGetReply(context_.get(), &raw) != REDIS_OK) return Broken();
  const Reply reply(static_cast<redisReply*>(raw));
  if (reply->type != REDIS_REPLY_ARRAY || reply->elements != keys.size()) {
    return absl::DataLossError("Redis: an MGET's reply is no array of its keys");
  }
  const size_t dim = rows.size() / keys.size();
  for (size_t i = 0; i < keys.size(); ++i) {
    const redisReply& value = *reply->element[i];
    if (value.type != REDIS_REPLY_STRING) {
      return absl::NotFoundError(absl::StrCat("Redis: no row for key ", keys[i]));
    }
    if (value.len != dim * sizeof(float)) return absl::DataLossError("Redis: a row is cut");
    std::memcpy(&rows[i * dim], value.str, value.len);
  }
  return absl::OkStatus();
}

}  // namespace thermocline
