#include "deploy/nodes/node_table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

constexpr size_t kMostLogRequests = 256;  // At a time to one host, since each order has them all.

// Returns the build, with the protocol's version if that differs. Both must be the controller's.
std::string BuildOf(const NodeHello& hello) {
  if (hello.protocol_version() == kNodeProtocolVersion) return hello.build();
  return absl::StrCat(hello.build(), ", which speaks version ", hello.protocol_version(),
                      " of the protocol");
}

Host ToHost(const NodeReport& report) {
  const NodeHello& hello = report.hello();
  Host host;
  host.name = hello.host();
  host.nonce = report.nonce();
  host.address = hello.address();
  host.takes_servers = hello.takes_servers();
  host.takes_workers = hello.takes_workers();
  host.cores = hello.cores();
  host.gpus = hello.gpus();
  host.memory_bytes = hello.memory_bytes();
  host.free_disk_bytes = hello.free_disk_bytes();
  host.build = BuildOf(hello);
  return host;
}

// The host is where users find the log.
ProcessEnd ToProcessEnd(const std::string& host, const ProcessEndReport& report) {
  ProcessEnd end;
  if (report.has_exit_code()) end.exit_code = report.exit_code();
  end.how = report.how();
  end.report = absl::StrCat("on host ", host, " ", report.report());
  end.reason = report.reason();
  end.lacked_memory = report.lacked_memory();
  return end;
}

// Whether the one says that it is the other, which was started again, or registered anew.
bool IsSameAgent(const NodeHello& a, const NodeHello& b) {
  return a.machine() == b.machine() && a.address() == b.address() && a.folder() == b.folder();
}

}  // namespace

NodeProcess ToNodeProcess(const ProcessId& id) {
  NodeProcess process;
  process.set_role(id.role == ProcessRole::kServer ? NodeProcess::SERVER : NodeProcess::WORKER);
  process.set_index(id.index);
  process.set_generation(id.generation);
  process.set_incarnation(id.incarnation);
  return process;
}

ProcessId FromNodeProcess(const NodeProcess& id) {
  return {id.role() == NodeProcess::SERVER ? ProcessRole::kServer : ProcessRole::kWorker,
          id.index(), id.generation(), id.incarnation()};
}

NodeTable::NodeTable(Options options)
    : options_(std::move(options)), results_(options_.num_workers) {}

// What is wanted
// ------------------------------------------------------------------------------------------------

void NodeTable::Change(const std::string& host) {
  ++number_;
  changed_.insert(host);
}

void NodeTable::BeginGeneration(uint64_t generation) {
  generation_ = generation;
  ++number_;  // From 1: 0 is the number of no order.
  metrics_of_ = {};
  metrics_received_ = 0;
  metrics_.clear();
  results_.assign(options_.num_workers, {});
  are_results_new_ = true;
  for (auto& [name, host] : hosts_) {
    host.processes.clear();
    Change(name);
  }
}

void NodeTable::Start(const action::StartProcess& start) {
  const auto found = hosts_.find(start.host);
  if (found == hosts_.end()) return;  // The job machine is about to learn that it is lost.
  Placed placed;
  placed.id = start.id;
  *placed.wanted.mutable_id() = ToNodeProcess(start.id);
  placed.wanted.set_address(start.address);
  placed.wanted.set_first_step(start.first_step.value());
  placed.wanted.set_data_place(start.data_place);
  for (const std::string& server : start.servers) placed.wanted.add_servers(server);
  placed.wanted.set_local_rank(start.local_rank);
  found->second.processes.push_back(std::move(placed));
  places_[start.id.Name()] = {{"host", start.host}, {"log", ""}};
  are_places_new_ = true;
  if (start.id.role == ProcessRole::kWorker && start.id.index == 0) {
    metrics_of_ = start.id;
    metrics_received_ = 0;
  }
  Change(start.host);
}

void NodeTable::Stop(ProcessRole role, absl::Duration grace) {
  grace_ = grace;
  for (auto& [name, host] : hosts_) {
    Change(name);
    for (Placed& placed : host.processes) {
      if (placed.id.role != role || !std::exchange(placed.is_wanted, false)) continue;
      placed.dropped_in = number_;
    }
  }
}

bool NodeTable::AllGone(ProcessRole role) const {
  return std::all_of(hosts_.begin(), hosts_.end(), [role](const auto& host) {
    const std::vector<Placed>& processes = host.second.processes;
    return std::none_of(processes.begin(), processes.end(), [role](const Placed& placed) {
      return placed.id.role == role && !placed.has_ended;
    });
  });
}

std::optional<std::vector<nlohmann::ordered_json>> NodeTable::TakeResults() {
  if (!std::exchange(are_results_new_, false)) return std::nullopt;
  return results_;
}

std::optional<nlohmann::ordered_json> NodeTable::TakePlaces() {
  if (!std::exchange(are_places_new_, false)) return std::nullopt;
  return places_;
}

void NodeTable::End() {
  has_ended_ = true;
  for (const auto& [name, host] : hosts_) Change(name);
}

