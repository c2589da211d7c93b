#include "deploy/nodes/node_agent.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace thermocline {
namespace {

// One report has at most so many bytes of metrics and of logs; the rest comes with the next.
constexpr size_t kMostMetricsBytes = 1 << 20;
constexpr size_t kMostLogBytes = 1 << 20;
// Heartbeats whose answers may still come.
constexpr size_t kMostHeartbeats = 1000;

}  // namespace

NodeAgent::NodeAgent(NodeHello hello, std::function<uint64_t()> make_nonce)
    : hello_(std::move(hello)), make_nonce_(std::move(make_nonce)), nonce_(make_nonce_()) {}

NodeAgent::Key NodeAgent::KeyOf(const NodeProcess& id) {
  return {id.role(), id.index(), id.generation(), id.incarnation()};
}

size_t NodeAgent::running() const {
  return static_cast<size_t>(std::count_if(processes_.begin(), processes_.end(), [](const auto& p) {
    return !p.second.report.has_end() && !p.second.waits_for_certificate;
  }));
}

std::vector<NodeAction> NodeAgent::TakeActions() { return std::exchange(actions_, {}); }

// Orders
// ------------------------------------------------------------------------------------------------

bool NodeAgent::IsCurrent(absl::Duration now, const NodeOrder& order) const {
  if (is_ending_ || order.nonce() != nonce_) return false;
  if (order.job() != order_.job() || order.run_dir() != order_.run_dir()) return !HasLease(now);
  return std::pair(order.generation(), order.number()) >=
         std::pair(order_.generation(), order_.number());
}

// An answer that comes too late renews nothing.
void NodeAgent::Renew(absl::Duration now, const NodeOrder& order) {
  const auto answered = std::find_if(sent_.begin(), sent_.end(), [&](const auto& heartbeat) {
    return heartbeat.first == order.heartbeat();
  });
  if (answered == sent_.end()) return;
  lease_ = absl::Milliseconds(order.lease_ms());
  const absl::Duration until = answered->second + lease_;
  sent_.erase(sent_.begin(), answered);
  if (now >= until) return;
  lease_until_ = is_leased_ ? std::max(lease_until_, until) : until;
  is_leased_ = true;
}

void NodeAgent::OnOrder(absl::Duration now, const NodeOrder& order) {
  OnTick(now);  // The lease may be over.
  if (!IsCurrent(now, order)) return;
  const bool is_other_job = order.job() != order_.job() || order.run_dir() != order_.run_dir();
  if (is_other_job) prepared_ = 0;
  if (is_other_job || order.generation() != order_.generation()) started_.clear();
  has_news_ |= is_other_job || order.number() != order_.number();
  order_ = order;
  if (KeyOf(order.metrics().id()) == KeyOf(metrics_of_) &&
      order.metrics().offset() > metrics_begin_) {
    const size_t arrived =
        std::min<uint64_t>(order.metrics().offset() - metrics_begin_, metrics_.size());
    metrics_.erase(0, arrived);
    metrics_begin_ += arrived;
    has_news_ |= !metrics_.empty();
  }
  const auto is_asked = [&order](const LogLines& lines) {
    return std::any_of(order.logs().begin(), order.logs().end(),
                       [&](const LogRequest& request) { return request.id() == lines.id(); });
  };
  logs_.erase(std::remove_if(logs_.begin(), logs_.end(),
                             [&](const LogLines& lines) { return !is_asked(lines); }),
              logs_.end());
  Renew(now, order);
  is_job_over_ |= order.has_ended();
  if (order.is_lost()) {
    EndAll();
  } else if (order.has_ended()) {
    order_.clear_wanted();
  }
  Work(now);
}

// Processes
// ------------------------------------------------------------------------------------------------

void NodeAgent::OnNeedsCertificate(const NodeProcess& id, const std::string& request) {
  const auto found = processes_.find(KeyOf(id));
  if (found == processes_.end()) return;
  found->second.report.set_certificate_request(request);
  found->second.waits_for_certificate = true;
  has_news_ = true;
}

void NodeAgent::OnServes(const NodeProcess& id, const std::string& address,
                         const std::string& log) {
  const auto found = processes_.find(KeyOf(id));
  if (found == processes_.end()) return;
  found->second.report.set_address(address);
  found->second.report.set_log(log);
  has_news_ = true;
}

void NodeAgent::OnMetrics(const NodeProcess& id, absl::string_view data) {
  if (KeyOf(id) != KeyOf(metrics_of_)) {
    metrics_of_ = id;
    metrics_begin_ = 0;
    metrics_.clear();
  }
  metrics_.append(data.data(), data.size());
  has_news_ = true;
}

void NodeAgent::OnEnd(absl::Duration now, const NodeProcess& id, const ProcessEndReport& end) {
  const auto found = processes_.find(KeyOf(id));
  if (found == processes_.end()) return;
  *found->second.report.mutable_end() = end;
  if (KeyOf(id) == KeyOf(metrics_of_)) {
    found->second.report.set_metrics_bytes(metrics_begin_ + metrics_.size());
  }
  has_news_ = true;
  Work(now);
}

