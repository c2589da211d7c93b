// Hosts of a cluster on this machine, as far as the network goes: each is a network namespace with
// an address of its own, whose link to the others is shaped to a rate in both directions.
//
//   10.77.0.1 (this process)    10.77.0.2    10.77.0.3    ...
//        |                          |            |      each link: tc tbf
//        +------------------------ bridge -------+
//
// This process goes into a namespace of its own first: all links lie in it, so the kernel removes
// them when this process ends, however it ends. It reaches no other network from then on.
#ifndef THERMOCLINE_DEPLOY_BENCH_SHAPED_HOSTS_H_
#define THERMOCLINE_DEPLOY_BENCH_SHAPED_HOSTS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace thermocline {

// What has come to a host over its link, and what has left it.
struct HostLinkBytes {
  uint64_t received = 0, sent = 0;
};

// Not thread-safe.
class ShapedHosts {
 public:
  // rate: as tc writes it, "1gbit"; each link holds back up to 4 MiB, and drops what comes beyond.
  // REQUIRES: this process has no other thread, and calls this once.
  // Errors: kFailedPrecondition (this user, or this machine, can't make them: why),
  // kInvalidArgument (tc does not know such a rate).
  static absl::StatusOr<std::unique_ptr<ShapedHosts>> Create(int count, const std::string& rate);
  // Ends the namespaces.
  ~ShapedHosts();
  ShapedHosts(const ShapedHosts&) = delete;
  ShapedHosts& operator=(const ShapedHosts&) = delete;

  int count() const { return static_cast<int>(holders_.size()); }
  const std::string& rate() const { return rate_; }
  // Of this process, whose link is not shaped.
  std::string own_address() const;
  std::string address(int host) const;
  // `command` as one that runs on the host.
  std::vector<std::string> CommandOn(int host, const std::vector<std::string>& command) const;
  HostLinkBytes BytesOf(int host) const;

 private:
  explicit ShapedHosts(std::string rate) : rate_(std::move(rate)) {}
  absl::Status AddHost();

  const std::string rate_;
  std::vector<pid_t> holders_;  // A process in each namespace, which keeps it.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_BENCH_SHAPED_HOSTS_H_