NodeOrder NodeTable::OrderFor(const std::string& name, uint64_t nonce) {
  NodeOrder order = options_.order;
  order.set_nonce(nonce);
  order.set_generation(generation_);
  order.set_number(number_);
  const auto found = hosts_.find(name);
  if (found == hosts_.end() || found->second.nonce != nonce) {
    order.set_is_lost(retired_.count({name, nonce}) != 0);
    return order;
  }
  const HostState& host = found->second;
  order.set_heartbeat(host.heartbeat);
  for (const Placed& placed : host.processes) {
    if (placed.is_wanted) *order.add_wanted() = placed.wanted;
  }
  order.set_grace_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(grace_)));
  *order.mutable_metrics()->mutable_id() = ToNodeProcess(metrics_of_);
  order.mutable_metrics()->set_offset(metrics_received_);
  for (const LogRequest& request : host.logs) *order.add_logs() = request;
  order.set_has_ended(has_ended_);
  return order;
}

// Reports
// ------------------------------------------------------------------------------------------------

void NodeTable::Lose(const std::string& name, HostState* host, const std::string& why) {
  retired_.insert({name, host->nonce});
  changed_.insert(name);
  if (host->is_up) events_.push_back(event::HostLost{name, host->nonce, why});
  const std::string how = absl::StrCat("was lost with host ", name, " (", why, ")");
  for (const Placed& placed : host->processes) {
    if (placed.is_wanted) {
      events_.push_back(event::ProcessEnded{placed.id, {std::nullopt, how, how}});
    }
  }
  for (const LogRequest& request : host->logs) {
    LogLines lines;
    lines.set_id(request.id());
    lines.set_error(absl::StrCat("host ", name, " is lost"));
    logs_.push_back(std::move(lines));
  }
  host->processes.clear();
  host->logs.clear();
}

// The job machine hears of hosts with another build, too: it names them where hosts are missing.
absl::Status NodeTable::Admit(const NodeReport& report, HostState* host) {
  const NodeHello& hello = report.hello();
  const bool is_of_another_build = BuildOf(hello) != options_.build;
  absl::Status status;
  if (is_of_another_build) {
    status = absl::FailedPreconditionError(
        absl::StrCat("host ", hello.host(), " is of another build: ", BuildOf(hello),
                     "; the controller's is ", options_.build,
                     hello.protocol_version() == kNodeProtocolVersion
                         ? ""
                         : absl::StrCat(", of version ", kNodeProtocolVersion)));
  } else if (!report.unfit().empty()) {
    status = absl::FailedPreconditionError(report.unfit());
  } else if (options_.sign) {
    status = CheckAddress(*host);
  }
  const bool has_checked = report.generation() == generation_ && report.order() > 0;
  if (is_of_another_build || (status.ok() && has_checked)) {
    events_.push_back(event::HostUp{ToHost(report)});
    host->is_up = true;
  }
  if (!status.ok()) {
    notices_.push_back(absl::StrCat("refused: ", status.message()));
    retired_.insert({hello.host(), report.nonce()});
    hosts_.erase(hello.host());
  }
  return status;
}

// The host may have gone, and the stranger be what the user wants in its place: then no sign of the
// host comes any more, and it is lost.
absl::Status NodeTable::TakeStranger(const NodeReport& report, HostState* host) {
  const NodeHello& hello = report.hello();
  const auto [came, is_new] = host->strangers.emplace(report.nonce(), host->heartbeat);
  if (is_new || host->heartbeat <= came->second) return absl::OkStatus();
  host->strangers.erase(came);
  const auto place = [](const NodeHello& agent) {
    return absl::StrCat(agent.address(), " (", agent.folder(), ")");
  };
  const std::string text = absl::StrCat("there is a host ", hello.host(), " already, at ",
                                        place(host->hello), "; an agent of the same name is at ",
                                        place(hello), ": give one of them another --name");
  if (told_.insert(text).second) notices_.push_back(absl::StrCat("refused: ", text));
  return absl::FailedPreconditionError(text);
}

absl::Status NodeTable::OnReport(absl::Duration now, const NodeReport& report,
                                 const std::string& peer) {
  const std::string& name = report.hello().host();
  if (retired_.count({name, report.nonce()}) != 0) return absl::OkStatus();
  HostState& host = hosts_[name];
  if (host.nonce != report.nonce()) {
    if (host.nonce != 0) {
      if (!IsSameAgent(host.hello, report.hello()) || host.peer != peer) {
        return TakeStranger(report, &host);
      }
      Lose(name, &host, "its agent has registered anew");
    }
    host = HostState();
    host.nonce = report.nonce();
    host.hello = report.hello();
  }
  host.peer = peer;
  if (report.heartbeat() <= host.heartbeat) return absl::OkStatus();
  host.heartbeat = report.heartbeat();
  host.seen_at = now;
  if (host.is_up && !report.unfit().empty()) {
    const absl::Status why = absl::FailedPreconditionError(report.unfit());
    Lose(name, &host, report.unfit());
    hosts_.erase(name);
    return why;
  }
  if (!host.is_up) {
    const absl::Status admitted = Admit(report, &host);
    if (!admitted.ok()) return admitted;
  }
  TakeMetricsOf(report);
  TakeProcesses(now, report, &host);
  TakeLogsOf(report, &host);
  return absl::OkStatus();
}

