// OpenSSL's objects as owned pointers, for certificates.cc and tls_files.cc alone.
#ifndef THERMOCLINE_COMMON_NET_X509_H_
#define THERMOCLINE_COMMON_NET_X509_H_

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/check.h"

namespace thermocline::x509 {

template <auto free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};

using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using CertificatePtr = std::unique_ptr<X509, Freer<X509_free>>;
using RequestPtr = std::unique_ptr<X509_REQ, Freer<X509_REQ_free>>;
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using NamesPtr = std::unique_ptr<GENERAL_NAMES, Freer<GENERAL_NAMES_free>>;

// The newest error of OpenSSL on this thread, as text. Clears all errors.
inline std::string LastError() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT: OpenSSL's type
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason is given" : reason;
}

// For calls that fail only if memory is short, or if we call them wrongly.
inline absl::Status Must(bool done, absl::string_view what) {
  if (done) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("OpenSSL can't ", what, ": ", LastError()));
}

inline BioPtr Reading(absl::string_view text) {
  BioPtr bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  CHECK(bio != nullptr);
  return bio;
}

// The text that write(bio), a PEM_write_bio_..., writes; "": it failed.
template <typename Write>
std::string ToPem(Write write) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return "";
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &data);  // NOLINT: OpenSSL's type
  return std::string(data, static_cast<size_t>(bytes));
}

// Null for an encrypted key: there is no terminal to ask for a password.
inline KeyPtr ReadKey(absl::string_view pem) {
  const auto no_password = [](char*, int, int, void*) { return -1; };
  return KeyPtr(PEM_read_bio_PrivateKey(Reading(pem).get(), nullptr, no_password, nullptr));
}

// All certificates of a PEM text, in order.
inline std::vector<CertificatePtr> ReadCertificates(absl::string_view pem) {
  std::vector<CertificatePtr> all;
  const BioPtr bio = Reading(pem);
  while (X509* const next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    all.emplace_back(next);
  }
  ERR_clear_error();  // "No start line": the end.
  return all;
}

inline absl::Time ToTime(const ASN1_TIME* time) {
  std::tm fields = {};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&fields));
}

}  // namespace thermocline::x509

#endif  // THERMOCLINE_COMMON_NET_X509_H_
