#include "deploy/job/placement.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace thermocline {
namespace {

struct Seats {
  const Host* host = nullptr;
  uint64_t weight = 1;
  uint64_t taken = 0;
};

// Gives `count` processes to hosts, one after the other: each to the host whose weight for each of
// its processes, with this one, is the largest; the first of equals.
void Spread(size_t count, std::vector<Seats>* seats) {
  const auto has_less = [](const Seats& a, const Seats& b) {
    // a.weight / (a.taken + 1) < b.weight / (b.taken + 1)
    return static_cast<long double>(a.weight) * (b.taken + 1) <
           static_cast<long double>(b.weight) * (a.taken + 1);
  };
  for (; count > 0; --count) ++std::max_element(seats->begin(), seats->end(), has_less)->taken;
}

std::vector<Seats> ByMemory(const std::vector<Host>& hosts, bool Host::*takes) {
  std::vector<Seats> seats;
  for (const Host& host : hosts) {
    if (host.*takes) seats.push_back({&host, std::max<uint64_t>(1, host.memory_bytes)});
  }
  return seats;
}

// "server 2", "servers 0-1"
std::string Range(const char* role, const std::vector<size_t>& indexes) {
  return indexes.size() == 1 ? absl::StrCat(role, " ", indexes.front())
                             : absl::StrCat(role, "s ", indexes.front(), "-", indexes.back());
}

}  // namespace

std::string Placement::HostOf(ProcessRole role, size_t index) const {
  const std::vector<std::string>& of_role = role == ProcessRole::kServer ? servers : workers;
  return of_role.empty() ? "" : of_role[index];
}

uint32_t Placement::LocalRank(size_t rank) const {
  return local_ranks.empty() ? static_cast<uint32_t>(rank) : local_ranks[rank];
}

bool Placement::Uses(const std::string& host) const {
  return std::count(servers.begin(), servers.end(), host) +
             std::count(workers.begin(), workers.end(), host) >
         0;
}

std::string Placement::Describe() const {
  struct HostProcesses {
    std::vector<size_t> servers, workers;
  };
  std::map<std::string, HostProcesses> hosts;
  for (size_t i = 0; i < servers.size(); ++i) hosts[servers[i]].servers.push_back(i);
  for (size_t i = 0; i < workers.size(); ++i) hosts[workers[i]].workers.push_back(i);
  std::vector<std::string> parts;
  for (const auto& [name, host] : hosts) {
    std::string part = absl::StrCat(name, ": ");
    if (!host.servers.empty()) absl::StrAppend(&part, Range("server", host.servers));
    if (!host.servers.empty() && !host.workers.empty()) absl::StrAppend(&part, ", ");
    if (!host.workers.empty()) absl::StrAppend(&part, Range("worker", host.workers));
    parts.push_back(std::move(part));
  }
  return absl::StrJoin(parts, "; ");
}

absl::StatusOr<Placement> Place(std::vector<Host> hosts, size_t num_servers, size_t num_workers,
                                Job::Device device) {
  std::sort(hosts.begin(), hosts.end(),
            [](const Host& a, const Host& b) { return a.name < b.name; });
  Placement placement;
  std::vector<Seats> for_servers = ByMemory(hosts, &Host::takes_servers);
  std::vector<Seats> for_workers = ByMemory(hosts, &Host::takes_workers);
  if (for_servers.empty()) return absl::FailedPreconditionError("no host takes servers");
  if (for_workers.empty()) return absl::FailedPreconditionError("no host takes workers");
  std::vector<Seats> with_gpus;
  for (const Seats& each : for_workers) {
    if (each.host->gpus > 0) with_gpus.push_back({each.host, each.host->gpus});
  }
  if (device == Job::CUDA && with_gpus.empty()) {
    return absl::FailedPreconditionError("no host that takes workers has a GPU");
  }
  const bool on_gpus = device != Job::CPU && !with_gpus.empty();
  if (on_gpus) for_workers = std::move(with_gpus);
  Spread(num_servers, &for_servers);
  Spread(num_workers, &for_workers);
  for (const Seats& each : for_servers) {
    placement.servers.insert(placement.servers.end(), each.taken, each.host->name);
  }
  for (const Seats& each : for_workers) {
    placement.workers.insert(placement.workers.end(), each.taken, each.host->name);
    for (uint32_t rank = 0; rank < each.taken; ++rank) placement.local_ranks.push_back(rank);
    if (on_gpus && each.taken > each.weight) {
      placement.notices.push_back(absl::StrCat(each.host->name, " runs ", each.taken,
                                               " workers on ", each.weight,
                                               each.weight == 1 ? " GPU" : " GPUs"));
    }
  }
  return placement;
}

}  // namespace thermocline