void NodeTable::TakeMetricsOf(const NodeReport& report) {
  const MetricsPiece& piece = report.metrics();
  if (!(FromNodeProcess(piece.id()) == metrics_of_) || piece.offset() > metrics_received_) return;
  const uint64_t known = metrics_received_ - piece.offset();
  if (known >= piece.data().size()) return;
  metrics_.append(piece.data(), known);
  metrics_received_ += piece.data().size() - known;
}

void NodeTable::TakeProcesses(absl::Duration now, const NodeReport& report, HostState* host) {
  RefuseUnordered(report, *host);
  for (auto placed = host->processes.begin(); placed != host->processes.end();) {
    const auto there = std::find_if(
        report.processes().begin(), report.processes().end(),
        [&](const ProcessReport& process) { return FromNodeProcess(process.id()) == placed->id; });
    const bool has_left = there == report.processes().end() && !placed->is_wanted &&
                          report.generation() == generation_ &&
                          report.order() >= placed->dropped_in;
    if (has_left) {
      placed = host->processes.erase(placed);
      continue;
    }
    if (there != report.processes().end()) {
      TakeRequest(now, *host, there->certificate_request(), &*placed);
      if (!there->address().empty() && !std::exchange(placed->is_up, true)) {
        events_.push_back(event::ProcessStarted{placed->id, there->address()});
        places_[placed->id.Name()]["log"] = there->log();
        are_places_new_ = true;
      }
      if (there->has_end() && !placed->has_ended) {
        TakeEnd(report.hello().host(), *there, &*placed);
      }
    }
    ++placed;
  }
}

// Ends, logs
// ------------------------------------------------------------------------------------------------

void NodeTable::TakeEnd(const std::string& host, const ProcessReport& report, Placed* placed) {
  const ProcessEndReport& end = report.end();
  const ProcessId& id = placed->id;
  const bool ended_well = end.has_exit_code() && end.exit_code() == 0;
  // All that it reported comes before its end.
  if (id == metrics_of_ && ended_well && metrics_received_ < report.metrics_bytes()) return;
  placed->has_ended = true;
  if (!std::exchange(placed->is_wanted, false)) return;  // It was stopped.
  Change(host);
  placed->dropped_in = number_;
  if (end.not_started()) {
    events_.push_back(
        event::NotStarted{id, absl::Status(static_cast<absl::StatusCode>(end.code()),
                                           absl::StrCat("on host ", host, ": ", end.how()))});
    return;
  }
  if (id.role == ProcessRole::kWorker && ended_well) {
    absl::StatusOr<nlohmann::ordered_json> result =
        ParseWorkerResult(end.result(), absl::StrCat(id.Name(), " on host ", host));
    if (result.ok()) {
      results_[id.index] = *std::move(result);
      are_results_new_ = true;
      const double steps = NumberAt(results_[id.index], "steps").value_or(0);
      events_.push_back(event::WorkerResult{id, std::llround(steps)});
    } else {
      events_.push_back(event::WorkerResult{id, result.status()});
    }
  }
  events_.push_back(event::ProcessEnded{id, ToProcessEnd(host, end)});
}

void NodeTable::TakeLogsOf(const NodeReport& report, HostState* host) {
  for (const LogLines& lines : report.logs()) {
    const auto asked =
        std::find_if(host->logs.begin(), host->logs.end(),
                     [&](const LogRequest& request) { return request.id() == lines.id(); });
    if (asked == host->logs.end()) continue;
    host->logs.erase(asked);
    logs_.push_back(lines);
    Change(report.hello().host());
  }
}

void NodeTable::OnTick(absl::Duration now) {
  for (auto each = hosts_.begin(); each != hosts_.end();) {
    if (now - each->second.seen_at < options_.host_timeout) {
      for (Placed& placed : each->second.processes) {
        if (now >= placed.sign_at) Sign(now, each->second, &placed);
      }
      ++each;
      continue;
    }
    Lose(each->first, &each->second,
         absl::StrCat("no sign for ", absl::FormatDuration(options_.host_timeout)));
    each = hosts_.erase(each);
  }
}

absl::Status NodeTable::AskForLog(const LogRequest& request) {
  const std::string& process = request.process();
  if (!places_.contains(process)) {
    return absl::NotFoundError(absl::StrCat("no process '", process, "' was started"));
  }
  const std::string place = places_[process]["host"];
  const auto host = hosts_.find(place);
  if (host == hosts_.end()) {
    return absl::UnavailableError(
        absl::StrCat(process, " ran on host ", place, ", which is not there"));
  }
  if (host->second.logs.size() >= kMostLogRequests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("host ", place, " has ", kMostLogRequests, " requests for logs already"));
  }
  host->second.logs.push_back(request);
  Change(host->first);
  return absl::OkStatus();
}

}  // namespace thermocline
