#include "tests/testing/test_certificates.h"

#include <cstdlib>
#include <fstream>

#include "common/base/check.h"

namespace thermocline {
namespace {

void Run(const std::string& command) {
  CHECK(std::system((command + " 2>/dev/null >/dev/null").c_str()) == 0);
}

constexpr char kNewKey[] = "openssl req -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 ";

TlsFiles Sign(const std::string& ca, const std::string& base, const std::string& names) {
  Run(kNewKey + ("-subj /CN=peer -keyout " + base + ".key -out " + base + ".csr"));
  std::ofstream(base + ".ext") << "subjectAltName=IP:127.0.0.1,DNS:localhost" << names << "\n";
  Run("openssl x509 -req -days 2 -in " + base + ".csr -CA " + ca + ".pem -CAkey " + ca +
      ".key -CAcreateserial -extfile " + base + ".ext -out " + base + ".pem");
  return {base + ".pem", base + ".key", ca + ".pem"};
}

}  // namespace

TlsFiles MakeTestCertificates(const std::string& directory, const std::string& name) {
  const std::string base = directory + "/" + name;
  const std::string ca = base + "-ca";
  Run(kNewKey +
      ("-x509 -days 2 -subj /CN=" + name + "-ca -keyout " + ca + ".key -out " + ca + ".pem"));
  return Sign(ca, base, "");
}

TlsFiles SignTestCertificate(const std::string& directory, const std::string& name,
                             const std::string& other, const std::string& uri) {
  return Sign(directory + "/" + name + "-ca", directory + "/" + name + "-" + other, ",URI:" + uri);
}

}  // namespace thermocline
