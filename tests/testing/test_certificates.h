// Certificates for tests, made by the openssl command.
#ifndef THERMOCLINE_TESTS_TESTING_TEST_CERTIFICATES_H_
#define THERMOCLINE_TESTS_TESTING_TEST_CERTIFICATES_H_

#include <string>

#include "common/net/rpc.h"

namespace thermocline {

// Makes a CA called `name` in `directory`, and a certificate for 127.0.0.1 and localhost that it
// signed, good for servers and clients. CHECKs that openssl works.
TlsFiles MakeTestCertificates(const std::string& directory, const std::string& name);

// One more certificate of the CA `name`, called `other`, with the URI `uri` among its names.
TlsFiles SignTestCertificate(const std::string& directory, const std::string& name,
                             const std::string& other, const std::string& uri);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_TEST_CERTIFICATES_H_
