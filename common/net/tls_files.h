// The PEM files that a process shows and checks its peers with (mutual TLS): read, and checked
// before they are used, so that what is wrong with them is an error that names the file; and the
// reason of a handshake that failed, which gRPC does not tell.
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

// Of a folder of certificates (certificates.h): ROLE.pem, ROLE.key and ca.pem.
TlsFiles TlsFilesIn(const std::string& directory, Role role);

// What the files hold.
struct TlsTexts {
  std::string certificate;
  std::string private_key;
  std::string ca;
};

enum class TlsUse { kServer, kClient };

// Errors: kNotFound (a file can't be read), kInvalidArgument (only some of the files are named; one
// holds no PEM block, or not what it should; the key is of another certificate; the CA did not sign
// the certificate, or not for this use), kFailedPrecondition (expired, or not valid yet: says
// when). All name the file.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files, TlsUse use,
                                      absl::Time now = absl::Now());

// Whom the certificate in a file is for, and until when: "'certs/server.pem',
// thermocline://job/server, valid until 2027-11-23 03:00:00 UTC".
std::string DescribeCertificate(const std::string& path);

// Connects to `address` (host:port) anew and says why the handshake fails: what is wrong with the
// certificate that the process there shows, or how it refuses ours; without files, that the process
// speaks TLS. "": it doesn't fail, or there is no process. Blocks for a connection and two round
// trips, at most for `timeout` each.
std::string ExplainHandshake(const std::string& address, const TlsFiles& files,
                             absl::Duration timeout);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_TLS_FILES_H_
