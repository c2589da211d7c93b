// The hosts of a job: what each offers, and which are up.
#ifndef THERMOCLINE_DEPLOY_JOB_HOST_H_
#define THERMOCLINE_DEPLOY_JOB_HOST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace thermocline {

// A host as its agent describes it.
struct Host {
  std::string name;    // Unique in the job.
  uint64_t nonce = 0;  // Unique for each registration of its agent.
  std::string address;
  bool takes_servers = true, takes_workers = true;
  uint32_t cores = 0, gpus = 0;
  uint64_t memory_bytes = 0, free_disk_bytes = 0;
  std::string build;
};

// Which hosts are up. Copyable. Not thread-safe.
class HostTable {
 public:
  // Refuses hosts of another build; "": takes any.
  explicit HostTable(std::string build) : build_(std::move(build)) {}

  // Null: the host is not up, or was refused.
  const Host* Find(const std::string& name) const;
  // Whether this registration is known, even as lost or refused. If so, a HostUp of it is void.
  bool Knows(const std::string& name, uint64_t nonce) const;
  // False: the host is refused. REQUIRES: !Knows(host.name, host.nonce), Find(host.name) == nullptr
  bool Add(const Host& host);
  // False: the host is not up with this registration.
  bool Lose(const std::string& name, uint64_t nonce, const std::string& why);

  size_t size() const { return hosts_.size(); }
  std::vector<Host> Usable() const;  // Sorted by name.
  // For errors, which hosts are up, were refused, or were lost:
  // "h1, h2; not used: h3 (its build is 'b', the controller's is 'a'); lost: h4 (no sign for 30s)".
  std::string Describe() const;

 private:
  std::string build_;
  std::map<std::string, Host> hosts_;                  // Hosts that are up, by name.
  std::map<std::string, std::string> refused_;         // Builds of refused hosts, by name.
  std::map<std::string, std::string> lost_;            // Why hosts were lost, by name.
  std::map<std::string, std::set<uint64_t>> retired_;  // Nonces of lost and refused registrations.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_HOST_H_
