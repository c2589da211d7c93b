#include "tests/testing/cutting_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

ssize_t Receive(int fd, char* buffer, size_t size) {
  ssize_t n;
  do {
    n = recv(fd, buffer, size, 0);
  } while (n < 0 && errno == EINTR);
  return n;
}

bool SendAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    size -= n;
  }
  return true;
}

}  // namespace

CuttingProxy::CuttingProxy(const std::string& target, std::vector<size_t> cuts)
    : target_port_(std::atoi(target.substr(target.rfind(':') + 1).c_str())),
      cuts_(std::move(cuts)) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  CHECK_GE(listener_, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  CHECK_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
  CHECK_EQ(listen(listener_, 64), 0);
  CHECK_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), 0);
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  acceptor_ = std::thread([this] { Accept(); });
}

CuttingProxy::~CuttingProxy() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
  }
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& relay : relays_) relay.join();
  close(listener_);
}

size_t CuttingProxy::connections_cut() const {
  absl::MutexLock lock(&mutex_);
  return connections_cut_;
}

void CuttingProxy::Accept() {
  for (size_t connection = 0;; ++connection) {
    int client;
    do {
      client = accept(listener_, nullptr, nullptr);
    } while (client < 0 && errno == EINTR);
    if (client < 0) return;  // The listener was shut down.
    const size_t budget = connection < cuts_.size() ? cuts_[connection] : SIZE_MAX;
    relays_.emplace_back([=] { Relay(client, budget); });
  }
}

void CuttingProxy::Relay(int client, size_t budget_bytes) {
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  CHECK_GE(server, 0);
  const sockaddr_in address = Loopback(target_port_);
  const bool open = Register(client) && Register(server);
  bool cut = open && budget_bytes == 0;
  if (open && !cut &&
      connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    cut = RelayBytes(client, server, budget_bytes);
  }
  {
    absl::MutexLock lock(&mutex_);
    if (cut) ++connections_cut_;
  }
  Close(client);
  Close(server);
}

bool CuttingProxy::RelayBytes(int client, int server, size_t budget_bytes) {
  char buffer[16 << 10];
  pollfd fds[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
  while (true) {
    if (poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (fds[0].revents != 0) {
      const ssize_t n = Receive(client, buffer, std::min(sizeof(buffer), budget_bytes));
      if (n <= 0 || (!is_silent_ && !SendAll(server, buffer, n))) return false;
      budget_bytes -= n;
      if (budget_bytes == 0) return true;
    }
    if (fds[1].revents != 0) {
      const ssize_t n = Receive(server, buffer, sizeof(buffer));
      if (n <= 0 || (!is_silent_ && !SendAll(client, buffer, n))) return false;
    }
  }
}

// Returns false if the proxy is closing.
bool CuttingProxy::Register(int fd) {
  absl::MutexLock lock(&mutex_);
  if (closing_) return false;
  open_.insert(fd);
  return true;
}

void CuttingProxy::Close(int fd) {
  absl::MutexLock lock(&mutex_);
  open_.erase(fd);
  close(fd);
}

}  // namespace thermocline
