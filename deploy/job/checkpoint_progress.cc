#include "deploy/job/checkpoint_progress.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

CheckpointState Lost(std::string reason) {
  CheckpointState state;
  state.kind = CheckpointState::kLost;
  state.reason = std::move(reason);
  return state;
}

constexpr int kAttemptsAtWorker = 5;

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

void CheckpointProgress::ForgetCut(Step cut) {
  for (Server& server : servers_) server.cuts.erase(cut);
}

std::set<Step> CheckpointProgress::Cuts() const {
  std::set<Step> cuts;
  for (const Server& server : servers_) {
    for (const auto& [step, cut] : server.cuts) cuts.insert(step);
  }
  return cuts;
}

CheckpointState CheckpointProgress::StateOf(Step cut) const {
  CheckpointState state;
  size_t written = 0, begun = 0;
  for (size_t i = 0; i < servers_.size(); ++i) {
    const Server& server = servers_[i];
    const auto found = server.cuts.find(cut);
    if (found == server.cuts.end()) {
      if (server.passed >= cut) {
        return Lost(absl::StrCat("server ", i, " has passed it without writing its shard"));
      }
      if (server.has_answered && server.complete_through < cut) state.ahead.push_back(i);
      if (server.has_answered && server.complete_through == cut) state.there.push_back(i);
      continue;
    }
    const CutStatus& status = found->second;
    if (status.state() == CutStatus::FAILED) {
      return Lost(absl::StrCat("server ", i, ": ", status.error()));
    }
    written += status.state() == CutStatus::WRITTEN ? 1 : 0;
    begun += status.state() == CutStatus::NAMED ? 0 : 1;
  }
  if (written == servers_.size()) {
    state.kind = CheckpointState::kWhole;
  } else {
    state.is_begun = begun == servers_.size();
  }
  return state;
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

void CheckpointNotifier::Send(CheckpointRequest::Action action, Step step) {
  for (size_t i = 0; i < incarnations_.size(); ++i) {
    messages_.push_back({{false, i, action, step}, incarnations_[i]});
  }
  if (action == CheckpointRequest::CALL_OFF) CallOffAtWorkers(step);
}

void CheckpointNotifier::CallOffAtWorkers(Step step) {
  for (size_t i = 0; i < num_workers_; ++i) {
    messages_.push_back({{true, i, CheckpointRequest::CALL_OFF, step}});
  }
}

bool CheckpointNotifier::IsVoid(const Message& message) const {
  return !message.call.to_worker && message.incarnation != incarnations_[message.call.index];
}

void CheckpointNotifier::DropDone() {
  messages_.erase(
      std::remove_if(messages_.begin(), messages_.end(),
                     [this](const Message& each) { return each.is_done || IsVoid(each); }),
      messages_.end());
}

// In order: a server that learns of a later checkpoint takes an earlier one for settled.
std::vector<CheckpointCall> CheckpointNotifier::CallsToServers(const std::vector<bool>& answers) {
  DropDone();
  asked_.clear();
  std::vector<CheckpointCall> calls;
  for (size_t i = 0; i < messages_.size(); ++i) {
    const CheckpointCall& call = messages_[i].call;
    if (call.to_worker || !answers[call.index]) continue;
    asked_.push_back(i);
    calls.push_back(call);
  }
  return calls;
}

std::vector<CheckpointCall> CheckpointNotifier::CallsToWorkers() {
  DropDone();
  asked_.clear();
  std::set<Step> not_at_all_servers;
  for (const Message& message : messages_) {
    if (!message.call.to_worker) not_at_all_servers.insert(message.call.step);
  }
  std::vector<CheckpointCall> calls;
  for (size_t i = 0; i < messages_.size(); ++i) {
    const CheckpointCall& call = messages_[i].call;
    if (!call.to_worker || not_at_all_servers.count(call.step) > 0) continue;
    asked_.push_back(i);
    calls.push_back(call);
  }
  return calls;
}

// A refusal is an answer: another process has replaced the server, or the worker has ended.
void CheckpointNotifier::OnAnswers(const CheckpointAnswers& answers) {
  CHECK_EQ(answers.size(), asked_.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    Message& message = messages_[asked_[i]];
    ++message.attempts;
    message.is_done = !IsUnanswered(answers[i].status()) ||
                      (message.call.to_worker && message.attempts >= kAttemptsAtWorker);
  }
  asked_.clear();
  DropDone();
}

bool CheckpointNotifier::IsPending(Step step) const {
  return std::any_of(messages_.begin(), messages_.end(), [&](const Message& message) {
    return message.call.step == step && !IsVoid(message);
  });
}

std::optional<Step> CheckpointClients::exact() const {
  for (const Client& client : clients_) {
    if (client.is_exact) return client.at_least;
  }
  return std::nullopt;
}

std::vector<std::string> CheckpointClients::Unanswered() const {
  std::vector<std::string> ids;
  for (const Client& client : clients_) {
    if (!client.is_exact) ids.push_back(client.id);
  }
  return ids;
}

void CheckpointClients::OnStatus(Step furthest) {
  for (Client& client : clients_) {
    if (!client.at_least) client.at_least = furthest;
  }
}

void CheckpointClients::Answer(Step step, const absl::StatusOr<std::string>& result,
                               bool exact_too) {
  const auto waits = [&](const Client& client) {
    if (client.is_exact) return !exact_too || *client.at_least != step;
    return !client.at_least || *client.at_least > step;
  };
  const auto middle = std::stable_partition(clients_.begin(), clients_.end(), waits);
  for (auto client = middle; client != clients_.end(); ++client) {
    answers_.push_back({client->id, result});
  }
  clients_.erase(middle, clients_.end());
}

}  // namespace thermocline
