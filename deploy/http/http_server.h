// The connections of the job's web server: plain text or TLS, one request each. httplib reads
// requests and writes answers; what bounds them is here: how many there are at once, how many bytes
// a request may have, and how long it may take, however slowly its bytes come.
#ifndef THERMOCLINE_DEPLOY_HTTP_HTTP_SERVER_H_
#define THERMOCLINE_DEPLOY_HTTP_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/tls_files.h"
#include "deploy/http/http_door.h"

namespace thermocline {

struct HttpLimits {
  int connections = 32;             // Answered at once; others wait until one has ended.
  size_t request_bytes = 32 << 10;  // A request has no more, headers and body included.
  absl::Duration request_time = absl::Seconds(5);  // Until a request is there, with its handshake.
  absl::Duration answer_time = absl::Seconds(60);  // Until its answer was taken.
};

class HttpServer {
 public:
  using Handler = std::function<HttpAnswer(const HttpRequest&)>;

  // Answers the requests that come to the listening socket `fd`, which it closes, with threads of
  // its own that call `handler`. With `tls` it shows that certificate, takes TLS 1.2 and later, and
  // asks clients for a certificate, which they need not have. Errors: those of ReadTlsFiles.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(int fd, const TlsFiles& tls,
                                                           const HttpLimits& limits,
                                                           Handler handler);
  // Takes no more connections, and waits for those that it has.
  ~HttpServer();

 private:
  class Parser;
  class Tls;

  HttpServer(int fd, std::unique_ptr<Tls> tls, const HttpLimits& limits, Handler handler);
  void Serve();  // The body of each thread.
  void AnswerOne(int fd);

  const int fd_;
  const HttpLimits limits_;
  const std::unique_ptr<Tls> tls_;  // Null: plain text.
  const std::unique_ptr<Parser> parser_;
  std::vector<std::thread> threads_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_HTTP_HTTP_SERVER_H_
