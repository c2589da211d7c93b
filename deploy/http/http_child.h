// The process that serves a job's page and metrics (`thermocline http-child`).
#ifndef THERMOCLINE_DEPLOY_HTTP_HTTP_CHILD_H_
#define THERMOCLINE_DEPLOY_HTTP_HTTP_CHILD_H_

namespace thermocline {

// Serves what comes from the controller on the socket `fd` (http_feed.h) until the controller is
// gone. Returns the exit code.
int RunHttpChild(int fd);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_HTTP_HTTP_CHILD_H_
