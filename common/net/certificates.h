// The certificates of a job. A process's certificate names its job and its role, and so decides
// which methods it may call (roles.h).
//
// A job has a certificate authority of its own. It signs X.509 certificates over keys on the curve
// P-256; the URI thermocline://JOB/ROLE in them (a subject alternative name) names job and role.
// All texts are PEM. Private keys are unencrypted, in files that only their owner may read.
#ifndef THERMOCLINE_COMMON_NET_CERTIFICATES_H_
#define THERMOCLINE_COMMON_NET_CERTIFICATES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace thermocline {

enum class Role : uint8_t { kController, kServer, kWorker, kReader, kNode };

inline constexpr Role kAllRoles[] = {Role::kController, Role::kServer, Role::kWorker, Role::kReader,
                                     Role::kNode};

// "controller", ...
absl::string_view RoleName(Role role);

struct Identity {
  std::string job;
  Role role;
};
bool operator==(const Identity& a, const Identity& b);

// thermocline://JOB/ROLE
std::string IdentityUri(const Identity& identity);
// nullopt where `uri` has another form, or names an unknown role.
std::optional<Identity> ParseIdentityUri(absl::string_view uri);

// The identity in a PEM text's first certificate; nullopt where it names no job and role.
std::optional<Identity> IdentityOf(absl::string_view certificate_pem);

// A process makes these for itself. The private key never leaves it; the request goes to the
// authority, which signs a certificate for the key.
struct KeyAndRequest {
  std::string private_key;
  std::string request;
};
absl::StatusOr<KeyAndRequest> MakeKeyAndRequest();

// Certificates are valid from so long before they are made, since clocks of hosts differ.
inline constexpr absl::Duration kClockSkew = absl::Minutes(5);
inline constexpr absl::Duration kAuthorityLifetime = absl::Hours(24 * 3650);

// Thread-safe; copies are the same authority.
class CertificateAuthority {
 public:
  // Makes a new authority. Errors: kInvalidArgument (a job's name has letters, digits, '_' and
  // '-').
  static absl::StatusOr<CertificateAuthority> Create(const std::string& job,
                                                     absl::Duration lifetime = kAuthorityLifetime,
                                                     absl::Time now = absl::Now());
  // Makes an authority from its texts. `name` is what errors call it, such as its file.
  // Errors: kInvalidArgument (no PEM; a key of another certificate; not made by Create).
  static absl::StatusOr<CertificateAuthority> FromPem(const std::string& certificate,
                                                      const std::string& private_key,
                                                      absl::string_view name);

  const std::string& job() const { return job_; }
  // Public: processes that trust the job's certificates use it as the CA.
  const std::string& ca_pem() const { return certificate_; }
  // Secret: its owner can act as any process of the job.
  const std::string& private_key_pem() const { return private_key_; }

  // Signs a certificate of `role` for the key of `request`; the rest of the request is ignored.
  // `hosts`: names and addresses under which the process is reached. Processes of all roles but
  // reader and node serve, and need them. The certificate ends with the authority at the latest.
  // Errors: kInvalidArgument (no request, its signature is wrong, its key is not on P-256; a host
  // that is neither a name nor an address).
  absl::StatusOr<std::string> Sign(const std::string& request, Role role,
                                   const std::vector<std::string>& hosts, absl::Duration lifetime,
                                   absl::Time now = absl::Now()) const;

 private:
  CertificateAuthority() = default;

  std::string job_, certificate_, private_key_;
};

// Files
// ------------------------------------------------------------------------------------------------
// A folder of certificates: ca.pem, and for each role ROLE.pem with its key ROLE.key.

// Writes a file that only its owner may read (mode 0600). With `replaces`, an existing file is
// replaced as a whole. Errors: kAlreadyExists, kUnavailable (name the file).
absl::Status WritePrivateFile(const std::string& path, absl::string_view text, bool replaces);

// Makes `directory` where it is missing (mode 0700) and writes ca.pem and the files of `roles`;
// `with_key`: also ca.key, the authority's key. Errors: kAlreadyExists (one of the files exists;
// nothing is written), kUnavailable, Sign's.
absl::Status WriteCertificates(const CertificateAuthority& authority, const std::string& directory,
                               const std::vector<Role>& roles,
                               const std::vector<std::string>& hosts, absl::Duration lifetime,
                               bool with_key = false);

// The authority that `thermocline certificates` left in a folder: ca.pem and ca.key.
// Errors: kNotFound, FromPem's.
absl::StatusOr<CertificateAuthority> LoadAuthority(const std::string& directory);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_CERTIFICATES_H_
