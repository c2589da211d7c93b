#include "common/net/tls_files.h"

#include <netdb.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/net/host_port.h"
#include "common/net/x509.h"

namespace thermocline {
namespace {

using namespace x509;  // NOLINT: OpenSSL's objects

using StorePtr = std::unique_ptr<X509_STORE, Freer<X509_STORE_free>>;
using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, Freer<SSL_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;

absl::StatusOr<std::string> ReadPem(absl::string_view what, const std::string& path) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS needs a certificate, a private key and a CA: no ", what, " is named"));
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("cannot read the TLS ", what, " '", path, "'"));
  }
  if (!absl::StrContains(text.str(), "-----BEGIN ")) {
    return absl::InvalidArgumentError(
        absl::StrCat("the TLS ", what, " '", path, "' is no PEM file"));
  }
  return text.str();
}

std::string FormatTime(const ASN1_TIME* time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", ToTime(time), absl::UTCTimeZone());
}

// Explains why OpenSSL refuses a certificate with `error`. `ca` is the file of the CA.
std::string DescribeRefusal(int error, const X509* certificate, TlsUse use, const std::string& ca) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::StrCat("expired at ", FormatTime(X509_get0_notAfter(certificate)));
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::StrCat("is not valid before ", FormatTime(X509_get0_notBefore(certificate)),
                          "; does this host's clock go right?");
    case X509_V_ERR_INVALID_PURPOSE:
      return absl::StrCat("is not for ", use == TlsUse::kServer ? "servers" : "clients",
                          " (its extended key usage says what for)");
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "is for other hosts";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return absl::StrCat("was not signed by the CA in '", ca, "'");
    default:
      return absl::StrCat("is refused: ", X509_verify_cert_error_string(error));
  }
}

absl::Status RefusedFile(absl::string_view what, const std::string& path, absl::string_view why,
                         int error = 0) {
  std::string message = absl::StrCat("the TLS ", what, " '", path, "' ", why);
  const bool is_time =
      error == X509_V_ERR_CERT_HAS_EXPIRED || error == X509_V_ERR_CERT_NOT_YET_VALID;
  return is_time ? absl::FailedPreconditionError(std::move(message))
                 : absl::InvalidArgumentError(std::move(message));
}

// Checks the certificate as the other side of a connection will.
absl::Status CheckSigned(const TlsFiles& files, const std::vector<CertificatePtr>& chain,
                         const std::vector<CertificatePtr>& trusted, TlsUse use, absl::Time now) {
  const StorePtr store(X509_STORE_new());
  for (const CertificatePtr& each : trusted) X509_STORE_add_cert(store.get(), each.get());
  STACK_OF(X509)* const intermediate = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(intermediate, chain[i].get());
  const StoreContextPtr context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain.front().get(), intermediate);
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  X509_STORE_CTX_set_purpose(
      context.get(), use == TlsUse::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  const bool good = X509_verify_cert(context.get()) == 1;
  sk_X509_free(intermediate);
  ERR_clear_error();
  if (good) return absl::OkStatus();
  const int error = X509_STORE_CTX_get_error(context.get());
  const X509* const which = X509_STORE_CTX_get_current_cert(context.get());
  const bool is_own = which == nullptr || X509_STORE_CTX_get_error_depth(context.get()) == 0;
  return RefusedFile(
      is_own ? "certificate" : "CA", is_own ? files.certificate : files.ca,
      DescribeRefusal(error, which == nullptr ? chain.front().get() : which, use, files.ca), error);
}

absl::Status Check(const TlsFiles& files, const TlsTexts& texts, TlsUse use, absl::Time now) {
  const std::vector<CertificatePtr> chain = ReadCertificates(texts.certificate);
  if (chain.empty()) return RefusedFile("certificate", files.certificate, "holds no certificate");
  const KeyPtr key = ReadKey(texts.private_key);
  ERR_clear_error();
  if (key == nullptr) {
    return RefusedFile("private key", files.private_key,
                       "holds no private key that can be read (a password is not asked for)");
  }
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    ERR_clear_error();
    return RefusedFile("private key", files.private_key,
                       absl::StrCat("is not the key of the certificate '", files.certificate, "'"));
  }
  const std::vector<CertificatePtr> trusted = ReadCertificates(texts.ca);
  if (trusted.empty()) return RefusedFile("CA", files.ca, "holds no certificate");
  return CheckSigned(files, chain, trusted, use, now);
}

// One connection of ExplainHandshake.
class Probe {
 public:
  Probe(const std::string& address, const TlsFiles& files, absl::Duration timeout)
      : address_(address),
        parsed_(ParseHostPort(address, "to connect to").value_or(HostPort())),
        files_(files),
        timeout_(timeout),
        context_(SSL_CTX_new(TLS_client_method())) {}

