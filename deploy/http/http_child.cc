#include "deploy/http/http_child.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/process_limits.h"
#include "common/base/timing.h"
#include "common/net/tls_files.h"
#include "deploy/http/http_door.h"
#include "deploy/http/http_server.h"
#include "deploy/http/monitor_pipe.h"
#include "deploy/page/run_page.h"

namespace thermocline {
namespace {

int End(const absl::Status& why) {
  std::fprintf(stderr, "thermocline: the job's page: %s\n", std::string(why.message()).c_str());
  return kExitFailed;
}

// Ends the process as it is: the server's destructor would shut the listening socket down, which
// the controller's next child listens on, too.
[[noreturn]] void Leave(const absl::Status& why) {
  const int code = absl::IsOutOfRange(why) ? kExitDone : End(why);
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

int RunHttpChild(int fd) {
  int listener = -1;
  auto first = ReceiveMonitorMessage(fd, &listener);
  if (!first.ok()) return End(first.status());
  if (!first->has_setup() || listener < 0) return End(absl::DataLossError("no setup came"));
  const MonitorSetup& setup = first->setup();
  auto page = RunPage::Open(setup.run_dir());
  if (!page.ok()) return End(page.status());
  const Stopwatch watch;
  HttpDoor door(setup, *std::move(page), [&watch] { return watch.Elapsed(); });
  const auto server = HttpServer::Start(
      listener, TlsFiles{setup.certificate(), setup.private_key(), setup.ca()}, HttpLimits(),
      [&door](const HttpRequest& request) { return door.Answer(request); });
  if (!server.ok()) return End(server.status());
  while (true) {
    int unused = -1;
    auto next = ReceiveMonitorMessage(fd, &unused);
    if (!next.ok()) Leave(next.status());
    door.Take(std::move(*next->mutable_snapshot()));
  }
}

}  // namespace thermocline
