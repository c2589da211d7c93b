#include "server/rpc/testing/served_core.h"

#include <cstring>

#include "absl/strings/match.h"

namespace thermocline::testing_rpc {
namespace {

void FillHeader(RequestHeader* header, int64_t acked_through = -1) {
  header->set_job_id("job");
  header->set_generation(7);
  if (acked_through >= 0) header->set_acked_through(acked_through);
}

std::string Floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

std::string Keys(const std::vector<Key>& keys) {
  return std::string(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(Key));
}

}  // namespace

ConfigureRequest JobOf(uint32_t workers) {
  ConfigureRequest request;
  request.set_protocol_version(wire::kProtocolVersion);
  request.set_job_id("job");
  request.set_generation(7);
  request.set_num_servers(1);
  request.set_num_workers(workers);
  request.set_seed(5);
  TableSpec* table = request.add_tables();
  table->set_id(3);
  table->set_name("C3");
  table->set_dim(kDim);
  table->mutable_optimizer()->mutable_sgd();
  table->set_init_scale(0.5f);
  return request;
}

PullRequest PullOf(int64_t step, const std::vector<Key>& keys) {
  PullRequest pull;
  FillHeader(pull.mutable_header());
  pull.set_step(step);
  if (step > 0) pull.set_after_step(step - 1);
  pull.add_tables()->set_table(3);
  pull.mutable_tables(0)->set_keys(Keys(keys));
  return pull;
}

PushRequest PushOf(int64_t step, const std::vector<Key>& keys, const std::vector<float>& values) {
  PushRequest push;
  FillHeader(push.mutable_header());
  push.set_step(step);
  push.set_num_chunks(1);
  push.set_learning_rate(1.0f);
  TablePush* table = push.add_tables();
  table->set_table(3);
  table->set_keys(Keys(keys));
  table->set_values(Floats(values));
  const std::vector<uint32_t> counts(keys.size(), 1);
  table->set_counts(std::string(reinterpret_cast<const char*>(counts.data()), counts.size() * 4));
  return push;
}

void ExpectError(const absl::Status& status, absl::StatusCode code,
                 const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << " lacks '" << part << "'";
  }
}

std::vector<float> ToFloats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace thermocline::testing_rpc
