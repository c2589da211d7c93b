#include "deploy/http/host_names.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include "deploy/processes/run_directory.h"

namespace thermocline {

std::vector<std::string> NamesOfThisHost() {
  std::vector<std::string> names = {"localhost"};
  if (!HostName().empty()) names.push_back(HostName());
  addrinfo hints = {}, *found = nullptr;
  hints.ai_flags = AI_CANONNAME;
  if (getaddrinfo(HostName().c_str(), nullptr, &hints, &found) == 0) {
    if (found->ai_canonname != nullptr) names.emplace_back(found->ai_canonname);
    freeaddrinfo(found);
  }
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return names;
  for (const ifaddrs* each = interfaces; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST] = "";
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(each->ifa_addr, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    const std::string address(text);
    names.push_back(address.substr(0, address.find('%')));  // Without the interface.
  }
  freeifaddrs(interfaces);
  return names;
}

}  // namespace thermocline
