// The PEM files for mutual TLS. They are checked before use, so that errors name the file; and the
// reason of a failed handshake is found out, which gRPC does not report.
#ifndef THERMOCLINE_COMMON_NET_TLS_FILES_H_
#define THERMOCLINE_COMMON_NET_TLS_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/net/certificates.h"

namespace thermocline {

// Paths of PEM files; all empty means plain text. Each side shows `certificate` (which may bring
// intermediate ones) and accepts only peers whose certificate `ca` signed.
struct TlsFiles {
  std::string certificate;
  std::string private_key;
  std::string ca;

  bool empty() const { return certificate.empty() && private_key.empty() && ca.empty(); }
};

// The files in a folder of certificates (certificates.h): ROLE.pem, ROLE.key and ca.pem.
TlsFiles TlsFilesIn(const std::string& directory, Role role);

// The contents of TlsFiles.
struct TlsTexts {
  std::string certificate;
  std::string private_key;
  std::string ca;
};

enum class TlsUse { kServer, kClient };

// Errors: kNotFound (a file can't be read), kInvalidArgument (only some of the files are named; one
// has no PEM block, or one of the wrong kind; the key is of another certificate; the CA did not
// sign the certificate, or not for this use), kFailedPrecondition (expired, or not valid yet: says
// when). All name the file.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files, TlsUse use,
                                      absl::Time now = absl::Now());

// Describes the certificate in a file: "'certs/server.pem', thermocline://job/server, valid until
// 2027-11-23 03:00:00 UTC".
std::string DescribeCertificate(const std::string& path);

// Connects to `address` (host:port) anew and returns why the handshake fails: the fault of the
// peer's certificate, or the peer's refusal of ours; without files, that the peer speaks TLS. "":
// it doesn't fail, or there is no process. Blocks for a connection and two round trips, at most for
// `timeout` each.
std::string ExplainHandshake(const std::string& address, const TlsFiles& files,
                             absl::Duration timeout);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_TLS_FILES_H_
