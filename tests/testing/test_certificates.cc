#include "tests/testing/test_certificates.h"

#include <cstdlib>
#include <fstream>

#include "common/base/check.h"

namespace thermocline {
namespace {

void Run(const std::string& command) {
  CHECK(std::system((command + " 2>/dev/null >/dev/null").c_str()) == 0);
}

}  // namespace

TlsFiles MakeTestCertificates(const std::string& directory, const std::string& name) {
  const std::string base = directory + "/" + name;
  const std::string new_key = "openssl req -nodes -newkey rsa:2048 ";
  Run(new_key + "-x509 -days 2 -subj /CN=" + name + "-ca -keyout " + base + "-ca.key -out " + base +
      "-ca.pem");
  Run(new_key + "-subj /CN=" + name + " -keyout " + base + ".key -out " + base + ".csr");
  std::ofstream(base + ".ext") << "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
  Run("openssl x509 -req -days 2 -in " + base + ".csr -CA " + base + "-ca.pem -CAkey " + base +
      "-ca.key -CAcreateserial -extfile " + base + ".ext -out " + base + ".pem");
  return {base + ".pem", base + ".key", base + "-ca.pem"};
}

}  // namespace thermocline