void NodeAgent::OnTick(absl::Duration now) {
  if (is_leased_ && now >= lease_until_) EndAll();
  Work(now);
}

absl::Duration NodeAgent::next_tick() const {
  absl::Duration next = is_leased_ ? lease_until_ : absl::InfiniteDuration();
  for (const auto& [key, process] : processes_) {
    if (process.report.has_end() || process.is_killed) continue;
    next = std::min(next, process.kill_at);
  }
  return next;
}

// At once: what they do from now on is void.
void NodeAgent::EndAll() {
  is_leased_ = false;
  is_ending_ = true;
  nonce_ = 0;
  order_.clear_wanted();
  order_.set_grace_ms(0);
  sent_.clear();
}

void NodeAgent::StopUnwanted(absl::Duration now) {
  std::set<Key> wanted;
  for (const WantedProcess& process : order_.wanted()) wanted.insert(KeyOf(process.id()));
  for (auto each = processes_.begin(); each != processes_.end();) {
    Process& process = each->second;
    if (wanted.count(each->first) != 0) {
      ++each;
      continue;
    }
    if (process.report.has_end() || process.waits_for_certificate) {
      has_news_ = true;
      each = processes_.erase(each);
      continue;
    }
    const absl::Duration kill_at = now + absl::Milliseconds(order_.grace_ms());
    process.kill_at = std::min(process.kill_at, kill_at);
    if (now >= process.kill_at) {
      if (!std::exchange(process.is_killed, true)) {
        actions_.push_back(node_action::Signal{process.report.id(), true});
      }
    } else if (!std::exchange(process.is_asked_to_end, true)) {
      actions_.push_back(node_action::Signal{process.report.id(), false});
    }
    ++each;
  }
}

void NodeAgent::StartWanted() {
  if (order_.wanted().empty()) return;
  const bool has_earlier = std::any_of(processes_.begin(), processes_.end(), [this](const auto& p) {
    return p.second.report.id().generation() != order_.generation();
  });
  if (has_earlier) return;
  if (prepared_ != order_.generation()) {
    prepared_ = order_.generation();
    actions_.push_back(node_action::Prepare{order_});
  }
  for (const WantedProcess& wanted : order_.wanted()) {
    if (wanted.id().generation() != order_.generation()) continue;
    if (!started_.insert(KeyOf(wanted.id())).second) {
      TakeCertificate(wanted);
      continue;
    }
    Process& process = processes_[KeyOf(wanted.id())];
    *process.report.mutable_id() = wanted.id();
    actions_.push_back(node_action::Start{wanted});
    has_news_ = true;
  }
}

void NodeAgent::TakeCertificate(const WantedProcess& wanted) {
  const auto found = processes_.find(KeyOf(wanted.id()));
  if (found == processes_.end()) return;
  Process& process = found->second;
  if (process.report.has_end() || wanted.certificate() == process.certificate) return;
  process.certificate = wanted.certificate();
  process.report.clear_certificate_request();  // The controller has it.
  if (std::exchange(process.waits_for_certificate, false)) {
    actions_.push_back(node_action::Start{wanted});
  } else {
    actions_.push_back(node_action::Renew{wanted});
  }
}

void NodeAgent::Work(absl::Duration now) {
  StopUnwanted(now);
  if (is_ending_) {
    if (!processes_.empty()) return;
    is_ending_ = false;
    nonce_ = make_nonce_();
    heartbeat_ = 0;
    metrics_of_.Clear();
    metrics_begin_ = 0;
    metrics_.clear();
    logs_.clear();
    has_news_ = true;
  }
  if (is_job_over_) {
    has_ended_ = processes_.empty();
    return;
  }
  if (HasLease(now) && unfit_.empty()) StartWanted();
}

// Reports
// ------------------------------------------------------------------------------------------------

NodeReport NodeAgent::MakeReport(absl::Duration now) {
  CHECK(MayReport());
  NodeReport report;
  *report.mutable_hello() = hello_;
  report.set_nonce(nonce_);
  report.set_heartbeat(++heartbeat_);
  sent_.emplace_back(heartbeat_, now);
  if (sent_.size() > kMostHeartbeats) sent_.pop_front();
  report.set_generation(order_.generation());
  report.set_order(order_.number());
  for (const auto& [key, process] : processes_) *report.add_processes() = process.report;
  if (!metrics_.empty()) {
    *report.mutable_metrics()->mutable_id() = metrics_of_;
    report.mutable_metrics()->set_offset(metrics_begin_);
    report.mutable_metrics()->set_data(metrics_.substr(0, kMostMetricsBytes));
  }
  size_t log_bytes = 0;
  for (const LogLines& lines : logs_) {
    log_bytes += lines.ByteSizeLong();
    if (report.logs_size() > 0 && log_bytes > kMostLogBytes) break;
    *report.add_logs() = lines;
  }
  report.set_unfit(unfit_);
  has_news_ = false;
  return report;
}

}  // namespace thermocline
