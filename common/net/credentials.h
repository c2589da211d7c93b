// Who may talk to whom: mutual TLS from PEM files, or plain text on loopback.
#ifndef THERMOCLINE_COMMON_NET_CREDENTIALS_H_
#define THERMOCLINE_COMMON_NET_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace thermocline {

// Paths of PEM files; all empty means plain text. Each side shows `certificate` and accepts only
// peers whose certificate `ca` signed.
struct TlsFiles {
  std::string certificate;
  std::string private_key;
  std::string ca;

  bool empty() const { return certificate.empty() && private_key.empty() && ca.empty(); }
};

// Plain-text credentials where `files` is empty.
// Errors: kInvalidArgument (only some of the files are named, or one holds no PEM block),
//         kNotFound (a file can't be read; names it).
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files);
// The server demands a client certificate and verifies it.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files);

// Closed by default: plain text is for loopback, unless `insecure` says otherwise.
// Errors: kInvalidArgument (says what would be needed).
absl::Status CheckMayListen(const std::string& address, const TlsFiles& files, bool insecure);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_CREDENTIALS_H_
