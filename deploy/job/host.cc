#include "deploy/job/host.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace thermocline {

const Host* HostTable::Find(const std::string& name) const {
  const auto found = hosts_.find(name);
  return found == hosts_.end() ? nullptr : &found->second;
}

bool HostTable::Knows(const std::string& name, uint64_t nonce) const {
  const Host* const host = Find(name);
  if (host != nullptr && host->nonce == nonce) return true;
  const auto retired = retired_.find(name);
  return retired != retired_.end() && retired->second.count(nonce) != 0;
}

bool HostTable::Add(const Host& host) {
  CHECK(!Knows(host.name, host.nonce));
  CHECK(Find(host.name) == nullptr);
  if (!build_.empty() && host.build != build_) {
    refused_[host.name] = host.build;
    retired_[host.name].insert(host.nonce);
    return false;
  }
  hosts_.emplace(host.name, host);
  lost_.erase(host.name);
  refused_.erase(host.name);
  return true;
}

bool HostTable::Lose(const std::string& name, uint64_t nonce, const std::string& why) {
  const auto found = hosts_.find(name);
  if (found == hosts_.end() || found->second.nonce != nonce) return false;
  hosts_.erase(found);
  lost_[name] = why;
  retired_[name].insert(nonce);
  return true;
}

std::vector<Host> HostTable::Usable() const {
  std::vector<Host> usable;
  for (const auto& [name, host] : hosts_) usable.push_back(host);
  return usable;
}

std::string HostTable::Describe() const {
  std::vector<std::string> names, others, lost;
  for (const auto& [name, host] : hosts_) names.push_back(name);
  for (const auto& [name, build] : refused_) {
    others.push_back(
        absl::StrCat(name, " (its build is '", build, "', the controller's is '", build_, "')"));
  }
  for (const auto& [name, why] : lost_) lost.push_back(absl::StrCat(name, " (", why, ")"));
  std::string text = names.empty() ? "none" : absl::StrJoin(names, ", ");
  if (!others.empty()) absl::StrAppend(&text, "; not used: ", absl::StrJoin(others, ", "));
  if (!lost.empty()) absl::StrAppend(&text, "; lost: ", absl::StrJoin(lost, ", "));
  return text;
}

}  // namespace thermocline
