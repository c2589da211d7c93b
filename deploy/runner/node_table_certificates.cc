// What the controller signs for its hosts' processes, and for which addresses.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/host_port.h"
#include "deploy/runner/node_table.h"

namespace thermocline {
namespace {

// Whether the reports of a host come from the address that it names, as far as is known.
bool IsAtItsAddress(const NodeHello& hello, const std::string& peer) {
  return peer.empty() || peer == IpAddress(hello.address()).value_or(hello.address());
}

bool HaveOneAddress(const NodeHello& a, const NodeHello& b) {
  return IpAddress(a.address()).value_or(a.address()) ==
         IpAddress(b.address()).value_or(b.address());
}

std::string DescribeClaim(const NodeHello& hello, const std::string& peer) {
  return absl::StrCat("host ", hello.host(), " says that it is at ", hello.address(),
                      ", and connects from ", peer);
}

}  // namespace

// Of a host that is about to be admitted.
absl::Status NodeTable::CheckAddress(const HostState& host) {
  const bool is_there = IsAtItsAddress(host.hello, host.peer);
  for (auto each = hosts_.begin(); each != hosts_.end();) {
    const std::string name = each->first;
    HostState& other = (each++)->second;
    if (&other == &host || other.hello.machine() == host.hello.machine() ||
        !HaveOneAddress(other.hello, host.hello)) {
      continue;
    }
    if (!is_there) {
      return absl::FailedPreconditionError(absl::StrCat(DescribeClaim(host.hello, host.peer),
                                                        "; that is the address of host ", name));
    }
    if (IsAtItsAddress(other.hello, other.peer)) continue;
    const std::string why = absl::StrCat(DescribeClaim(other.hello, other.peer),
                                         "; that is the address of host ", host.hello.host());
    notices_.push_back(absl::StrCat("refused: ", why));
    Lose(name, &other, why);
    hosts_.erase(name);
  }
  if (is_there || !IpAddress(host.hello.address()).has_value()) return absl::OkStatus();
  const std::string text =
      absl::StrCat(DescribeClaim(host.hello, host.peer),
                   "; the certificates of its processes are for ", host.hello.address());
  if (told_.insert(text).second) notices_.push_back(text);
  return absl::OkStatus();
}

// A request of a process that this host was not told to run is never signed.
void NodeTable::RefuseUnordered(const NodeReport& report, const HostState& host) {
  for (const ProcessReport& process : report.processes()) {
    const ProcessId id = FromNodeProcess(process.id());
    if (process.certificate_request().empty() || id.generation != generation_) continue;
    const bool is_placed = std::any_of(host.processes.begin(), host.processes.end(),
                                       [&id](const Placed& placed) { return placed.id == id; });
    if (is_placed) continue;
    const std::string text =
        absl::StrCat("refused: host ", report.hello().host(), " asks for a certificate of ",
                     id.Name(), ", which it was not ordered to run");
    // One that makes up more of them is told of once.
    if (told_.insert(report.hello().host()).second) notices_.push_back(text);
  }
}

void NodeTable::TakeRequest(absl::Duration now, const HostState& host, const std::string& request,
                            Placed* placed) {
  if (request.empty() || request == placed->request || !options_.sign) return;
  placed->request = request;
  Sign(now, host, placed);
}

void NodeTable::Sign(absl::Duration now, const HostState& host, Placed* placed) {
  placed->sign_at = absl::InfiniteDuration();
  if (!placed->is_wanted) return;
  const std::string& name = host.hello.host();
  auto certificate = options_.sign(placed->request, placed->id.role, host.hello.address());
  Change(name);
  if (certificate.ok()) {
    placed->wanted.set_certificate(*std::move(certificate));
    placed->sign_at = now + options_.certificate_period;
    return;
  }
  placed->is_wanted = false;
  placed->dropped_in = number_;
  events_.push_back(event::NotStarted{
      placed->id, absl::Status(certificate.status().code(),
                               absl::StrCat("no certificate for it on host ", name, ": ",
                                            certificate.status().message()))});
}

}  // namespace thermocline