  std::string Explain() {
    SSL_CTX* const context = context_.get();
    if (!files_.empty() && !LoadFiles()) return Forget("");  // Its reader says what is wrong.
    const int fd = Connect();
    if (fd < 0) return "";
    const SslPtr owned(SSL_new(context));
    SSL* const ssl = owned.get();
    BIO* const socket = BIO_new_socket(fd, BIO_CLOSE);
    SSL_set_bio(ssl, socket, socket);  // Owns it.
    SSL_set_connect_state(ssl);
    SetExpectations(ssl);
    const bool is_tls = SSL_do_handshake(ssl) == 1;
    if (files_.empty()) {
      return Forget(is_tls ? absl::StrCat(address_,
                                          " speaks TLS: it takes no call without a "
                                          "certificate, its private key and a CA")
                           : "");
    }
    if (!is_tls) return Forget(DescribeLastError());
    if (const long error = SSL_get_verify_result(ssl); error != X509_V_OK) {  // NOLINT: its type
      return Forget(DescribeTheirs(static_cast<int>(error), SSL_get0_peer_certificate(ssl)));
    }
    // With TLS 1.3 the server looks at our certificate only now. If it takes it, it speaks first;
    // if not, gRPC's servers end the connection without a word.
    char byte;
    const int got = SSL_read(ssl, &byte, 1);
    if (got == 1 || SSL_get_error(ssl, got) == SSL_ERROR_WANT_READ) return Forget("");
    std::string why = DescribeLastError();
    return Forget(why.empty() ? RefusesUs("it ends the connection") : std::move(why));
  }

 private:
  static std::string Forget(std::string answer) {
    ERR_clear_error();
    return answer;
  }

  bool LoadFiles() {
    SSL_CTX* const context = context_.get();
    return SSL_CTX_use_certificate_chain_file(context, files_.certificate.c_str()) == 1 &&
           SSL_CTX_use_PrivateKey_file(context, files_.private_key.c_str(), SSL_FILETYPE_PEM) ==
               1 &&
           SSL_CTX_load_verify_locations(context, files_.ca.c_str(), nullptr) == 1;
  }

  void SetExpectations(SSL* ssl) {
    // Errors of the check are looked at after the handshake.
    SSL_set_verify(ssl, SSL_VERIFY_NONE, nullptr);
    X509_VERIFY_PARAM* const check = SSL_get0_param(ssl);
    if (X509_VERIFY_PARAM_set1_ip_asc(check, parsed_.host.c_str()) != 1) {
      SSL_set1_host(ssl, parsed_.host.c_str());
      SSL_set_tlsext_host_name(ssl, parsed_.host.c_str());
    }
    const unsigned char http2[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl, http2, sizeof(http2));
  }

  // A socket, each wait on which is limited; -1: there is no process.
  int Connect() const {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const std::string port = absl::StrCat(parsed_.port);
    if (getaddrinfo(parsed_.host.c_str(), port.c_str(), &hints, &found) != 0) return -1;
    int fd = -1;
    for (const addrinfo* each = found; each != nullptr && fd < 0; each = each->ai_next) {
      fd = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol);
      if (fd < 0) continue;
      const timeval limit = absl::ToTimeval(timeout_);
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // It limits connect, too.
      if (connect(fd, each->ai_addr, each->ai_addrlen) == 0) break;
      close(fd);
      fd = -1;
    }
    freeaddrinfo(found);
    return fd;
  }

  // "" where the connection was only lost.
  std::string DescribeLastError() const {
    const unsigned long code = ERR_peek_last_error();  // NOLINT: OpenSSL's type
    const int reason = ERR_GET_REASON(code);
    if (reason == SSL_R_WRONG_VERSION_NUMBER) return absl::StrCat(address_, " speaks no TLS");
    if (reason < SSL_AD_REASON_OFFSET) return "";
    return RefusesUs(ERR_reason_error_string(code));  // An alert of the other side.
  }

  std::string RefusesUs(absl::string_view how) const {
    return absl::StrCat(address_, " refuses our certificate ",
                        DescribeCertificate(files_.certificate), ": ", how);
  }

  std::string DescribeTheirs(int error, X509* certificate) const {
    std::string who;
    if (certificate != nullptr) {
      const std::string pem = ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
      if (const auto identity = IdentityOf(pem))
        who = absl::StrCat(" (", IdentityUri(*identity), ")");
    }
    return absl::StrCat("the certificate that ", address_, " shows", who, " ",
                        DescribeRefusal(error, certificate, TlsUse::kServer, files_.ca));
  }

  const std::string address_;
  const HostPort parsed_;
  const TlsFiles files_;
  const absl::Duration timeout_;
  const ContextPtr context_;
};

}  // namespace

TlsFiles TlsFilesIn(const std::string& directory, Role role) {
  const std::string base = absl::StrCat(directory, "/", RoleName(role));
  return {base + ".pem", base + ".key", directory + "/ca.pem"};
}

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files, TlsUse use, absl::Time now) {
  TlsTexts texts;
  ASSIGN_OR_RETURN(texts.certificate, ReadPem("certificate", files.certificate));
  ASSIGN_OR_RETURN(texts.private_key, ReadPem("private key", files.private_key));
  ASSIGN_OR_RETURN(texts.ca, ReadPem("CA", files.ca));
  RETURN_IF_ERROR(Check(files, texts, use, now));
  return texts;
}

std::string DescribeCertificate(const std::string& path) {
  const absl::StatusOr<std::string> pem = ReadPem("certificate", path);
  if (!pem.ok()) return std::string(pem.status().message());
  const std::vector<CertificatePtr> chain = ReadCertificates(*pem);
  if (chain.empty()) return absl::StrCat("'", path, "', which holds no certificate");
  const std::optional<Identity> identity = IdentityOf(*pem);
  return absl::StrCat("'", path, "', ",
                      identity.has_value() ? IdentityUri(*identity) : "which names no role",
                      ", valid until ", FormatTime(X509_get0_notAfter(chain.front().get())));
}

std::string ExplainHandshake(const std::string& address, const TlsFiles& files,
                             absl::Duration timeout) {
  return Probe(address, files, timeout).Explain();
}

}  // namespace thermocline
