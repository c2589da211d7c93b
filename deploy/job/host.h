// The hosts of a job: what each offers, and which of them are there.
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
  std::string name;    // Of one host in the job.
  uint64_t nonce = 0;  // Of one registration of its agent; none is used twice.
  std::string address;
  bool takes_servers = true, takes_workers = true;
  uint32_t cores = 0, gpus = 0;
  uint64_t memory_bytes = 0, free_disk_bytes = 0;
  std::string build;
};

// Which hosts are there. Copyable. Not thread-safe.
class HostTable {
 public:
  // Hosts of another build are refused; "": none is.
  explicit HostTable(std::string build) : build_(std::move(build)) {}

  // Null: it is not there, or refused.
  const Host* Find(const std::string& name) const;
  // Whether this registration of the host is known already, there, lost or refused: news of it is
  // void.
  bool Knows(const std::string& name, uint64_t nonce) const;
  // REQUIRES: !Knows(host.name, host.nonce), Find(host.name) == nullptr
  // False: it is refused, and counts for nothing.
  bool Add(const Host& host);
  // False: no such registration is there.
  bool Lose(const std::string& name, uint64_t nonce, const std::string& why);

  size_t size() const { return hosts_.size(); }
  std::vector<Host> Usable() const;  // By name.
  // For errors: which are there, which were refused, which were lost:
  // "h1, h2; not used: h3 (its build is 'b', the controller's is 'a'); lost: h4 (no sign for 30s)".
  std::string Describe() const;

 private:
  std::string build_;
  std::map<std::string, Host> hosts_;                  // By name; those that are there.
  std::map<std::string, std::string> refused_;         // By name: its build.
  std::map<std::string, std::string> lost_;            // By name: why.
  std::map<std::string, std::set<uint64_t>> retired_;  // Nonces of lost and refused registrations.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_HOST_H_
