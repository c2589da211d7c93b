// thermocline http-child: serves a job's page, for its controller (deploy/http/http_feed.h).
#include <sys/socket.h>

#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/http/http_child.h"

namespace thermocline {
namespace {

constexpr int kControllerFd = 3;  // Inherited.

int RunChild() {
  int type = 0;
  socklen_t size = sizeof(type);
  if (getsockopt(kControllerFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
    return Complain("http-child is for the controller of a job; see thermocline help train",
                    kExitUsage);
  }
  return RunHttpChild(kControllerFd);
}

}  // namespace

void AddHttpChild(CLI::App* app, Action* action) {
  app->add_subcommand("http-child", "")->group("")->callback([=] { *action = RunChild; });
}

}  // namespace thermocline
