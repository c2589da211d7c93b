#include "common/net/loopback.h"

#include <gtest/gtest.h>

namespace thermocline {
namespace {

TEST(Loopback, NamesAndAddresses) {
  for (const char* host :
       {"localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "0:0:0:0:0:0:0:1", "[0::1]"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"", "0.0.0.0", "10.0.0.1", "128.0.0.1", "127.example.org",
                           "localhost.example.org", "::", "[::]", "[::2]", "[::1", "::1]",
                           "[127.0.0.1]", "[localhost]", "unix", "127.0.0.1:80"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

}  // namespace
}  // namespace thermocline
