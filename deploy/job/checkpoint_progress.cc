#include "deploy/job/checkpoint_progress.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

CheckpointVerdict Lost(std::string reason) {
  CheckpointVerdict verdict;
  verdict.kind = CheckpointVerdict::kLost;
  verdict.reason = std::move(reason);
  return verdict;
}

}  // namespace

void CheckpointProgress::Forget(size_t server) {
  const uint64_t incarnation = servers_[server].incarnation + 1;
  servers_[server] = Server();
  servers_[server].incarnation = incarnation;
}

void CheckpointProgress::Update(size_t server, const CheckpointReply& reply) {
  Server& state = servers_[server];
  const Step accepted(reply.accepted_through());
  state.stands_still = state.has_answered && state.accepted_through == accepted;
  state.accepted_through = accepted;
  state.has_answered = true;
  state.passed = state.complete_through;
  state.complete_through = Step(reply.complete_through());
  state.cuts.clear();
  for (const CutStatus& cut : reply.cuts()) state.cuts[Step(cut.step())] = cut;
}

void CheckpointProgress::Named(size_t server, Step cut) {
  CutStatus& status = servers_[server].cuts[cut];
  status.set_step(cut.value());
  status.set_state(CutStatus::NAMED);
}

std::set<Step> CheckpointProgress::Cuts() const {
  std::set<Step> cuts;
  for (const Server& server : servers_) {
    for (const auto& [step, cut] : server.cuts) cuts.insert(step);
  }
  return cuts;
}

CheckpointVerdict CheckpointProgress::Judge(Step cut) const {
  CheckpointVerdict verdict;
  size_t written = 0;
  for (size_t i = 0; i < servers_.size(); ++i) {
    const Server& server = servers_[i];
    const auto found = server.cuts.find(cut);
    if (found == server.cuts.end()) {
      if (server.passed >= cut) {
        return Lost(absl::StrCat("server ", i, " has passed it without writing its shard"));
      }
      if (server.has_answered && server.complete_through < cut) verdict.ahead.push_back(i);
      if (server.has_answered && server.complete_through == cut) verdict.there.push_back(i);
      continue;
    }
    const CutStatus& status = found->second;
    if (status.state() == CutStatus::FAILED) {
      return Lost(absl::StrCat("server ", i, ": ", status.error()));
    }
    written += status.state() == CutStatus::WRITTEN ? 1 : 0;
  }
  if (written == servers_.size()) verdict.kind = CheckpointVerdict::kWhole;
  return verdict;
}

std::vector<CutStatus> CheckpointProgress::Shards(Step cut) const {
  std::vector<CutStatus> shards;
  for (const Server& server : servers_) {
    const auto found = server.cuts.find(cut);
    CHECK(found != server.cuts.end());
    shards.push_back(found->second);
  }
  return shards;
}

Step CheckpointProgress::Furthest() const {
  Step furthest = kNoStep;
  for (const Server& server : servers_) furthest = std::max(furthest, server.complete_through);
  return furthest;
}

std::optional<Step> CheckpointProgress::CommonStep() const {
  for (const Server& server : servers_) {
    if (!server.has_answered || server.complete_through != servers_[0].complete_through) {
      return std::nullopt;
    }
  }
  return servers_[0].complete_through;
}

bool CheckpointProgress::MayLackPushes() const {
  return std::any_of(servers_.begin(), servers_.end(), [](const Server& server) {
    return server.incarnation > 0 && server.stands_still;
  });
}

}  // namespace thermocline
