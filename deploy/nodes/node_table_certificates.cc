// What the controller signs for its hosts' processes, and for which addresses.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/host_port.h"
#include "common/net/rpc.h"
#include "deploy/nodes/node_table.h"

namespace thermocline {
namespace {

// Whether the reports of a host come from the address that it names, as far as is known.
bool IsAtItsAddress(const NodeHello& hello, const std::string& peer) {
  return peer.empty() || peer == IpAddress(hello.address()).value_or(hello.address()) ||
         (IsLoopbackHost(peer) && IsLoopbackHost(hello.address()));
}

}  // namespace

// Checks the address of a host that is about to be admitted. A certificate that is signed for the
// address lets the host pass for the process there, so the host's own claim is not enough.
absl::Status NodeTable::CheckAddress(const HostState& host) const {
  const NodeHello& hello = host.hello;
  if (IsAtItsAddress(hello, host.peer)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "host ", hello.host(), " says that it is at ", hello.address(), ", and connects from ",
      host.peer, ": the controller signs certificates for the address that a host connects from, ",
      "and no other. Let its agent reach the controller in the network of ", hello.address(),
      " (--controller), or bring certificates (docs/security.md)"));
}

// Refuses requests of processes that this host has no order to run; they are never signed.
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
    // A host that makes up several such processes gets one notice.
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
