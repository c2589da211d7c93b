#include "deploy/controller/cut_messages.h"

#include <algorithm>
#include <set>
#include <utility>

namespace thermocline {
namespace {

constexpr int kAttemptsAtWorker = 5;

}  // namespace

void CutMessages::Send(CheckpointRequest::Action action, Step cut) {
  for (size_t i = 0; i < participants_.num_servers(); ++i) {
    messages_.push_back({action, cut, false, i, incarnation_(i)});
  }
  if (action == CheckpointRequest::CALL_OFF) CallOffAtWorkers(cut);
}

void CutMessages::CallOffAtWorkers(Step cut) {
  for (size_t i = 0; i < participants_.num_workers(); ++i) {
    messages_.push_back({CheckpointRequest::CALL_OFF, cut, true, i});
  }
}

bool CutMessages::IsDone(Message* message, bool answers) {
  ++message->attempts;
  if (message->to_worker) {
    const auto reply = participants_.AskWorker(message->index, message->action, message->cut);
    return !IsUnanswered(reply.status()) || message->attempts >= kAttemptsAtWorker;
  }
  if (incarnation_(message->index) != message->incarnation) return true;
  if (!answers) return false;
  // A refusal is an answer: another process is there by now.
  const auto reply = participants_.AskServer(message->index, message->action, message->cut);
  return !IsUnanswered(reply.status());
}

void CutMessages::Deliver(const std::vector<bool>& answers) {
  // By index. A server that learned of a later cut first would take it that the earlier is over.
  std::vector<bool> waits(participants_.num_servers(), false);
  std::set<Step> not_at_all_servers;
  std::vector<Message> left;
  for (Message& message : messages_) {
    if (message.to_worker) continue;
    const bool may_answer = answers.empty() || answers[message.index];
    if (!waits[message.index] && IsDone(&message, may_answer)) continue;
    waits[message.index] = true;
    not_at_all_servers.insert(message.cut);
    left.push_back(message);
  }
  for (Message& message : messages_) {
    if (!message.to_worker) continue;
    if (not_at_all_servers.count(message.cut) > 0 || !IsDone(&message, true))
      left.push_back(message);
  }
  messages_ = std::move(left);
}

bool CutMessages::IsPending(Step cut) const {
  return std::any_of(messages_.begin(), messages_.end(),
                     [cut](const Message& message) { return message.cut == cut; });
}

}  // namespace thermocline
