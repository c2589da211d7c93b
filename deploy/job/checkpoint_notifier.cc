#include "deploy/job/checkpoint_notifier.h"

#include <algorithm>
#include <set>

#include "common/base/check.h"

namespace thermocline {
namespace {

constexpr int kAttemptsAtWorker = 5;

}  // namespace

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

// A server that learned of a later checkpoint first would take it that the earlier one is over.
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

// A refusal is an answer: another process is there by now, or a worker has ended.
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

}  // namespace thermocline
